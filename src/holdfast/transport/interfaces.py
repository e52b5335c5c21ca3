"""The addresses of this machine, as the kernel tells them over rtnetlink: no dependency, and any namespace.

`getifaddrs` would give names and addresses, but not what an interface is (a bridge, a dummy), nor that an IPv6 address
is still being checked or about to go. The answer is read by two pure functions, so that it can be tried without a
network: `interfaces` and `addresses`.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from holdfast.config.limits import NETWORK
from holdfast.core.routes import Address

__all__ = ["Interface", "addresses", "found", "interfaces", "leaving_from"]

_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_ATTRIBUTE = struct.Struct("=HH")
_GET_LINK, _GET_ADDRESS = 18, 22
_NEW_LINK, _NEW_ADDRESS, _ERROR, _DONE = 16, 20, 2, 3
_REQUEST_DUMP = 0x301
_INTERRUPTED = 0x10  # something changed while the kernel was listing
#: Switched on, and with a carrier. (The kernel's RUNNING says the same up to a second later.)
_UP = 0x1 | 0x10000
#: Temporary (it will go), failed to be unique, deprecated, still being checked: not to be told to others.
_UNSTEADY = 0x01 | 0x08 | 0x20 | 0x40


@dataclass(frozen=True, slots=True)
class Interface:
    """An interface: its name, what it is ("" for a real card) and to which other one it belongs."""

    name: str
    up: bool
    kind: str = ""
    master: int = 0


def found() -> list[Address]:
    """Every steady address of this machine on an interface that is up. Empty when there is no network at all."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as kernel:
            known = interfaces(_dump(kernel, _GET_LINK, struct.pack("=BxHiII", 0, 0, 0, 0, 0)))
            listed = addresses(_dump(kernel, _GET_ADDRESS, struct.pack("=BBBBI", 0, 0, 0, 0, 0)), known)
    except OSError:  # a sandbox without netlink: what the routes to elsewhere would leave from
        return [Address(ip, "") for ip in map(leaving_from, ("192.0.2.1", "2001:db8::1")) if ip]
    speeds = {index: _speed(link.name, index) for index, link in known.items()}
    return [Address(it.ip, it.interface, it.kind, speeds[index]) for index, it in listed]


def leaving_from(ip: str) -> str:
    """The address from which this machine would send to `ip`, by its routes; nothing is sent. "" without a route."""
    try:
        family, kind, _, _, target = socket.getaddrinfo(ip, 9, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST)[0]
        with socket.socket(family, kind | socket.SOCK_CLOEXEC) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0]).partition("%")[0]
    except (OSError, ValueError):
        return ""


# ---------------------------------------------------------------- reading what the kernel says


def interfaces(data: bytes) -> dict[int, Interface]:
    """Interfaces by their index, from the kernel's answer."""
    known: dict[int, Interface] = {}
    for kind, body in _messages(data):
        if kind != _NEW_LINK or len(body) < 16:
            continue
        _, _, index, flags, _ = struct.unpack_from("=BxHiII", body)
        parts = dict(_attributes(body[16:]))
        info = dict(_attributes(parts.get(18, b"")))
        known[index] = Interface(
            _text(parts.get(3, b"")), flags & _UP == _UP, _text(info.get(1, b"")),
            struct.unpack("=I", parts[10])[0] if len(parts.get(10, b"")) == 4 else 0,
        )
    return known


def addresses(data: bytes, known: Mapping[int, Interface]) -> list[tuple[int, Address]]:
    """Addresses with the index of their interface, from the kernel's answer; those that are not usable are left out."""
    wired = {link.master for link in known.values() if link.master and link.kind not in ("veth", "tun")}
    listed: list[tuple[int, Address]] = []
    for kind, body in _messages(data):
        if kind != _NEW_ADDRESS or len(body) < 8:
            continue
        family, _, flags, _, index = struct.unpack_from("=BBBBI", body)
        parts = dict(_attributes(body[8:]))
        # On a point-to-point interface 1 is the other end and 2 is ours; elsewhere they are equal, or there is no 2.
        raw = parts.get(2) or parts.get(1) or b""
        link = known.get(index)
        if link is None or not link.up or len(raw) != {socket.AF_INET: 4, socket.AF_INET6: 16}.get(family):
            continue
        if len(parts.get(8, b"")) == 4:
            (flags,) = struct.unpack("=I", parts[8])
        if family == socket.AF_INET6 and flags & _UNSTEADY:
            continue
        ip: IPv4Address | IPv6Address = ip_address(raw)
        listed.append((index, _classified(ip, link, has_wire=index in wired)))
    return listed


def _classified(ip: IPv4Address | IPv6Address, link: Interface, *, has_wire: bool) -> Address:
    if ip.is_loopback:
        return Address(str(ip), link.name, "loopback")
    if ip.is_link_local:
        return Address(str(ip), link.name, "link")
    inner = link.kind == "dummy" or (link.kind == "bridge" and not has_wire)
    return Address(str(ip), link.name, "inner" if inner else "plain")  # also a routed address that sits on `lo`


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, _, _, _ = _HEADER.unpack_from(data, at)
        if length < _HEADER.size:
            return
        yield kind, data[at + _HEADER.size : at + length]
        at += length + 3 & ~3


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size:
            return
        yield kind & 0x3FFF, data[at + _ATTRIBUTE.size : at + length]
        at += length + 3 & ~3


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode("ascii", "replace")


# ---------------------------------------------------------------- asking it


def _dump(kernel: socket.socket, request: int, body: bytes) -> bytes:
    """Everything the kernel has of this kind. A list that changed while it was read is asked for again."""
    kernel.settimeout(NETWORK.kernel)
    for sequence in range(1, 4):
        kernel.send(_HEADER.pack(_HEADER.size + len(body), request, _REQUEST_DUMP, sequence, 0) + body)
        answer, clean = _answer(kernel, sequence)
        if clean:
            break
    return answer


def _answer(kernel: socket.socket, sequence: int) -> tuple[bytes, bool]:
    answer, clean = b"", True
    while True:
        part = kernel.recv(1 << 18)
        at = 0
        while at + _HEADER.size <= len(part):
            length, kind, flags, number, _ = _HEADER.unpack_from(part, at)
            clean = clean and not flags & _INTERRUPTED
            if kind == _ERROR:
                (code,) = struct.unpack_from("=i", part, at + _HEADER.size)
                raise OSError(-code or errno.EIO, os.strerror(-code))
            if kind == _DONE and number == sequence:
                return answer, clean
            at += max(length + 3 & ~3, _HEADER.size)
        answer += part


def _speed(name: str, index: int) -> int:
    """What the driver claims, in Mbit/s; 0 when it does not say. /sys may show another namespace: its index tells."""
    place = Path("/sys/class/net", name)
    try:
        if int((place / "ifindex").read_text()) != index:
            return 0
        return max(0, int((place / "speed").read_text()))
    except (OSError, ValueError):
        return 0
