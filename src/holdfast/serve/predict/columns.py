"""Columns of a data set as inputs of a model: which column is which input, and its values as the input has them."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy

from holdfast.errors import UsageError
from holdfast.model.signature import Signature, TensorSpec, dtype_of
from holdfast.serve.predict.source import Array, UnreadableRows
from holdfast.serve.protocol.requests import InferInput
from holdfast.serve.protocol.tensors import pack_bytes

__all__ = ["Feed", "feeds", "inputs", "item_shape"]

_MOST_SHOWN = 12


class Feed(NamedTuple):
    """One input, and the columns that it is made of: one, or several that have a number each."""

    spec: TensorSpec
    columns: tuple[str, ...]


def item_shape(spec: TensorSpec, *, batched: bool) -> tuple[int, ...]:
    """The shape of one row of an input or output."""
    return spec.shape[1:] if batched else spec.shape


def feeds(signature: Signature, sample: Mapping[str, Array], told: Sequence[str] = ()) -> tuple[Feed, ...]:
    """Which columns are which input. `told`: INPUT=COLUMN,... or COLUMN,... for the only input; `*` and `?` match.

    Columns go to inputs by their names. The only input of a model takes the column that has its shape, or else all that
    have one number a row. Raises UsageError, which names what does not go together.
    """
    given = _told(signature, sample, told)
    found = []
    for spec in signature.inputs:
        if spec.datatype == "BF16":
            raise UsageError(f"Input {spec.name} is BF16, which no data set has. Export the model with FP32 inputs.")
        columns = given.get(spec.name) or _own(spec, signature, sample)
        problem = _problem(spec, columns, sample, batched=signature.batched)
        if problem:
            raise UsageError(
                f"Input {spec.name} of the model {problem}. The data has {_shown(sample)}. Say which columns it is "
                f"made of with --columns {spec.name}=COLUMN,COLUMN,..."
            )
        found.append(Feed(spec, columns))
    return tuple(found)


def _told(signature: Signature, sample: Mapping[str, Array], told: Sequence[str]) -> dict[str, tuple[str, ...]]:
    given: dict[str, tuple[str, ...]] = {}
    names = [spec.name for spec in signature.inputs]
    for text in told:
        name, equals, listed = text.partition("=")
        if not equals or name not in names:
            if len(names) > 1 or (equals and name not in sample):
                there = ", ".join(names)
                raise UsageError(f"--columns {text}: there is no such input; there is {there}. Write INPUT=COLUMN.")
            name, listed = names[0], text
        chosen: list[str] = []
        for pattern in listed.split(","):
            matching = [pattern] if pattern in sample else fnmatch.filter(sample, pattern)
            if not matching:
                raise UsageError(f"--columns {text}: there is no column {pattern!r}. The data has {_shown(sample)}.")
            chosen += [column for column in matching if column not in chosen]
        given[name] = (*given.get(name, ()), *chosen)
    return given


def _own(spec: TensorSpec, signature: Signature, sample: Mapping[str, Array]) -> tuple[str, ...]:
    """The columns of an input of which nothing was said."""
    if spec.name in sample or len(signature.inputs) > 1:
        return (spec.name,) if spec.name in sample else ()
    fitting = [name for name in sample if not _problem(spec, (name,), sample, batched=signature.batched)]
    if len(fitting) == 1:
        return (fitting[0],)
    return tuple(name for name, array in sample.items() if array.ndim == 1 and array.dtype.kind in "biuf")


def _problem(spec: TensorSpec, columns: Sequence[str], sample: Mapping[str, Array], *, batched: bool) -> str:
    """Why an input cannot be made of these columns, as far as a few rows tell; empty where it can."""
    want = item_shape(spec, batched=batched)
    if not columns:
        return "has no column"
    texts = [name for name in columns if sample[name].dtype.kind not in "biufO"]
    if texts:
        return f"takes no column like {texts[0]}"
    if spec.datatype == "BYTES":
        numbers = [name for name in columns if sample[name].dtype.kind != "O"]
        if numbers:
            return f"takes texts, and {numbers[0]} has none"
    else:
        for name in columns:
            if sample[name].dtype.kind == "O" and any(isinstance(value, (str, bytes)) for value in sample[name]):
                return f"takes numbers, and {name} has texts"
    first = sample[columns[0]]
    if len(columns) == 1:
        if first.dtype.kind == "O" and spec.datatype != "BYTES":
            return ""  # lists of several lengths: each row is looked at when it is computed
        shape = first.shape[1:]
        return "" if _reshaped(shape, want) is not None else f"takes {list(want)}, and {columns[0]} has {list(shape)}"
    lists = [name for name in columns if sample[name].ndim > 1]
    if lists:
        return f"is to be made of {len(columns)} columns, and {lists[0]} has more than one number a row"
    if _reshaped((len(columns),), want) is None:
        return f"takes {math.prod(want)} numbers, {list(want)}, and there are {len(columns)} columns for it"
    return ""


def _reshaped(shape: tuple[int, ...], want: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape that values get which have another one, so that they fit; None where they cannot."""
    if TensorSpec("", "FP32", want).fits(shape):
        return shape
    if -1 in want:
        return None
    return want if math.prod(shape) == math.prod(want) else None


