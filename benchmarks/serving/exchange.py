"""Requests as bytes, and answers from bytes: HTTP/1.1, the Open Inference Protocol with JSON or binary tensors. Pure.

Where a server cannot be asked by the protocol, the same numbers travel as plain nested lists under the name of the
input, and come back as such ("plain").
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from operator import sub
from random import Random
from typing import Any, NamedTuple

import msgspec
import numpy

__all__ = ["DIFFERENT", "Answer", "Request", "Target", "Unreadable", "numbers", "read", "requests", "right"]

#: JSON, binary tensors and the software of others need not agree to the last bit.
_NEAR = 1e-3
#: Different requests that are sent in turns, so that nobody answers from a cache without being found out.
DIFFERENT = 64


class Unreadable(ValueError):
    """An answer is not what HTTP or the protocol say it should be."""


@dataclass(frozen=True, slots=True)
class Target:
    """Whom to ask, and for what."""

    host: str
    port: int
    path: str
    encoding: str = "json"  #: or binary, or plain
    input: str = "x"
    shape: tuple[int, ...] = (1, 1, 28, 28)
    output: str = ""  #: the output that is asked for in binary; the protocol wants its name


class Request(NamedTuple):
    """All of it, ready to be sent; and the numbers in it."""

    wire: bytes
    numbers: tuple[float, ...]


class Answer(NamedTuple):
    """One answer, whole. `taken`: how many bytes of what was read it was."""

    status: int
    numbers: Sequence[float]  #: of the first output
    shape: tuple[int, ...]
    version: str
    closing: bool
    taken: int


def numbers(target: Target, count: int, seed: int) -> list[tuple[float, ...]]:
    """Inputs: numbers between 0 and 1 with four digits, which JSON does not round."""
    random = Random(seed)
    size = prod(target.shape)
    return [tuple(round(random.random(), 4) for _ in range(size)) for _ in range(count)]


def requests(target: Target, inputs: Sequence[tuple[float, ...]]) -> list[Request]:
    """A request for each input."""
    return [Request(_wire(target, values), values) for values in inputs]


def _wire(target: Target, values: tuple[float, ...]) -> bytes:
    more = "Content-Type: application/json\r\n"
    tensor: dict[str, Any] = {"name": target.input, "shape": list(target.shape), "datatype": "FP32"}
    if target.encoding == "binary":
        raw = numpy.array(values, "<f4").tobytes()
        tensor["parameters"] = {"binary_data_size": len(raw)}
        asked: dict[str, Any] = {"inputs": [tensor]}
        if target.output:
            asked["outputs"] = [{"name": target.output, "parameters": {"binary_data": True}}]
        else:
            asked["parameters"] = {"binary_data_output": True}
        head = msgspec.json.encode(asked)
        body = head + raw
        more = f"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: {len(head)}\r\n"
    elif target.encoding == "plain":
        body = msgspec.json.encode({target.input: numpy.array(values).reshape(target.shape).tolist()})
    else:
        body = msgspec.json.encode({"inputs": [{**tensor, "data": values}]})
    return (
        f"POST {target.path} HTTP/1.1\r\nHost: {target.host}:{target.port}\r\n{more}"
        f"Accept: */*\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


class _Output(msgspec.Struct):
    name: str
    datatype: str
    shape: tuple[int, ...]
    data: list[float] | None = None


class _Inferred(msgspec.Struct):
    outputs: list[_Output]
    model_version: str | None = None


_inferred = msgspec.json.Decoder(_Inferred)
_lists = msgspec.json.Decoder(list[list[float]])
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_HEADER = re.compile(rb"\r\ninference-header-content-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)


def read(got: bytes, encoding: str) -> Answer | None:
    """The answer at the beginning of what was read; None while it is not all there. Raises Unreadable."""
    end = got.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = got[:end]
    if not head.startswith(b"HTTP/1.") or not head[9:12].isdigit():
        raise Unreadable(f"an answer begins with {head[:40]!r}")
    status = int(head[9:12])
    if length := _LENGTH.search(head):
        taken = end + 4 + int(length[1])
        if len(got) < taken:
            return None
        body = got[end + 4 : taken]
    elif _CHUNKED.search(head):
        found = _chunks(got, end + 4)
        if found is None:
            return None
        body, taken = found
    else:
        raise Unreadable(f"an answer says no length: {head!r}")
    closing = _CLOSE.search(head) is not None
    if status != 200:
        return Answer(status, (), (), "", closing, taken)
    try:
        values, shape, version = _tensor(head, body, encoding)
    except (ValueError, IndexError) as error:  # msgspec's errors are ValueErrors
        raise Unreadable(f"an answer with status 200 is none: {error}: {body[:200]!r}") from None
    return Answer(status, values, shape, version, closing, taken)


def _tensor(head: bytes, body: bytes, encoding: str) -> tuple[Sequence[float], tuple[int, ...], str]:
    """The first output: its numbers and its shape; and the version of the model."""
    if encoding == "plain":
        rows = _lists.decode(body)
        return [number for row in rows for number in row], (len(rows), len(rows[0])), ""
    length = _HEADER.search(head)
    told = _inferred.decode(body[: int(length[1])] if length else body)
    first = told.outputs[0]
    if first.datatype != "FP32":
        raise Unreadable(f"output {first.name} is {first.datatype}, not FP32")
    values: Sequence[float]
    if first.data is not None:
        values = first.data
    elif length:
        size = 4 * prod(first.shape)
        values = memoryview(body)[int(length[1]) :][:size].cast("f")
    else:
        raise Unreadable(f"output {first.name} has no data")
    return values, first.shape, told.model_version or ""


def _chunks(got: bytes, at: int) -> tuple[bytes, int] | None:
    """A chunked body, and where it ends; None while it does not."""
    parts = list[bytes]()
    while True:
        line = got.find(b"\r\n", at)
        if line < 0:
            return None
        size = int(got[at:line].split(b";")[0], 16)
        begin = line + 2
        if len(got) < begin + size + 2:
            return None
        if not size:
            return b"".join(parts), begin + 2
        parts.append(got[begin : begin + size])
        at = begin + size + 2


def right(answer: Answer, expected: Sequence[float] | None) -> bool:
    """Does an answer hold as many numbers as its shape says, and are they the ones that are expected?"""
    values = answer.numbers
    if prod(answer.shape) != len(values) or not len(values):
        return False
    if expected is None:
        return True
    return len(expected) == len(values) and max(map(abs, map(sub, expected, values))) < _NEAR
