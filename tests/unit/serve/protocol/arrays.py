"""Arrays of every datatype, for tests: as NumPy has them, as bytes, and how they are sent."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import numpy
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from holdfast.errors import BadRequest
from holdfast.model.signature import DATATYPES, Signature, TensorSpec, dtype_of
from holdfast.serve.protocol.limits import ProtocolLimits
from holdfast.serve.protocol.requests import InferInput, InferOutput, InferRequest, InferResponse
from holdfast.serve.protocol.rest import parse_infer
from holdfast.serve.protocol.tensors import pack_bytes

LIMITS = ProtocolLimits()
FLOATS = ("FP16", "FP32", "FP64")
#: One value of each datatype that JSON can hold.
SAMPLES: dict[str, list[Any]] = {
    "BOOL": [True, False], "UINT8": [0, 255], "UINT16": [0, 65535], "UINT32": [0, 2**32 - 1], "UINT64": [0, 2**64 - 1],
    "INT8": [-128, 127], "INT16": [-32768, 32767], "INT32": [-(2**31), 2**31 - 1], "INT64": [-(2**63), 2**63 - 1],
    "FP16": [-1.5, 65504.0], "FP32": [0.1, -3.4e38], "FP64": [0.1, -1.7e308], "BYTES": ["", "grüße"],
}  # fmt: skip


def raw(datatype: str, values: Any) -> bytes:
    """Values as the protocol has them: raw, little-endian, in C order."""
    array = numpy.asarray(values, object if datatype == "BYTES" else dtype_of(datatype))
    if datatype != "BYTES":
        return array.tobytes()
    return pack_bytes([value.encode() if isinstance(value, str) else value for value in array.ravel().tolist()])


def tensor(name: str, datatype: str, values: Any) -> InferInput:
    shape = numpy.asarray(values, object if datatype == "BYTES" else None).shape
    return InferInput(name, datatype, shape, raw(datatype, values))


def body(*, data: Any = (1, 2), **changes: Any) -> dict[str, Any]:
    """A request that is right, as JSON has it, but for what is changed in its input."""
    return {"inputs": [{"name": "x", "datatype": "INT32", "shape": [1, 2], "data": data, **changes}]}


def parse(told: Any, **headers: Any) -> InferRequest:
    sent = told if isinstance(told, bytes) else json.dumps(told).encode()
    return parse_infer(sent, **{"model": "m", "version": "", "limits": LIMITS, **headers})


def answer(*outputs: InferOutput, **fields: Any) -> InferResponse:
    return InferResponse(**{"model": "m", "version": "3", "id": "", "outputs": outputs, **fields})


def output(name: str, datatype: str, values: Any) -> InferOutput:
    return InferOutput(*[getattr(tensor(name, datatype, values), field) for field in InferOutput.__struct_fields__])


def signature(*, batched: bool = True, outputs: tuple[TensorSpec, ...] = (), **inputs: Any) -> Signature:
    """`signature(x=("FP32", (-1, 4)))`, with one output `y` if none is given."""
    specs = tuple(TensorSpec(name, *told) for name, told in inputs.items())
    return Signature(specs, outputs or (TensorSpec("y", "FP32", (-1, 3)),), batched)


@contextlib.contextmanager
def only_refusals() -> Iterator[None]:
    """What happens inside succeeds, or is a BadRequest of the client's fault; nothing else."""
    try:
        yield
    except BadRequest as error:
        if not (400 <= error.status < 500 and str(error)):
            raise AssertionError(f"status {error.status}") from error


SHAPES = npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


@st.composite
def arrays(draw: st.DrawFn, *, plain: bool = False) -> tuple[str, Any]:
    """A datatype and an array of it; `plain`: what JSON can hold, so finite numbers, strings, and no BF16."""
    datatype = draw(st.sampled_from([name for name in DATATYPES if not plain or name != "BF16"]))
    shape = draw(SHAPES)
    if datatype == "BYTES":
        text = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
        values = draw(st.lists(text, min_size=(size := int(numpy.prod(shape))), max_size=size))
        made = numpy.empty(len(values), object)
        made[:] = values if plain else [value.encode() for value in values]
        return datatype, made.reshape(shape)
    elements: Any = None
    if plain and datatype in FLOATS:
        elements = {"allow_nan": False, "allow_infinity": False}
    return datatype, draw(npst.arrays(dtype_of(datatype), shape, elements=elements))
