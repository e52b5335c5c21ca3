"""Is what another machine says of a batch possible? What comes from a network is looked at before it is used. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy

from holdfast.model.signature import DATATYPES, Signature, TensorSpec
from holdfast.serve.replica.messages import Compute, Computed, Loaded, Placed, Raised

__all__ = ["answer_problem", "extent", "loaded_problem", "request_problem"]


def extent(tensors: Sequence[Placed]) -> int:
    """How many bytes of the memory hold these tensors."""
    return max((one.begin + one.size for one in tensors), default=0)


def loaded_problem(loaded: Loaded) -> str:
    """What cannot be of a replica that says it is ready; empty: nothing."""
    if all(items > 0 and 0.0 <= seconds < math.inf for items, seconds in loaded.measured):
        return ""
    return f"it says that batches have taken {loaded.measured}"


def request_problem(compute: Compute, size: int) -> str:
    """What cannot be of a batch that came with so many bytes; empty: nothing."""
    return next((text for one in compute.inputs if (text := _place_problem("an input", one, size))), "")


def answer_problem(answer: Computed | Raised, asked: Compute | None, signature: Signature, size: int) -> str:
    """What cannot be of an answer to this batch that came with so many bytes; empty: nothing."""
    if asked is None or answer.number != asked.number:
        due = "none is due" if asked is None else f"that to batch {asked.number} is due"
        return f"it answers batch {answer.number}, and {due}"
    if isinstance(answer, Raised):
        return ""
    if len(answer.outputs) != len(signature.outputs):
        return f"it gives {len(answer.outputs)} outputs, and its signature has {len(signature.outputs)}"
    items = asked.inputs[0].shape[0] if signature.batched else 1
    for spec, one in zip(signature.outputs, answer.outputs, strict=True):
        if problem := _tensor_problem(spec, one, items if signature.batched else None, size):
            return problem
    return ""


def _tensor_problem(spec: TensorSpec, one: Placed, items: int | None, size: int) -> str:
    what = f"output {spec.name}"
    if problem := _place_problem(what, one, size):
        return problem
    if not spec.fits(one.shape) or any(length < 0 for length in one.shape):
        return f"{what} has the shape {list(one.shape)}, and its signature says {list(spec.shape)}"
    if items is not None and one.shape[0] != items:
        return f"{what} has {one.shape[0]} items, and the batch has {items}"
    if spec.datatype != "BYTES":
        wanted = math.prod(one.shape) * numpy.dtype(DATATYPES[spec.datatype]).itemsize
        return "" if one.size == wanted else f"{what} has {one.size} bytes, and its shape takes {wanted}"
    if one.size and (not one.ends or one.ends[-1] != one.size or (items is not None and len(one.ends) != items)):
        return f"{what} does not say where its items end"
    if list(one.ends) != sorted(one.ends) or (one.ends and one.ends[0] < 0):
        return f"{what} has items that end before they begin"
    return ""


def _place_problem(what: str, one: Placed, size: int) -> str:
    if one.begin >= 0 and one.size >= 0 and one.begin + one.size <= size:
        return ""
    return f"{what} is said to lie at {one.begin} to {one.begin + one.size}, of {size} bytes"
