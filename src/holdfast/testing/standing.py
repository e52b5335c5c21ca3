"""Where a simulated worker stands in a generation, and what it sees from there: the inputs of the real `core.step`.

It puts them together as the real worker does (`exchange.crew`), the two odd cases included: a generation may begin in
the middle of a step that this host can complete alone. Then all sums of it are here (*carried*), or the host was alone
when it began to finish slices without any (*alone*).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.coordinator.messages import Install
from holdfast.core.step import Board, Place
from holdfast.testing.arena import Arena
from holdfast.testing.ferry import homes

__all__ = ["Standing"]


class Arrivals(Mapping[int, int]):
    """member -> newest step it arrived at, read from the rows of the board."""

    __slots__ = ("_arrived", "_rows")

    def __init__(self, arrived: list[int], rows: dict[int, int]) -> None:
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

    def __init__(self, arena: Arena, step: int) -> None:
        self._arena, self._step = arena, step

    def __contains__(self, slice_: object) -> bool:
        arena, step = self._arena, self._step
        return isinstance(slice_, int) and arena.may_sum(step) and arena.covered(step, slice_)

    def __getitem__(self, index: Any) -> Any:
        return [s for s in range(self._arena.model.slices) if s in self][index]

    def __len__(self) -> int:
        return sum(s in self for s in range(self._arena.model.slices))


class Standing:
    """One worker's place in one generation."""

    def __init__(self, arena: Arena, host: int, worker: int, install: Install) -> None:
        self._arena = arena
        members = install.members
        local = [member for member, at in zip(members, install.hosts, strict=True) if at == host]
        owners = tuple(local[s % len(local)] for s in range(arena.model.slices))
        hosts = sorted(set(install.hosts))
        home: tuple[bool, ...] | None = None
        if install.guide >= 0:
            home = (False,) * arena.model.slices
        elif len(hosts) > 1 or install.summed:
            home = tuple(at == host for at in homes(hosts, arena.model.slices))
        self._place = Place(worker, -1, install.drivers, owners, members, local, home)
        self._arrivals = Arrivals(arena.arrived, dict(zip(members, install.rows, strict=True)))
        step = arena.step()
        self._carried = step if arena.complete(step) else -1
        self._alone = step if self._carried < 0 and max(arena.versions) > step else -1

    def carries(self, step: int) -> bool:
        """Whether the step is finished from sums that are made first, and carried between hosts."""
        return self._carried == step or (self._place.home is not None and self._alone != step)

    def view(self, step: int) -> tuple[Place, Board]:
        """The place, and the board as it is now."""
        arena, place = self._arena, self._place._replace(step=step)
        carries = self.carries(step)
        summed = arena.summed if carries or arena.model.clip else None
        board = Board(arena.model.lanes_at(step), arena.nodes(step), self._arrivals, arena.versions, summed, False)
        if place.home is None:
            return (place._replace(home=(True,) * len(place.owner)) if carries else place), board
        if not carries:
            return place._replace(home=None, members=place.local), board
        gathered = arena.gathered if arena.mergeable(step) else None
        return place, board._replace(covered=Covered(arena, step), gathered=gathered, unknown=arena.unknown(step))
