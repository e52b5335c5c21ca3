"""Mode sections: memory that a mode other than `exact` needs besides the arena that all modes share.

What a run is started with has its sections in the arena itself. When the mode changes while the run is going, the new
one gets mode sections behind the arena, in the same descriptor; memory of the mode before it is given back. How
they are laid out follows from the mode and a few numbers (`ModeRoom`), so the holder of the memory can do it. No torch
here.

With local steps the owners run another optimizer than the script's. What that one keeps lies here (`outer/`), as does
what each lane's optimizer keeps (`inner/`). The place of the owners' state in other modes is left as it is meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from holdfast.core.sync.modes import Mode
from holdfast.dataplane.memory.arena import Sections
from holdfast.dataplane.relaxed.inner_state import SINCE
from holdfast.dataplane.relaxed.pushes import pushes_bytes

__all__ = ["ModeRoom", "add_sections", "passing"]


class ModeRoom(NamedTuple):
    """What the size of mode sections depends on, besides its mode. All numbers are bytes, but for counts."""

    lanes: int
    flats: Mapping[str, int]  #: dtype -> trainable parameters of it
    entries: int  #: trainable parameters
    reads: bool = False  #: also the parameters that a push was computed from are kept
    state: int = 0  #: what a lane's optimizer keeps, with local steps
    outer: Mapping[str, int] = {}  #: sections of the owners' optimizer, with local steps


def add_sections(sections: Sections, room: ModeRoom, mode: Mode) -> None:
    """Lay out what a mode needs: a push of each lane, and their clocks."""
    if mode.exact:
        return
    lanes = room.lanes
    sections.add("pushes", pushes_bytes(lanes))
    for name, size in room.flats.items():
        for kind in ("push", "read") if room.reads and not mode.rounds else ("push",):
            for lane in range(lanes):
                sections.add(f"{kind}/{lane}/{name}", size)
    sections.add("push-present", lanes * max(1, room.entries))
    if mode.rounds:
        for name, size in room.outer.items():
            sections.add(f"outer/{name}", size)
        sections.add(SINCE, 8)
        for lane in range(lanes):
            for turn in range(2):
                sections.add(f"inner/{lane}/{turn}", room.state)


def passing(section: str) -> bool:
    """Does this section hold nothing that outlives a mode?"""
    return section.startswith(("push", "read/", "outer/", "inner/"))
