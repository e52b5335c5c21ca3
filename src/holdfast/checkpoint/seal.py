"""Sealed JSON: laid out for people, and its last entry is the SHA-256 of all bytes before that hash. Pure.

A byte that has changed anywhere in it is noticed.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

__all__ = ["sealed", "unsealed"]

_SEAL, _END = b',\n  "sha256": "', b'"\n}\n'
_HEX = 64


def sealed(tree: dict[str, Any]) -> bytes:
    """The file. Raises ValueError, TypeError where a value is nothing that JSON can say.

    >>> unsealed(sealed({"a": 1}))["a"]
    1
    """
    body = json.dumps(tree, indent=2, allow_nan=False).encode().removesuffix(b"\n}") + _SEAL
    return body + hashlib.sha256(body).hexdigest().encode() + _END


def unsealed(data: bytes) -> dict[str, Any]:
    """What was sealed. Raises ValueError, which says what is wrong with the file."""
    end = len(data) - len(_END)
    begin = end - _HEX
    if begin < 0 or data[end:] != _END or data[begin - len(_SEAL) : begin] != _SEAL:
        raise ValueError(f"is cut off after {len(data)} bytes, or something else")
    if hashlib.sha256(data[:begin]).hexdigest().encode() != data[begin:end]:
        raise ValueError("has other bytes than were written")
    try:
        tree: dict[str, Any] = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is none that Holdfast has written ({error})") from None
    return tree  # it ends as an object does, so it is one
