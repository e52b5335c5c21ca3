"""What the lanes' own optimizers keep between two rounds, with local steps (see `local_sgd`). No torch here.

Each lane's state lies in the sections of its mode, in two places that take turns, one section after the other as the
owners' optimizer has them in other modes. A round that begins with version v finds the state in the place of v and
leaves it in the place of v + 1.

The first round of all begins with the owners' state itself, the same for every lane: as the script's optimizer brought
it along, or as another mode left it. So nothing is copied when local steps begin. When they end, the owners go on with
the mean of all lanes (`merge`): lane by lane, in their order, so it is the same whoever drove them, and on every host
that holds a copy. Where a lane never had a gradient for a parameter it has no state, and does not count for that one.
Counts of steps and the like cannot be averaged; they are those of the first lane that has some.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.dataplane.memory.arena import Sections

__all__ = ["SINCE", "InnerState", "merge", "state_bytes"]

#: The section that says with which version local steps began.
SINCE = "inner/since"

_Numbers = npt.NDArray[Any]
_FLOATS = {"float64": np.float64, "float32": np.float32, "float16": np.float16}


def _spans(sizes: Mapping[str, int]) -> Sections:
    sections = Sections()
    for name, size in sizes.items():
        sections.add(name, size)
    return sections


def state_bytes(sizes: Mapping[str, int]) -> int:
    """How much one lane keeps, given the sections of the owners' state and their bytes."""
    return _spans(sizes).size


class InnerState:
    """The states of all lanes. `sizes` are the sections of the owners' state; `section` finds the bytes of any."""

    def __init__(self, section: Callable[[str], memoryview], sizes: Mapping[str, int]) -> None:
        self._section, self._spans = section, _spans(sizes).spans
        self._since = section(SINCE).cast("q")

    @property
    def since(self) -> int:
        """The version with which local steps began."""
        return self._since[0]

    def begin(self, version: int) -> None:
        """Local steps begin with this version."""
        self._since[0] = version

    def owners(self) -> dict[str, memoryview]:
        """The state that the owners have in other modes."""
        return {name: self._section(name) for name in self._spans}

    def at(self, lane: int, version: int) -> dict[str, memoryview]:
        """With what a round of a lane begins, at this version."""
        return self.owners() if version == self.since else self.after(lane, version - 1)

    def after(self, lane: int, version: int) -> dict[str, memoryview]:
        """Where the round that began with this version leaves its state."""
        state = self._section(f"inner/{lane}/{(version + 1) % 2}")
        return {name: state[begin : begin + size] for name, (begin, size) in self._spans.items()}

    def end(self, version: int, lanes: int, kinds: Mapping[str, str], pieces: Sequence[tuple[str, int, int]]) -> None:
        """Local steps end with this version: owners go on with the mean of all lanes, or without a round as they were.

        For `kinds` and `pieces` see `merge`.
        """
        if version != self.since:
            merge([self.at(lane, version) for lane in range(lanes)], self.owners(), kinds, pieces)


def merge(
    states: Sequence[Mapping[str, memoryview]], owners: Mapping[str, memoryview], kinds: Mapping[str, str],
    pieces: Sequence[tuple[str, int, int]],
) -> None:  # fmt: skip
    """Let the owners go on with the mean of these states, one of each lane.

    `kinds` are the types of the numbers in the sections; `pieces` are the parts that parameters are cut into, as
    (flat space, begin, end): each is ready or not, and has its own counts of steps.
    """
    ready = np.array([np.frombuffer(state["ready"], np.uint8)[: len(pieces)] for state in states]) != 0
    np.frombuffer(owners["ready"], np.uint8)[: len(pieces)] = ready.any(axis=0)
    for name, kind in kinds.items():
        numbers, out = [_numbers(state[name], kind) for state in states], _numbers(owners[name], kind)
        each, space = name.startswith("scalar/"), name.rpartition("/")[2]
        for index, (where, begin, end) in enumerate(pieces):
            lanes = np.flatnonzero(ready[:, index])
            if where != space or not len(lanes):
                continue
            part = slice(index, index + 1) if each else slice(begin, end)
            if each or not _averaged(kind):
                out[part] = numbers[lanes[0]][part]
            else:
                out[part] = _mean([numbers[lane][part] for lane in lanes], kind)


def _averaged(kind: str) -> bool:
    return kind in _FLOATS or kind == "bfloat16"


def _numbers(data: memoryview, kind: str) -> _Numbers:
    """The bytes of a section as numbers. For bfloat16, which numpy has not, its bits."""
    return np.frombuffer(data, _FLOATS.get(kind) or (np.uint16 if kind == "bfloat16" else np.dtype(kind)))


def _mean(parts: Sequence[_Numbers], kind: str) -> _Numbers:
    """Summed in order, in single precision at least."""
    if kind == "bfloat16":
        wide = [(part.astype(np.uint32) << 16).view(np.float32) for part in parts]
        return _rounded(_mean(wide, "float32"))
    total: _Numbers = parts[0].astype(np.float64 if kind == "float64" else np.float32)
    with np.errstate(all="ignore"):  # what a lane has that is not finite stays so, and is found in training
        for part in parts[1:]:
            total += part
        total /= len(parts)
        return total.astype(_FLOATS[kind], copy=False)


def _rounded(numbers: _Numbers) -> _Numbers:
    """float32 to the bits of bfloat16: to the nearest, and to the even one of two."""
    bits = numbers.view(np.uint32)
    near = (bits + (np.uint32(0x7FFF) + (bits >> 16 & 1))) >> 16
    return np.where(np.isnan(numbers), np.uint32(0x7FC0), near).astype(np.uint16)
