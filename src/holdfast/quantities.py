"""Numbers with a unit, as types: `Duration` and `Size`.

A bare number in a setting hides its unit, so text needs one ("30" is refused, "30s" is not). In code a
number stands for the base unit: seconds, bytes. Values are exact where they can be: a size is a whole
number of bytes, and `Duration(str(d)) == d`, `Size(str(s)) == s` hold for every value.

    >>> Duration("1.5m").seconds
    90.0
    >>> Size("64MiB").bytes
    67108864
    >>> str(Duration(0.25)), str(Size(1536))
    ('250ms', '1.5KiB')
    >>> Duration("30s") < Duration("1m")
    True
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from holdfast.errors import UsageError

__all__ = ["Duration", "Size"]

# Largest first: `str` takes the first unit in which the value is short and exact.
_DURATIONS: Mapping[str, Decimal] = {
    "d": Decimal(86400),
    "h": Decimal(3600),
    "m": Decimal(60),
    "s": Decimal(1),
    "ms": Decimal("0.001"),
    "us": Decimal("0.000001"),
}
_SIZES: Mapping[str, Decimal] = {
    "TiB": Decimal(2**40),
    "GiB": Decimal(2**30),
    "MiB": Decimal(2**20),
    "KiB": Decimal(2**10),
    "TB": Decimal(10**12),
    "GB": Decimal(10**9),
    "MB": Decimal(10**6),
    "KB": Decimal(10**3),
    "B": Decimal(1),
}
_TEXT = re.compile(r"\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)\s*")


@dataclass(frozen=True, order=True, slots=True, init=False)
class Duration:
    """A span of time, never negative: `Duration("30s")`, `Duration("200ms")`, or seconds as a number.

    Raises:
        UsageError: the text has no unit, an unknown one, or the value is negative or not finite.
    """

    seconds: float

    def __init__(self, value: str | int | float) -> None:
        if isinstance(value, str):
            seconds = float(_parse(value, "duration", _DURATIONS, "30s, 1.5m or 200ms"))
        else:
            seconds = float(value)
        if not math.isfinite(seconds) or seconds < 0:
            raise UsageError(f"{value!r} is not a duration: it must be finite and 0 or more. Write 30s or 1.5m.")
        object.__setattr__(self, "seconds", seconds + 0.0)  # -0.0 becomes 0.0

    def __str__(self) -> str:
        exact = Decimal(repr(self.seconds))
        for unit, factor in _DURATIONS.items():
            text = _short(exact / factor)
            if text and float(Decimal(text) * factor) == self.seconds:
                return text + unit
        return f"{exact.normalize():f}s"


@dataclass(frozen=True, order=True, slots=True, init=False)
class Size:
    """A number of bytes: `Size("64MiB")`, `Size("1.5GB")`, or bytes as an integer.

    `KiB`, `MiB`, `GiB`, `TiB` are powers of 1024; `KB`, `MB`, `GB`, `TB` powers of 1000.

    Raises:
        UsageError: the text has no unit, an unknown one, or the value is not a whole number of bytes.
    """

    bytes: int

    def __init__(self, value: str | int) -> None:
        number = _parse(value, "size", _SIZES, "64MiB, 1.5GB or 512B") if isinstance(value, str) else Decimal(value)
        if number < 0 or number != number.to_integral_value():
            raise UsageError(f"{value!r} is not a size: it must be a whole number of bytes, 0 or more. Write 64MiB.")
        object.__setattr__(self, "bytes", int(number))

    def __str__(self) -> str:
        for unit, factor in _SIZES.items():
            text = _short(Decimal(self.bytes) / factor)
            if text and Decimal(text) * factor == self.bytes:
                return text + unit
        return f"{self.bytes}B"


def _parse(text: str, kind: str, units: Mapping[str, Decimal], examples: str) -> Decimal:
    match = _TEXT.fullmatch(text)
    if not match:
        raise UsageError(f"{text!r} is not a {kind}. Write a number and a unit, such as {examples}.")
    number, unit = match.groups()
    if not unit:
        raise UsageError(f"{text!r} is not a {kind}: the unit is missing. Write {examples}.")
    # No two units differ by case only, so "64mib" can mean one thing only.
    known = {name.lower(): factor for name, factor in units.items()}
    if unit.lower() not in known:
        raise UsageError(f"{text!r} is not a {kind}: unknown unit {unit!r}. Units are {', '.join(units)}.")
    return Decimal(number) * known[unit.lower()]


def _short(number: Decimal) -> str:
    """The number in at most seven characters, if it is 1 or more and fits; otherwise nothing."""
    if number < 1:
        return ""
    text = format(number.normalize(), "f")
    return text if len(text) <= 7 else ""
