"""Is this a request that the model can answer? A request is compared with the model's signature, once."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from holdfast.model.signature import Signature, TensorSpec
from holdfast.serve.protocol.errors import BadRequest, shown
from holdfast.serve.protocol.limits import ProtocolLimits
from holdfast.serve.protocol.requests import Buffer, InferInput, InferRequest
from holdfast.serve.protocol.tensors import ITEMSIZE, check_raw, pack_bytes

__all__ = ["Fitted", "fit"]


class Fitted(NamedTuple):
    """A request whose inputs stand in the signature's order."""

    request: InferRequest
    items: int  #: how many items it has; 1 where the model is not batched


def fit(request: InferRequest, signature: Signature, limits: ProtocolLimits | None = None) -> Fitted:
    """The request as the model takes it. Raises BadRequest where it does not.

    >>> signature = Signature((TensorSpec("x", "UINT8", (-1, 2)),), (TensorSpec("y", "FP32", (-1, 3)),))
    >>> fit(InferRequest("m", "", "", (InferInput("x", "UINT8", (1, 2), b"ab"),)), signature).items
    1
    """
    specs = signature.inputs
    ordered: tuple[InferInput, ...]
    inputs = request.inputs
    if len(inputs) == 1 and not inputs[0].name:
        inputs = (_whole_body(inputs[0].data, signature, limits or ProtocolLimits()),)
    if len(inputs) == 1 == len(specs):
        ordered, items = inputs, _check(inputs[0], specs[0], "inputs[0]", signature)
    else:
        ordered, items = _in_order(inputs, signature)
    _check_outputs(request, signature)
    if all(map(operator.is_, ordered, request.inputs)):
        return Fitted(request, items)
    return Fitted(msgspec.structs.replace(request, inputs=ordered), items)


def _in_order(inputs: Sequence[InferInput], signature: Signature) -> tuple[tuple[InferInput, ...], int]:
    places: dict[str, int] = {}
    items = 0
    for k, item in enumerate(inputs):
        spec = signature.input(item.name)
        if spec is None:
            raise _unknown(item.name, signature.inputs, f"inputs[{k}].name")
        if item.name in places:
            raise BadRequest(400, f"{shown(item.name)} is there twice, at {places[item.name]} too", f"inputs[{k}].name")
        found = _check(item, spec, f"inputs[{k}]", signature)
        if places and found != items:
            first = inputs[next(iter(places.values()))]
            raise BadRequest(
                400, f"has {found} items, and {shown(first.name)} has {items}: all inputs have the same number",
                f"inputs[{k}].shape",
            )  # fmt: skip
        places[item.name], items = k, found
    missing = [spec.name for spec in signature.inputs if spec.name not in places]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise BadRequest(400, f"{', '.join(map(shown, missing))} {verb} missing", "inputs")
    return tuple(inputs[places[spec.name]] for spec in signature.inputs), items


def _check(item: InferInput, spec: TensorSpec, field: str, signature: Signature) -> int:
    """How many items an input has that is what it should be."""
    if item.name != spec.name:
        raise _unknown(item.name, signature.inputs, f"{field}.name")
    if item.datatype != spec.datatype:
        raise BadRequest(400, f"is {item.datatype}; {shown(spec.name)} is {spec.datatype}", f"{field}.datatype")
    shape, want = item.shape, spec.shape
    if shape != want and not spec.fits(shape):
        told = f"is {list(shape)}; {shown(spec.name)} is {list(want)}{', -1 being any size' if -1 in want else ''}"
        if signature.batched and TensorSpec(spec.name, spec.datatype, spec.item()).fits(shape):
            told += f". The first dimension counts items: send one item as {[1, *shape]}"
        raise BadRequest(400, told, f"{field}.shape")
    if not signature.batched:
        return 1
    if not shape[0]:
        raise BadRequest(400, f"is {list(shape)}: there are no items", f"{field}.shape")
    return shape[0]


def _check_outputs(request: InferRequest, signature: Signature) -> None:
    seen: set[str] = set()
    for k, asked in enumerate(request.outputs):
        spec = signature.output(asked.name)
        if spec is None:
            raise _unknown(asked.name, signature.outputs, f"outputs[{k}].name")
        if asked.name in seen:
            raise BadRequest(400, f"{shown(asked.name)} is asked for twice", f"outputs[{k}].name")
        seen.add(asked.name)
        _check_form(spec, asked.binary, f"outputs[{k}]")
    if not request.outputs and not request.binary:
        for spec in signature.outputs:
            _check_form(spec, False, "parameters.binary_data_output")


def _check_form(spec: TensorSpec, binary: bool, field: str) -> None:
    if spec.datatype == "BF16" and not binary:
        raise BadRequest(400, f"{shown(spec.name)} is BF16, which travels as bytes only: ask for binary data", field)


def _unknown(name: str, there: Sequence[TensorSpec], field: str) -> BadRequest:
    return BadRequest(400, f"{shown(name)} is none of {', '.join(shown(spec.name) for spec in there)}", field)


def _whole_body(data: Buffer, signature: Signature, limits: ProtocolLimits) -> InferInput:
    """The one input that a body without JSON is; what of its shape may vary follows from its length."""
    if len(signature.inputs) != 1:
        raise BadRequest(
            400, f"a body without JSON is the one input of a model, and this one has {len(signature.inputs)}",
            "Inference-Header-Content-Length",
        )  # fmt: skip
    (spec,) = signature.inputs
    size = ITEMSIZE[spec.datatype]
    shape = list(spec.shape)
    if not size:
        data, length = pack_bytes([bytes(data)]), 1  # one element, without its length
    else:
        length, rest = divmod(len(data), size)
        if rest:
            raise BadRequest(400, f"has {len(data)} bytes; {spec.datatype} has {size} an element", "body")
    if signature.batched and shape and shape[0] == -1 and -1 in shape[1:]:
        shape[0] = 1
    if shape.count(-1) > 1:
        raise BadRequest(400, f"does not say its shape: {shown(spec.name)} is {list(spec.shape)}", "body")
    if -1 in shape:
        known = math.prod(fixed for fixed in shape if fixed != -1)
        shape[shape.index(-1)] = length // known if known else 0
    count = math.prod(shape)
    check_raw(spec.datatype, shape, count, data, "body", limits)
    return InferInput(spec.name, spec.datatype, tuple(shape), data)
