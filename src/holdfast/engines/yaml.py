"""Writes YAML: enough of it for a Kubernetes manifest, always the same text for the same values.

Texts of several lines become blocks, so that a script in a manifest reads like a script. Everything else that is not
plainly one word is quoted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

__all__ = ["Value", "document"]

Value = str | int | bool | Sequence["Value"] | Mapping[str, "Value"]

#: Words that nobody reads as a number, a truth, a date or nothing.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_NOT_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
#: A block keeps printable lines as they are. It cannot begin with a space, and ends with one line break.
_BLOCK = re.compile(r"(?![ \t\n])[\t\n\x20-\x7e\xa1-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd]+(?<!\n)\n")


def document(value: Mapping[str, Value]) -> str:
    """One document, with a line break at its end.

    >>> print(document({"kind": "Job", "spec": {"completions": 2, "args": ["a b", "yes"], "none": {}}}), end="")
    kind: Job
    spec:
      completions: 2
      args:
        - "a b"
        - "yes"
      none: {}
    """
    return "".join(f"{line}\n" for line in _mapping(value))


def _mapping(value: Mapping[str, Value]) -> list[str]:
    lines = []
    for key, item in value.items():
        first, *rest = _lines(item)
        lines += [f"{_text(key)}:{first and ' ' + first}", *("  " + line if line else "" for line in rest)]
    return lines


def _lines(value: Value) -> list[str]:
    """What stands after a key, and the lines below it."""
    if isinstance(value, str):
        if _BLOCK.fullmatch(value):
            return ["|", *value[:-1].split("\n")]
        return [_text(value)]
    if isinstance(value, bool | int):
        return [json.dumps(value)]
    if not value:
        return ["{}" if isinstance(value, Mapping) else "[]"]
    if isinstance(value, Mapping):
        return ["", *_mapping(value)]
    if all(isinstance(item, int) for item in value):
        return [json.dumps(list(value))]
    return ["", *(line for item in value for line in _item(item))]


def _item(value: Value) -> list[str]:
    """One element of a sequence: its first line after a dash."""
    lines = _mapping(value) if isinstance(value, Mapping) and value else _lines(value)
    if not lines[0]:
        raise ValueError("a sequence directly in a sequence: no manifest has one")
    return ["- " + lines[0], *("  " + line if line else "" for line in lines[1:])]


def _text(text: str) -> str:
    if _PLAIN.fullmatch(text) and text.lower() not in _NOT_WORDS:
        return text
    return re.sub(r"[^\x20-\x7e]", _escape, json.dumps(text, ensure_ascii=False))


def _escape(letter: re.Match[str]) -> str:
    """JSON writes letters beyond 16 bits as two halves, which YAML would read as two letters."""
    code = ord(letter[0])
    return f"\\u{code:04x}" if code < 2**16 else f"\\U{code:08x}"
