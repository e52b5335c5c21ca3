"""Observation: the signature of a model, from what comes out of it for an example and for others of other sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from holdfast.errors import NotExportable, UsageError
from holdfast.model.example import Example, of_size
from holdfast.model.signature import Signature, TensorSpec

__all__ = ["Shapes", "check_variable", "observe", "varying"]

#: Output -> datatype and shape, in order.
Shapes = Mapping[str, tuple[str, tuple[int, ...]]]
_MANY, _MORE = 2, 3  #: items. Not one: what is computed for one item may look as if it did not depend on the number


def observe(
    what: str, answer: Callable[[Example], Shapes], example: Example, variable: Mapping[str, tuple[int, ...]],
    *, batched: bool = True,
) -> Signature:  # fmt: skip
    """The signature of `what`; `variable` names dimensions of inputs, besides the first, that may have any size.

    Raises:
        NotExportable: outputs do not have an item for each item that goes in.
        UsageError: the inputs of the example do not agree on their number of items.
    """
    if batched and not example.rows():
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in example.arrays.items())
        raise UsageError(
            f"The inputs of the example do not agree on how many items they have: {shapes}. Their first dimension "
            "counts items; for a model that takes one request at a time, say --unbatched (batched=False)."
        )
    one = answer(of_size(example, _MANY if batched else -1))
    other = answer(of_size(example, _MORE if batched else -1, variable))
    outputs = []
    for name, (datatype, shape) in one.items():
        again = other[name][1] if name in other else ()
        if len(shape) != len(again):
            raise NotExportable(
                what, f"its output {name} has {len(shape)} dimensions once and {len(again)} another time",
                "Let it return the same dimensions for every request.",
            )  # fmt: skip
        if batched and (shape[:1] != (_MANY,) or again[:1] != (_MORE,)):
            raise NotExportable(
                what, f"its output {name} has the shape {list(shape)} for {_MANY} items and {list(again)} for {_MORE}: "
                "its first dimension does not count items",
                "Return only what has an entry for each item; for a model that takes one request at a time, say "
                "--unbatched (batched=False).",
            )  # fmt: skip
        sizes = tuple(size if size == now else -1 for size, now in zip(shape, again, strict=True))
        outputs.append(TensorSpec(name, datatype, sizes))
    free = varying(example, variable, batched=batched)
    inputs = [
        TensorSpec(
            name, example.datatypes[name],
            tuple(-1 if at in free[name] else size for at, size in enumerate(array.shape)),
        )
        for name, array in example.arrays.items()
    ]  # fmt: skip
    return Signature(tuple(inputs), tuple(outputs), batched)


def varying(example: Example, variable: Mapping[str, tuple[int, ...]], *, batched: bool) -> dict[str, tuple[int, ...]]:
    """The dimensions of each input that may have any size."""
    first = (0,) if batched else ()
    return {name: (*first, *(at for at in variable.get(name, ()) if at not in first)) for name in example.arrays}


def check_variable(example: Example, variable: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse dimensions that are not there. Raises UsageError."""
    for name, dimensions in variable.items():
        if name not in example.arrays:
            raise UsageError(f"There is no input {name}. The inputs are {', '.join(example.arrays)}.")
        for at in dimensions:
            if not 0 <= at < example.arrays[name].ndim:
                shape = list(example.arrays[name].shape)
                raise UsageError(f"Input {name} has the shape {shape}, and no dimension {at}; they count from 0.")
