"""Does a worker fit into the run: the same bits, the same model. Pure.

The first worker that was ready is the measure for all others. What differs is named, each item with
both values, so that nobody has to guess what to change.
"""

from __future__ import annotations

from holdfast.coordinator.messages import Ready

__all__ = ["misfit"]


def misfit(first: Ready, other: Ready) -> tuple[str, str] | None:
    """Say why `other` cannot work beside `first`, as (class of error, sentence); None if it can."""
    items = [
        (name, first.numerics.get(name, "absent"), other.numerics.get(name, "absent"))
        for name in sorted({*first.numerics, *other.numerics})
    ]
    items.append(("golden computation", first.golden, other.golden))
    numerics = _differing(first, items)
    if numerics:
        return "NotExact", (
            f"worker {other.worker} does not compute the bits of this run: {numerics}. "
            "Start it on a machine, and with settings, where these are the same."
        )
    model = _differing(first, [
        ("model", first.model, other.model),
        ("number of lanes", str(first.lanes), str(other.lanes)),
        ("arena", f"{first.arena_bytes} bytes", f"{other.arena_bytes} bytes"),
    ])
    if model:
        return "OutOfSync", (
            f"worker {other.worker} has built something else than the run trains: {model}. "
            "Build model, optimizer and loader alike in every process (no random sizes, no rank-dependent layers)."
        )
    return None


def _differing(first: Ready, items: list[tuple[str, str, str]]) -> str:
    return "; ".join(f"{name} is {b}, but {a} on worker {first.worker}" for name, a, b in items if a != b)
