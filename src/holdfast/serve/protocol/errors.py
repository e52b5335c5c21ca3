"""What a client is told whose request cannot be answered."""

from __future__ import annotations

import re

import msgspec

from holdfast.errors import BadRequest

__all__ = ["BadRequest", "error_body", "malformed", "shown"]

_PLACE = re.compile(r" - at `\$\.?(.*)`$")


def error_body(message: object) -> bytes:
    """The body that goes with every status but 200.

    >>> error_body(BadRequest(400, "is missing", "inputs"))
    b'{"error":"inputs: is missing"}'
    """
    return msgspec.json.encode({"error": str(message)})


def shown(value: object, most: int = 64) -> str:
    """Something of the client's, as a message shows it: never at length.

    >>> shown("x" * 100, most=8)
    "'xxxxxxx..."
    """
    if isinstance(value, int) and value.bit_length() > 64:  # Python refuses to write out the longest
        return f"a whole number of {value.bit_length()} bits"
    text = repr(value if not isinstance(value, str) else value[: most + 1])
    return text if len(text) <= most else text[:most] + "..."


def malformed(error: Exception, field: str) -> BadRequest:
    """What the decoder found, with the name of the field in which it did.

    >>> try: msgspec.json.decode(b'{"a": [1, true]}', type=dict[str, list[int]])
    ... except msgspec.ValidationError as error: print(malformed(error, "inputs[0].data"))
    inputs[0].data[...][1]: expected `int`, got `bool`
    """
    if isinstance(error, RecursionError):
        return BadRequest(400, "is nested too deep", field)
    if not isinstance(error, msgspec.ValidationError):  # UnicodeDecodeError repeats the bytes
        what = str(error) if isinstance(error, msgspec.DecodeError) else "it is not UTF-8"
        return BadRequest(400, f"cannot be read as JSON: {what}", field)
    text = str(error)
    place = _PLACE.search(text)
    if place is None:
        return BadRequest(400, text[:1].lower() + text[1:], field or "body")
    inside = place.group(1)
    where = f"{field}{'' if not field or inside.startswith('[') else '.'}{inside}"
    return BadRequest(400, text[:1].lower() + text[1 : place.start()], where)
