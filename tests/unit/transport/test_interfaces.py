"""What the kernel says about interfaces, read right: without a network, and with the one that is here."""

from __future__ import annotations

import socket
import struct
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.routes import Address
from holdfast.transport import interfaces
from holdfast.transport.interfaces import Interface, addresses, found, leaving_from

UP = 0x1 | 0x10000


def attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def message(kind: int, body: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, 2, 1, 0) + body + bytes(-len(body) % 4)


def link(index: int, name: str, *, flags: int = UP, kind: str = "", master: int = 0) -> bytes:
    body = struct.pack("=BxHiII", 0, 1, index, flags, 0) + attribute(3, name.encode() + b"\0")
    if kind:
        body += attribute(18 | 0x8000, attribute(1, kind.encode()))  # nested, and says so
    return message(16, body + (attribute(10, struct.pack("=I", master)) if master else b""))


def address(index: int, ip: str, *, flags: int = 0, peer: str = "", wide: int | None = None) -> bytes:
    number = ip_address(ip)
    family = socket.AF_INET if number.version == 4 else socket.AF_INET6
    body = struct.pack("=BBBBI", family, 24, flags, 0, index) + attribute(1, ip_address(peer or ip).packed)
    if number.version == 4:
        body += attribute(2, number.packed)
    return message(20, body + (attribute(8, struct.pack("=I", wide)) if wide is not None else b""))


def read(links: bytes, listed: bytes) -> list[Address]:
    return [it for _, it in addresses(listed, interfaces.interfaces(links))]


def test_interfaces() -> None:
    known = interfaces.interfaces(link(1, "lo") + link(2, "eth0", flags=0x1) + link(5, "veth1", kind="veth", master=7))
    assert known == {1: Interface("lo", True), 2: Interface("eth0", False), 5: Interface("veth1", True, "veth", 7)}


@pytest.mark.parametrize(
    ("ip", "kind"),
    [
        ("127.0.0.1", "loopback"), ("::1", "loopback"), ("10.0.0.2", "plain"), ("fd00::2", "plain"),
        ("fe80::2", "link"), ("169.254.3.4", "link"),
    ],
)
def test_kinds_of_addresses(ip: str, kind: str) -> None:
    (it,) = read(link(2, "eth0"), address(2, ip))
    assert (it.ip, it.interface, it.kind) == (ip, "eth0", kind)


def test_a_routed_address_on_the_loopback_interface_is_a_plain_one() -> None:
    assert [it.kind for it in read(link(1, "lo"), address(1, "127.0.0.1") + address(1, "203.0.113.7"))] == [
        "loopback", "plain",
    ]


def test_a_bridge_for_containers_is_inner_and_one_with_a_wire_is_not() -> None:
    docker = link(3, "docker0", kind="bridge") + link(4, "veth9", kind="veth", master=3)
    wired = link(5, "br0", kind="bridge") + link(6, "eth0", master=5) + link(7, "vnet0", kind="tun", master=5)
    dummy = link(8, "kube-ipvs0", kind="dummy")
    listed = address(3, "172.17.0.1") + address(5, "10.0.0.2") + address(8, "10.96.0.1")
    assert [(it.interface, it.kind) for it in read(docker + wired + dummy, listed)] == [
        ("docker0", "inner"), ("br0", "plain"), ("kube-ipvs0", "inner"),
    ]


def test_our_end_of_a_point_to_point_interface() -> None:
    assert [it.ip for it in read(link(2, "tun0", kind="tun"), address(2, "10.8.0.6", peer="10.8.0.5"))] == ["10.8.0.6"]


def test_what_is_down_or_not_steady_is_left_out() -> None:
    links = link(2, "eth0") + link(3, "eth1", flags=0x1)
    listed = address(3, "10.0.0.3") + address(9, "10.0.0.9")
    for flag in (0x01, 0x08, 0x20, 0x40):
        listed += address(2, "fd00::5", flags=flag) + address(2, "fd00::6", wide=flag)
    assert read(links, listed + address(2, "fd00::7", flags=0x80)) == [Address("fd00::7", "eth0")]
    # For IPv4 the first bit means a second address of the same network, which is as good.
    assert read(links, address(2, "10.0.0.4", flags=0x01)) == [Address("10.0.0.4", "eth0")]


@given(st.binary(max_size=300), st.integers(0, 200))
def test_whatever_comes_is_read_to_its_end(noise: bytes, cut: int) -> None:
    true = link(1, "eth0", kind="bridge", master=2) + address(1, "10.0.0.2")
    for data in (noise, true[:cut], true[: cut - cut % 4] + noise):
        addresses(data, interfaces.interfaces(data))


def test_this_machine() -> None:
    here = found()
    assert Address("127.0.0.1", "lo", "loopback") in here
    assert len({(it.ip, it.interface) for it in here}) == len(here)
    for it in here:
        if it.kind != "link":
            assert leaving_from(it.ip) == it.ip, "what we have, we would use to talk to ourselves"


def test_without_netlink_the_routes_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> socket.socket:
        raise OSError(97, "Address family not supported by protocol")

    monkeypatch.setattr(interfaces, "leaving_from", lambda ip: "10.0.0.2" if ip == "192.0.2.1" else "")
    monkeypatch.setattr(interfaces.socket, "socket", refused)
    assert found() == [Address("10.0.0.2", "")]


@pytest.mark.parametrize("ip", ["gpu7", "", "fe80::1%nothere", "\ud800"])
def test_no_way_to_what_is_no_address(ip: str) -> None:
    assert leaving_from(ip) == ""
