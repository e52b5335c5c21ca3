"""What is asked and what is answered, whichever way it came: REST or gRPC, JSON or binary.

Tensors are their bytes: raw, little-endian, in C order. An element of type BYTES is its length, in four bytes, and then
its bytes. Nothing here was copied that had not to be: `data` may be a view of the body in which it came.
"""

from __future__ import annotations

import msgspec

__all__ = ["Buffer", "InferInput", "InferOutput", "InferRequest", "InferResponse", "Parameter", "RequestedOutput"]

Buffer = bytes | memoryview
#: What a parameter may be.
Parameter = str | bool | int | float


class InferInput(msgspec.Struct, frozen=True, gc=False):
    """One tensor of a request. Without a name and a datatype it is a whole body, which `fit` gives its meaning."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Buffer


class RequestedOutput(msgspec.Struct, frozen=True, gc=False):
    """One output that is asked for, and whether its numbers are to follow the JSON as bytes."""

    name: str
    binary: bool = False


class InferRequest(msgspec.Struct, frozen=True, gc=False):
    """A request for inference."""

    model: str
    version: str  #: "": whichever is served
    id: str
    inputs: tuple[InferInput, ...]
    outputs: tuple[RequestedOutput, ...] = ()  #: empty: all of them
    binary: bool = False  #: the form of outputs, where `outputs` does not name them
    timeout: float | None = None  #: seconds that the client will wait; None: it does not say
    priority: int = 0  #: 1 is the highest, 0 the model's own
    parameters: dict[str, Parameter] = {}  #: all others


class InferOutput(msgspec.Struct, frozen=True, gc=False):
    """One tensor of an answer."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Buffer


class InferResponse(msgspec.Struct, frozen=True, gc=False):
    """An answer."""

    model: str
    version: str
    id: str
    outputs: tuple[InferOutput, ...]
    parameters: dict[str, Parameter] = {}
