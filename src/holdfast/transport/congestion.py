"""Congestion control: on a short way one that goes by loss, on a long one whatever the system has.

BBR, which some systems have as their default, paces what it sends by its own estimate of the rate. That is made for
long ways that lose packets. Between machines of one cluster it costs: several streams that take turns never have a good
estimate (four hosts at 1 Gbit/s reached 91% of the link instead of 99%), and pacing takes more CPU than copying (100 MB
between two hosts without a limit took 1.6 times as long). Not every user may choose every algorithm; the first one that
may be chosen is.

It must be chosen before a connection is made: a socket that BBR has begun to pace is relaxed for ever. So it is chosen
for all, and taken back where the round trip turns out to be long.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from pathlib import Path

from holdfast.config.limits import NETWORK

__all__ = ["prefer_short", "rate", "settle", "unanswered"]

_BY_LOSS = ("cubic", "reno")
_DEFAULT = Path("/proc/sys/net/ipv4/tcp_congestion_control")
# Where `struct tcp_info` has the smoothed round trip, in microseconds, and how fast bytes have got there, per second.
_RTT, _RATE = 68, 160
_AGAIN, _PROBES = 2, 3  # a byte each: how often in a row something was sent again, and a full receiver was asked


def prefer_short(sock: socket.socket) -> None:
    """Before a socket connects or listens: let it go by loss, unless it does already."""
    if _system() in _BY_LOSS:
        return
    for name in _BY_LOSS:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
        except OSError:
            continue  # not in this kernel, or not for this user
        return


def settle(sock: socket.socket) -> None:
    """Once it is connected: give a long way back to what the system has chosen."""
    if round_trip(sock) > NETWORK.long_round_trip:
        with contextlib.suppress(OSError):  # then it stays as it is, which works as well
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _system().encode())


def round_trip(sock: socket.socket) -> float:
    """Seconds there and back, as TCP has measured them; 0 where it does not say."""
    info = _info(sock, _RTT + 4)
    return float(struct.unpack_from("I", info, _RTT)[0]) / 1e6 if info else 0.0


def rate(sock: socket.socket) -> float:
    """Bytes per second, as TCP has measured them when it last had enough to send; 0 where it does not say."""
    info = _info(sock, _RATE + 8)
    return float(struct.unpack_from("Q", info, _RATE)[0]) if info else 0.0


def unanswered(sock: socket.socket) -> int:
    """How often in a row TCP has sent the same again and heard nothing, waiting twice as long each time; 0: it hears.

    A receiver that takes nothing more, but is there, answers. TCP itself gives up after a quarter of an hour.
    """
    info = _info(sock, _PROBES + 1)
    return max(info[_AGAIN], info[_PROBES]) if info else 0


def _info(sock: socket.socket, size: int) -> bytes:
    """The first bytes of the kernel's `struct tcp_info`; none where it does not have so many."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)
    except OSError:
        return b""
    return info if len(info) >= size else b""


def _system() -> str:
    try:
        return _DEFAULT.read_text().strip()
    except OSError:
        return ""
