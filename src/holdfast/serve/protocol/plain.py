"""`POST /predict`: the JSON that somebody writes who knows the model and no protocol.

    {"x": [[5.1, 3.5, 1.4, 0.2]]}                       by the inputs' names
    {"inputs": {"x": ...}}, {"inputs": [[...]]}         the same within `inputs`
    {"instances": [[...], [...]]}                       item by item: values, or objects by name
    [[5.1, 3.5, 1.4, 0.2]]                              just the values, where there is one input

One item may come without the dimension that counts items; the answer has none then, either. An item may also be flat,
or lack dimensions of size 1, where that leaves no doubt about its shape. Where a list could be one item or several, it
is one item.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import msgspec
import numpy

from holdfast.model.signature import Signature, TensorSpec, dtype_of
from holdfast.serve.protocol.binary import inflate
from holdfast.serve.protocol.errors import BadRequest, malformed, shown
from holdfast.serve.protocol.limits import ProtocolLimits
from holdfast.serve.protocol.requests import Buffer, InferInput, InferOutput, InferRequest, InferResponse
from holdfast.serve.protocol.rest import check_json_size
from holdfast.serve.protocol.tensors import check_lengths, elements, pack, pack_bytes, place, unpack

__all__ = ["PlainRequest", "encode_predict", "parse_predict"]

#: Classes in an answer: the most likely ones.
_MOST_CLASSES = 10
#: What a value may be in JSON; of the other datatypes: any number.
_WRITTEN: dict[str, set[type]] = {"BOOL": {bool, int}, "BYTES": {str}}


_Values = dict[str, tuple[object, str]]


class PlainRequest(NamedTuple):
    """A request for inference, and whether it came as one item without the dimension that counts them."""

    request: InferRequest  #: its inputs stand in the signature's order; `fit` has no objection but the number of items
    single: bool


class _Form(NamedTuple):
    """What is known of how values come before they are looked at."""

    batched: bool  #: the model's first dimension counts items
    listed: bool  #: it is a list of items, so none can have been left out


class _Given(NamedTuple):
    """One input: its bytes, and how they came."""

    input: InferInput
    single: bool


def parse_predict(
    body: Buffer, signature: Signature, *, model: str, version: str, limits: ProtocolLimits, encoding: str | None = None
) -> PlainRequest:
    """The request that a body of plain JSON is. Raises BadRequest, and nothing else, where it is none.

    >>> signature = Signature((TensorSpec("x", "INT8", (-1, 2)),), ())
    >>> found = parse_predict(b"[1, 2]", signature, model="m", version="", limits=ProtocolLimits())
    >>> found.request.inputs[0].shape, found.single
    ((1, 2), True)
    """
    body = inflate(body, encoding, limits)
    check_json_size(body, limits)
    try:
        sent = msgspec.json.decode(body)
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise malformed(error, "body") from None
    values, listed = _by_name(sent, signature)
    given = [_given(*values[spec.name], spec, _Form(signature.batched, listed), limits) for spec in signature.inputs]
    singles = {item.single for item in given}
    if len(singles) > 1:
        few = [shown(item.input.name) for item in given if item.single]
        raise BadRequest(400, f"{', '.join(few)} is one item, and the others are lists of items", "body")
    inputs = tuple(item.input for item in given)
    if signature.batched and len(counts := {item.shape[0] for item in inputs}) > 1:
        told = ", ".join(map(str, sorted(counts)))
        raise BadRequest(400, f"the inputs have {told} items: all have the same number", "body")
    return PlainRequest(InferRequest(model, version, "", inputs), singles == {True})


def _by_name(told: object, signature: Signature) -> tuple[_Values, bool]:
    """Each input's values, and where they stand in the body; and whether they are lists of items for certain."""
    names = [spec.name for spec in signature.inputs]
    if isinstance(told, dict) and not (told and all(name in names for name in told)):
        if "inputs" in told:
            _only(told, "inputs")
            return _named(told["inputs"], names, "inputs"), False
        if "instances" in told:
            _only(told, "instances")
            return _columns(told["instances"], names), True
    return _named(told, names, ""), False


