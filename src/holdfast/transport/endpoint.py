"""Places: where to listen and whom to call, as people write them: `10.0.0.5:4000`, `[fd00::5]:4000`, `gpu7:4000`."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from ipaddress import ip_address

from holdfast.core.routes import Address, worth_trying
from holdfast.errors import UsageError
from holdfast.transport.interfaces import found

__all__ = ["listening_on", "parse"]

_FORM = "Write HOST:PORT, or [HOST]:PORT for IPv6, such as 10.0.0.5:4000."


def parse(text: str, *, port: int | None = None) -> tuple[str, int]:
    """Host and port; `port` is what is meant where none is written. Raises UsageError.

    >>> parse("10.0.0.5:4000"), parse("[fd00::5]:4000"), parse("fd00::5", port=0), parse("gpu7", port=0)
    (('10.0.0.5', 4000), ('fd00::5', 4000), ('fd00::5', 0), ('gpu7', 0))
    """
    host, colon, number = text.strip().rpartition(":")
    bare = "[" not in text and (not colon or ":" in host)  # an IPv6 address without a port is full of colons
    if bare or number.endswith("]"):
        host, number = text.strip(), ""
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not host or any(it in host for it in "[]/ "):
        raise UsageError(f"{text[:80]!r} is not an address. {_FORM}")
    if not number and port is None:
        raise UsageError(f"{text[:80]!r} names no port. {_FORM}")
    if number and not (number.isascii() and number.isdigit() and len(number) <= 5 and int(number) < 65536):
        raise UsageError(f"{text[:80]!r}: the port is not a number from 0 to 65535. {_FORM}")
    return host, int(number) if number else port or 0


def listening_on(host: str, mine: Sequence[Address] | None = None) -> str:
    """The address of this machine that is meant by `host`, as a number: to listen on, and to be told to others.

    A name that is only known as loopback is refused, because what it stands for elsewhere is another machine; that is
    how many systems write their own name into /etc/hosts. Whoever wants loopback says so. Raises UsageError.
    """
    try:
        ip_address(host.partition("%")[0])
        return host
    except ValueError:
        pass  # a name
    try:
        listed = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"The host name {host} cannot be resolved: {why}. {_instead(mine)}") from None
    numbers = list(dict.fromkeys(str(place[4][0]).partition("%")[0] for place in listed))
    if host == "localhost":
        return numbers[0]
    far = [number for number in numbers if not ip_address(number).is_loopback]
    if not far:
        raise UsageError(
            f"The host name {host} stands for {' and '.join(numbers)} on this machine (see /etc/hosts), where no other "
            f"machine can reach it. {_instead(mine)}"
        )
    return far[0]


def _instead(mine: Sequence[Address] | None) -> str:
    there = [f"{it.ip} ({it.interface})" for it in worth_trying(found() if mine is None else mine)] or ["127.0.0.1"]
    return f"Use an address of this machine instead: {' or '.join(there[:4])}."