def _shown(sample: Mapping[str, Array]) -> str:
    """The columns, as a sentence names them."""
    told = [f"{name} {list(array.shape[1:])}" if array.ndim > 1 else name for name, array in sample.items()]
    more = f", ... ({len(told)} columns)" if len(told) > _MOST_SHOWN else ""
    return (", ".join(told[:_MOST_SHOWN]) or "no column of numbers or texts") + more


def inputs(feeding: Sequence[Feed], rows: Mapping[str, Array], *, batched: bool) -> tuple[InferInput, ...]:
    """These rows as inputs of the model; of a model without batches it is one row. Raises UnreadableRows."""
    made = []
    for spec, columns in feeding:
        arrays = [_numbers(name, rows[name]) if spec.datatype != "BYTES" else rows[name] for name in columns]
        array = arrays[0] if len(arrays) == 1 else numpy.stack(arrays, axis=1)
        shape = _reshaped(array.shape[1:], item_shape(spec, batched=batched))
        if shape is None:
            want = list(item_shape(spec, batched=batched))
            raise UnreadableRows(f"{columns[0]} has {list(array.shape[1:])}, and input {spec.name} takes {want}")
        whole = (len(array), *shape) if batched else shape
        if spec.datatype == "BYTES":
            made.append(InferInput(spec.name, "BYTES", whole, _texts(columns[0], array)))
        else:
            cast = numpy.ascontiguousarray(_cast(spec, array)).reshape(-1)
            made.append(InferInput(spec.name, spec.datatype, whole, cast.view("u1").data))
    return tuple(made)


def _numbers(name: str, array: Array) -> Array:
    if array.dtype.kind == "O":  # lists that differ in length, or are missing
        try:
            array = numpy.stack([numpy.asarray(value) for value in array])
        except ValueError:
            raise UnreadableRows(f"the lists of {name} differ in length") from None
    if array.dtype.kind not in "biuf":
        raise UnreadableRows(f"{name} is no number")
    return array


def _cast(spec: TensorSpec, array: Array) -> Array:
    """The same numbers in the type of the input; none is rounded to another whole number, or becomes infinite."""
    wanted = dtype_of(spec.datatype)
    if array.dtype == wanted:
        return array
    with numpy.errstate(invalid="ignore", over="ignore"):
        cast: Array = array.astype(wanted)
        wrong = cast != array if wanted.kind in "biu" else numpy.isinf(cast) & numpy.isfinite(array)
    if wrong.any():
        value = array[wrong].reshape(-1)[0]
        raise UnreadableRows(f"{value} is no value of {spec.datatype}, as input {spec.name} takes")
    return cast


def _texts(name: str, array: Array) -> bytes:
    values = []
    for value in array.reshape(-1).tolist():
        if not isinstance(value, (str, bytes)):
            raise UnreadableRows(f"{name} is no text")
        values.append(value.encode() if isinstance(value, str) else value)
    return pack_bytes(values)