def _only(told: Mapping[str, object], key: str) -> None:
    for name in told:
        if name != key:
            raise BadRequest(400, f"does not belong beside {shown(key)}", _field("", name))


def _named(told: object, names: Sequence[str], field: str) -> _Values:
    if not isinstance(told, dict):
        if len(names) != 1:
            raise BadRequest(400, f"has no names, and the model has inputs {', '.join(names)}", field or "body")
        return {names[0]: (told, field or "body")}
    for name in told:
        if name not in names:
            there = ", ".join(map(shown, names))
            raise BadRequest(400, f"is no input of the model; it has {there}", _field(field, name))
    for name in names:
        if name not in told:
            raise BadRequest(400, "is missing", _field(field, name))
    return {name: (told[name], _field(field, name)) for name in names}


def _columns(told: object, names: Sequence[str]) -> _Values:
    if not isinstance(told, list) or not told:
        raise BadRequest(400, "is no list of items", "instances")
    if not isinstance(told[0], dict):
        return _named(told, names, "instances")
    rows = []
    for k, row in enumerate(told):
        if not isinstance(row, dict):
            raise BadRequest(400, "has no names, and the first item has", f"instances[{k}]")
        rows.append(_named(row, names, f"instances[{k}]"))
    return {name: ([row[name][0] for row in rows], f"instances[...].{name}") for name in names}


def _field(outer: str, name: str) -> str:
    told = name if name.isidentifier() and len(name) <= 64 else shown(name)
    return f"{outer}.{told}" if outer else told


def _given(value: object, field: str, spec: TensorSpec, form: _Form, limits: ProtocolLimits) -> _Given:
    values, shape = _flattened(value, field, limits)
    found = _meant(tuple(shape), spec, form)
    if found is None:
        told = f"has shape {shape}; {shown(spec.name)} is {list(spec.shape)}"
        raise BadRequest(400, told + ", -1 being any size" * (-1 in spec.shape), field)
    meant, single = found
    if form.batched and not meant[0]:
        raise BadRequest(400, "has no items", field)
    elements(spec.datatype, meant, field, limits)
    return _Given(InferInput(spec.name, spec.datatype, meant, _packed(values, shape, spec, field, limits)), single)


def _flattened(value: object, field: str, limits: ProtocolLimits) -> tuple[list[Any], list[int]]:
    """All values in one list, and the shape in which they are nested. No list may be longer than another beside it."""
    values: list[Any] = [value]
    shape: list[int] = []
    while values and type(values[0]) is list:
        if len(shape) == limits.dims:
            raise BadRequest(400, f"is nested deeper than {limits.dims}", field)
        size = len(values[0])
        for k, inner in enumerate(values):
            if type(inner) is not list or len(inner) != size:
                what = f"has {len(inner)} values" if type(inner) is list else "is no list"
                where = field + place(k, shape)
                raise BadRequest(400, f"{what}, and the first list there has {size} values", where)
        shape.append(size)
        values = list(chain.from_iterable(values))
    return values, shape


def _meant(shape: tuple[int, ...], spec: TensorSpec, form: _Form) -> tuple[tuple[int, ...], bool] | None:
    """The shape that is meant, with the dimension that counts items, and whether that was left out."""
    if not form.batched:
        return (shape, False) if spec.fits(shape) else _filled(shape, spec.shape, False)
    item = TensorSpec("", spec.datatype, spec.item())
    if item.fits(shape) and not form.listed:
        return (1, *shape), True
    if spec.fits(shape):
        return shape, False
    one = None if form.listed else _filled(shape, item.shape, True)
    return one if one is not None or not shape else _filled(shape, item.shape, False, shape[:1])


