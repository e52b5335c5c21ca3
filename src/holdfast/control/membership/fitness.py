"""Does a worker fit into the run: the same bits, the same model. Pure.

The first worker that was ready is the measure for all others. What differs is named, each item with
both values, so that nobody has to guess what to change.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.control.membership import blueprint
from holdfast.control.membership.process_names import ProcessNames
from holdfast.control.protocol.messages import Ready

__all__ = ["misfit", "other_data"]


def misfit(first: Ready, other: Ready, cast: ProcessNames) -> tuple[str, str] | None:
    """Say why `other` cannot work beside `first`, as (class of error, sentence); None if it can."""
    items = [
        (name, first.numerics.get(name, "absent"), other.numerics.get(name, "absent"))
        for name in sorted({*first.numerics, *other.numerics})
    ]
    items.append(("golden computation", first.golden, other.golden))
    measure = cast.placed(first.worker)
    numerics = "; ".join(f"{name} is {b}, but {a} on {measure}" for name, a, b in items if a != b)
    if numerics:
        return "NotExact", (
            f"{cast.placed(other.worker)} does not compute the bits of this run: {numerics}. "
            "Start it on a machine, and with settings, where these are the same."
        )
    if (first.model, first.lanes, first.arena_bytes) != (other.model, other.lanes, other.arena_bytes):
        return "OutOfSync", (
            f"{cast.placed(other.worker)} has built something else than {measure}, which was ready first. They differ "
            f"in {_differing(first, other, cast)}. Build model, optimizer and loader alike in every process: no sizes "
            "that are random, or that follow from a rank, a machine or the files it has; and give every machine the "
            "same script, arguments and data."
        )
    return None


def other_data(first: Ready, other: Ready) -> bool:
    """Do they differ in nothing but the data that the script reads?"""
    mine, theirs = blueprint.unpack(first.parts), blueprint.unpack(other.parts)
    if first.model == other.model or (len(mine), len(theirs)) != (first.num_parts, other.num_parts):
        return False
    same = (first.numerics, first.golden, first.lanes) == (other.numerics, other.golden, other.lanes)
    return same and _built(mine) == _built(theirs)


def _built(parts: Sequence[blueprint.Part]) -> list[blueprint.Part]:
    return [part for part in parts if not part[0].startswith("loader ")]


def _differing(first: Ready, other: Ready, cast: ProcessNames) -> str:
    titles = cast.placed(first.worker), cast.placed(other.worker)
    mine, theirs = blueprint.unpack(first.parts), blueprint.unpack(other.parts)
    cut = len(mine) < first.num_parts or len(theirs) < other.num_parts
    if told := blueprint.compared(mine, theirs, titles, cut=cut):
        return told
    known = f"; the first {min(len(mine), len(theirs))} parts are the same" if cut else ""
    return blueprint.compared(_sums(first), _sums(other), titles) + known


def _sums(ready: Ready) -> list[blueprint.Part]:
    """What is left to tell where the parts show nothing."""
    return [
        ("number of parts", str(ready.num_parts)), ("number of lanes", str(ready.lanes)),
        ("bytes of memory", str(ready.arena_bytes)), ("hash of all parts", ready.model),
    ]  # fmt: skip
