"""What a simulated worker sees of a step: the inputs of the real `core.sync.exact`, from a pretended arena."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from holdfast.control.protocol.messages import Install
from holdfast.core.roles import Role
from holdfast.core.sync.exact import BoardView, StepView
from holdfast.testing.fake_arena import FakeArena
from holdfast.testing.fake_session import homes

__all__ = ["FakeView"]


class Arrivals(Mapping[int, int]):
    """member -> newest step it arrived at, read from the rows of the board."""

    __slots__ = ("_arrived", "_rows")

    def __init__(self, arrived: list[int], rows: Mapping[int, int]) -> None:
        self._arrived, self._rows = arrived, rows

    def __getitem__(self, member: int) -> int:
        return self._arrived[self._rows[member]]

    def get(self, member: int, default: Any = None) -> Any:
        return self._arrived[self._rows[member]]

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


class Covered(Sequence[int]):
    """Slices whose partial sums are here from all lanes; looked up only where it matters."""

    __slots__ = ("_arena", "_step")

    def __init__(self, arena: FakeArena, step: int) -> None:
        self._arena, self._step = arena, step

    def __contains__(self, slice_: object) -> bool:
        arena, step = self._arena, self._step
        return isinstance(slice_, int) and arena.may_sum(step) and arena.covered(step, slice_)

    def __getitem__(self, index: Any) -> Any:
        return [s for s in range(self._arena.model.slices) if s in self][index]

    def __len__(self) -> int:
        return sum(s in self for s in range(self._arena.model.slices))


class FakeView:
    """What one worker sees in one generation, from where it stands (`core.roles`)."""

    def __init__(self, arena: FakeArena, worker: int, install: Install) -> None:
        self._arena = arena
        crew = replace(
            install.assignment(arena.model.slices), primary=None
        )  # steps are exact ones here, whatever the mode
        share = partial(homes, slices=arena.model.slices)
        self._at = Role.of(worker, crew, share, arena.versions, complete=arena.complete(arena.step()))
        self._arrivals = Arrivals(arena.arrived, self._at.rows)
        self._closings = Arrivals(arena.closed, self._at.rows)

    def carries(self, step: int) -> bool:
        """Whether the step is finished from sums that are made first, and carried between hosts."""
        return self._at.sums(step)

    def view(self, step: int, *, closing: bool) -> tuple[StepView, BoardView]:
        """The place, and the board as it is now."""
        arena, at, model = self._arena, self._at, self._arena.model
        summed = arena.summed if at.sums(step) or model.clip or model.by_steps else None
        board = BoardView(
            arena.lanes_at(step), arena.nodes(step), self._arrivals, arena.versions, summed, False,
            closed=self._closings if model.by_steps else None,
        )
        if not at.apart(step):
            gathered = arena.gathered if arena.mergeable(step) else None
            board = board._replace(covered=Covered(arena, step), gathered=gathered, unknown=arena.unknown(step))
        return at.place(step, closing=closing), board
