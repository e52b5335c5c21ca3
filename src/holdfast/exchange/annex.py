"""The annex: memory that a mode other than `exact` needs besides the arena that all modes share.

What a run is started with has its sections in the arena itself. When the mode changes while the run is going, the new
one gets an annex behind the arena, in the same descriptor; the one before it is still in use then, so two of them take
turns. Pages that nobody touches take no memory, and those of a mode that is over are given back.
"""

from __future__ import annotations

from holdfast.core.clocks import Mode
from holdfast.exchange import buffers, pushslots
from holdfast.exchange.pushes import pushes_bytes
from holdfast.exchange.space import Space
from holdfast.transport.arena import Sections

__all__ = ["add_sections", "names", "place"]


def add_sections(
    sections: Sections, space: Space, num_lanes: int, mode: Mode, turns: int, *, reads: bool = False
) -> None:
    """Lay out what a mode needs. `turns` is how many records of the buffers the arena has for each lane.

    With `reads`, also the parameters that pushes were computed from.
    """
    if mode.exact:
        return
    sections.add("pushes", pushes_bytes(num_lanes, mode.depth))
    pushslots.add_sections(sections, space, num_lanes, mode.depth, reads=reads)
    if mode.depth > turns:
        buffers.add_records(sections, space, num_lanes, mode.depth)


def names(sections: Sections) -> list[str]:
    """Those of its sections that hold nothing which outlives a mode."""
    return [name for name in sections.spans if name.startswith(("push", "read/"))]


def place(first: int, size: int, taken: tuple[int, int]) -> int:
    """Where an annex of `size` bytes begins: as low as may be from `first` on, but clear of `taken` (begin, size).

    >>> place(100, 30, (0, 0)), place(100, 30, (100, 20)), place(100, 30, (120, 50)), place(100, 30, (130, 50))
    (100, 120, 170, 100)
    """
    begin, length = taken
    if not length or begin - first >= size:
        return first
    return begin + length