def _filled(
    shape: tuple[int, ...], want: tuple[int, ...], single: bool, items: tuple[int, ...] = ()
) -> tuple[tuple[int, ...], bool] | None:
    """The same for values that are flat, or lack dimensions of size 1. Nothing is guessed where a size may vary."""
    given = shape[len(items) :]
    if -1 in want or math.prod(given) != math.prod(want):
        return None
    if len(given) != 1 and [size for size in given if size != 1] != [size for size in want if size != 1]:
        return None
    return (*((1,) if single else items), *want), single


def _packed(values: list[Any], shape: Sequence[int], spec: TensorSpec, field: str, limits: ProtocolLimits) -> bytes:
    datatype = spec.datatype
    if datatype == "BF16":
        raise BadRequest(400, f"{shown(spec.name)} is BF16, which travels as bytes only", field)
    kinds = set(map(type, values))
    allowed = _WRITTEN.get(datatype, {int, float})
    if kinds - allowed:
        k = next(k for k, value in enumerate(values) if type(value) not in allowed)
        kind = {bool: "true or false", str: "a string", type(None): "null", dict: "an object", list: "a list"}
        what = kind.get(type(values[k]), "a number")
        raise BadRequest(400, f"is {what}, and {shown(spec.name)} is {datatype}", field + place(k, shape))
    if datatype == "BYTES":
        encoded = [value.encode() for value in values]
        check_lengths(encoded, field, shape, limits)
        return pack_bytes(encoded)
    if datatype not in ("FP16", "FP32", "FP64") and kinds - {bool}:
        for k, value in enumerate(values):
            if value != int(value) or (datatype == "BOOL" and value not in (0, 1)):
                raise BadRequest(400, f"{shown(value)} is no value of {datatype}", field + place(k, shape))
        values = list(map(int, values))
    return pack(datatype, values, shape, field)


def encode_predict(response: InferResponse, signature: Signature, single: bool, classes: Sequence[str] = ()) -> bytes:
    """The body of the answer: `{"outputs": {name: values}, "model": ..., "version": ...}`.

    Where the model has classes, and the first output is a row of finite numbers with one for each, it also says `label`
    and the `probabilities` of the most likely classes: the numbers themselves if they are probabilities already, else
    their softmax, as `probabilities_from` says. For several items these are lists.

    Raises:
        BadRequest: an output is not UTF-8, or BF16.
    """
    told: dict[str, Any] = {}
    for output in response.outputs:
        values = unpack(output.name, output.datatype, output.data)
        told[output.name] = _nested(values, output.shape[1:] if single and signature.batched else output.shape)
    answer: dict[str, Any] = {"outputs": told, "model": response.model, "version": response.version}
    if classes and signature.batched and response.outputs:
        answer |= _labels(response.outputs[0], classes, single)
    return msgspec.json.encode(answer)


def _nested(values: list[Any], shape: Sequence[int]) -> Any:
    for size in reversed(shape[1:]):
        if not size:
            return numpy.empty(shape, bool).tolist()  # no values at all: only lists
        values = [values[k : k + size] for k in range(0, len(values), size)]
    return values if shape else values[0]


def _labels(output: InferOutput, classes: Sequence[str], single: bool) -> dict[str, Any]:
    if output.datatype not in ("FP16", "FP32", "FP64") or output.shape[1:] != (len(classes),):
        return {}
    scores = numpy.frombuffer(output.data, dtype_of(output.datatype)).reshape(output.shape).astype(numpy.float64)
    if not numpy.isfinite(scores).all():
        return {}
    given = bool((scores >= 0).all() and (abs(scores.sum(axis=1) - 1) < 1e-3).all())
    if not given:
        scores = numpy.exp(scores - scores.max(axis=1, keepdims=True))
        scores /= scores.sum(axis=1, keepdims=True)
    order = (-scores).argsort(axis=1, kind="stable")[:, :_MOST_CLASSES]
    labels = [classes[best[0]] for best in order]
    likely = [{classes[k]: float(row[k]) for k in best} for row, best in zip(scores, order, strict=True)]
    return {
        "label": labels[0] if single else labels, "probabilities": likely[0] if single else likely,
        "probabilities_from": "output" if given else "softmax of output",
    }  # fmt: skip
