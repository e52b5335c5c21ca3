"""Ways of keeping step: one rule over lane clocks, of which every mode is a setting. Pure.

Each lane has a *clock*: how many of its units it has pushed. Owners take pushes into *commit sets*, one for each
version: the commit set of version `v` says which push of which lane takes the parameters from `v` to `v + 1`. A push is
taken once, in the order of its lane; that is what makes it count exactly once, whoever computes, applies or dies.

Three numbers make a mode:

* `quorum`: from how many lanes a push must be there before a commit set is made. It then takes the push of every lane
  that has one (in `quorum:K` the late ones among them with a smaller weight);
* `bound`: how many steps a lane may be ahead of what has been applied from the slowest one;
* `inner`: how many steps a lane makes by itself between two pushes (local SGD). 1: every step is pushed.

| mode | quorum | bound | inner |
|---|---|---|---|
| `exact`, `bounded:0` | all lanes | 0 | 1 |
| `bounded:S`, S > 0 | 1 | S | 1 |
| `quorum:K` | K | 8 | 1 |
| `async` | 1 | none | 1 |
| `local:H` | all lanes | 0 | H |

Lanes of one worker go on together where they stand at the same step: they are its *share* of that step, one unit with
one push (`next_share`). Each of their clocks counts it.

A lane sees its own push before it goes on: there is room for one push of each, which bounds the memory of every mode.
So where lanes may run ahead (`bounded:S`), what they push does not wait for those that are late. (If it did, a lane
would run ahead with parameters that lack its own last S pushes, and each push would come S versions late.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import IntEnum
from operator import gt
from typing import NamedTuple

from holdfast.core.shares import Share

__all__ = [
    "EXACT", "Clocks", "HeldBack", "Mode", "Reason", "TakenPush", "advised", "commit_set", "held_back", "next_lane",
    "next_share", "parse", "weights", "why",
]  # fmt: skip

#: How far a lane may be ahead with a quorum. A lane that is slow for ever must not fall behind without end.
_QUORUM_BOUND = 8
_FORMS = ("exact", "bounded:S", "async", "quorum:K", "local:H")
_MOST_BOUND, _MOST_INNER = 64, 100_000


@dataclass(frozen=True, slots=True)
class Mode:
    """One way of keeping step."""

    name: str
    quorum: int | None = None  #: None: all lanes
    bound: int | None = 0  #: None: there is none
    inner: int = 1

    @property
    def exact(self) -> bool:
        """Is it the one that `core.sync.exact` rules, whose result is a function of the configuration alone?

        `bounded:0` has the same numbers, and gives the same sums by the rule of this module.
        """
        return self.name == "exact"

    @property
    def folds_late(self) -> bool:
        """Does a push that comes after its version was made count less, by how late it is?"""
        return self.name.startswith("quorum:")

    @property
    def rounds(self) -> bool:
        """Do lanes train by themselves between two pushes?"""
        return self.name.startswith("local:")


EXACT = Mode("exact")


def parse(text: str, lanes: int | None = None) -> Mode:
    """A mode by its name, which may be written with zeros before its number. Raises ValueError with a sentence.

    >>> parse("bounded:4")
    Mode(name='bounded:4', quorum=1, bound=4, inner=1)
    >>> parse("bouned:4")
    Traceback (most recent call last):
    ValueError: unknown; there is exact, bounded:S, async, quorum:K, local:H. Did you mean bounded:4?
    """
    kind, colon, number = text.partition(":")
    if kind in ("exact", "async"):
        if colon:
            raise ValueError(f"{kind} takes no number")
        return EXACT if kind == "exact" else Mode(text, quorum=1, bound=None)
    if kind not in ("bounded", "quorum", "local"):
        near = get_close_matches(kind, [form.partition(":")[0] for form in _FORMS], n=1)
        number = "" if near and near[0] in ("exact", "async") else colon + number
        hint = f" Did you mean {near[0]}{number}?" if near else ""
        raise ValueError(f"unknown; there is {', '.join(_FORMS)}.{hint}")
    digits = number.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        letter = {"bounded": "S", "quorum": "K", "local": "H"}[kind]
        raise ValueError(f"{kind}:{letter} needs a whole number for {letter}, not {number!r}")
    value = int(number)
    if kind == "bounded":
        if not 0 <= value <= _MOST_BOUND:
            raise ValueError(f"a lane cannot be {value} steps ahead: S is 0 to {_MOST_BOUND}")
        return Mode(f"bounded:{value}", quorum=1 if value else None, bound=value)
    if kind == "quorum":
        most = f" to {lanes}, the number of lanes" if lanes is not None else " or more"
        if value < 1 or (lanes is not None and value > lanes):
            raise ValueError(f"a quorum of {value} cannot come together: K is 1{most}")
        return Mode(f"quorum:{value}", quorum=value, bound=_QUORUM_BOUND)
    if not 1 <= value <= _MOST_INNER:
        raise ValueError(f"{value} steps cannot lie between two exchanges: H is 1 to {_MOST_INNER}")
    return Mode(f"local:{value}", inner=value)


def advised(text: str, lanes: int | None = None) -> str:
    """A name that `parse` takes, near one that it refuses.

    >>> advised("quorum:9", 4), advised("bounded"), advised("bouned:3"), advised("fast")
    ('quorum:4', 'bounded:4', 'bounded:3', 'exact')
    """
    kind, _, number = text.partition(":")
    most = lanes if lanes is not None else 4
    ranges = {"bounded": (0, 4, _MOST_BOUND), "quorum": (1, max(1, most - 1), most), "local": (1, 16, _MOST_INNER)}
    kind = next(iter(get_close_matches(kind, [form.partition(":")[0] for form in _FORMS], n=1)), "exact")
    if kind not in ranges:
        return kind
    least, usual, highest = ranges[kind]
    digits = number.removeprefix("-")
    value = int(number) if digits.isascii() and digits.isdigit() else usual
    return f"{kind}:{min(max(value, least), highest)}"


class Clocks(NamedTuple):
    """Where the lanes of a pass stand. All numbers count pushes of one lane since the pass began.

    A push is of one unit, or of a round of `inner` units.
    """

    steps: int  #: that every lane makes in the pass
    pushed: Sequence[int]  #: lane -> those it has made
    taken: Sequence[int]  #: lane -> pushes that commit sets have taken
    applied: Sequence[int]  #: lane -> pushes that are in the published version; their room is free again

    @property
    def slowest(self) -> int:
        """Applied pushes of the lane that has fewest."""
        return min(self.applied)

    @property
    def late(self) -> tuple[int, ...]:
        """The slowest lanes of which nothing is on its way."""
        slowest, both = self.slowest, zip(self.applied, self.pushed, strict=True)
        return tuple(lane for lane, (applied, pushed) in enumerate(both) if applied == pushed == slowest)


class Reason(IntEnum):
    """Why a lane may not begin its next unit. 0, on the board, is for no reason."""

    AHEAD = 1  #: of the slowest lane by more than its mode allows
    FULL = 2  #: its own last push is not applied yet: there is no room for one more


class HeldBack(NamedTuple):
    """A lane may not begin its next unit: for which lanes it waits, and why."""

    lanes: tuple[int, ...]
    reason: Reason
    lane: int
    ahead: int = 0  #: pushes
    most: int = 0  #: pushes that it may be ahead

    @property
    def word(self) -> int:
        """The reason and its numbers as one word of the board; `why` makes a sentence of it."""
        first = self.lanes[0] + 1 if self.lanes else 0
        return self.reason | self.lane << 4 | first << 16 | self.ahead << 28 | self.most << 44


def why(word: int) -> str:
    """What a word of `HeldBack` says; empty for 0.

    >>> why(HeldBack((3,), Reason.AHEAD, lane=0, ahead=2, most=1).word)
    'lane 0 is 2 pushes ahead of lane 3, and 1 is allowed'
    """
    if not word:
        return ""
    lane, first, ahead, most = word >> 4 & 0xFFF, word >> 16 & 0xFFF, word >> 28 & 0xFFFF, word >> 44
    match Reason(word & 0xF):
        case Reason.AHEAD:
            whom = f"lane {first - 1}" if first else "what was applied"
            pushes, are = "push" if ahead == 1 else "pushes", "is" if most == 1 else "are"
            return f"lane {lane} is {ahead} {pushes} ahead of {whom}, and {most} {are} allowed"
        case Reason.FULL:
            return f"lane {lane} waits for its own last push: it is not applied yet"


class TakenPush(NamedTuple):
    """A push in a commit set."""

    lane: int
    step: int


def held_back(mode: Mode, clocks: Clocks, lane: int) -> HeldBack | None:
    """Why a lane may not begin its next unit yet; None where it may, or has none left.

    Where no lane is named, all pushes are there that matter, and their owners are at work.
    """
    step = clocks.pushed[lane]
    if step >= clocks.steps:
        return None
    slowest = clocks.slowest
    if mode.bound is not None and step - slowest > mode.bound:
        return HeldBack(clocks.late, Reason.AHEAD, lane, step - slowest, mode.bound)
    if step > clocks.applied[lane]:
        return HeldBack((), Reason.FULL, lane)
    return None


def next_lane(mode: Mode, clocks: Clocks, mine: Sequence[int]) -> int | HeldBack | None:
    """Which of my lanes has the next unit: of those that may, the one that is furthest behind.

    A `HeldBack` where none of them may; None when all have pushed their last unit.
    """
    left = sorted((lane for lane in mine if clocks.pushed[lane] < clocks.steps), key=lambda n: (clocks.pushed[n], n))
    first: HeldBack | None = None
    for lane in left:
        held = held_back(mode, clocks, lane)
        if held is None:
            return lane
        first = first or held
    return first


def next_share(mode: Mode, clocks: Clocks, mine: Sequence[int]) -> Share | HeldBack | None:
    """Which of my lanes have the next unit, together: the next lane, and those after it at the same step that may.

    One of them may still wait for its own last push, after it has come from another worker at another step. Where any
    push makes a version that one is applied soon, and waited for: else the two would go on apart for ever. Where a
    quorum has to come together, it might be waiting for this very share.
    """
    first = next_lane(mode, clocks, mine)
    if not isinstance(first, int):
        return first
    step, last = clocks.pushed[first], first + 1
    while last in mine and clocks.pushed[last] == step and held_back(mode, clocks, last) is None:
        last += 1
    if mode.quorum == 1:
        for beside in (first - 1, last):
            if beside in mine and clocks.pushed[beside] == step:
                return held_back(mode, clocks, beside)
    return Share(first, last)


def commit_set(mode: Mode, clocks: Clocks) -> tuple[TakenPush, ...] | None:
    """The pushes of the next version; None while there are not enough. In lane order, so whoever asks gets the same."""
    ready = sum(map(gt, clocks.pushed, clocks.taken))
    if not ready:
        return None
    # Only lanes that have a push count, or that may still make one once all that is taken is applied: waiting for
    # others would be for ever. The end of a pass is a case of it.
    most = clocks.steps if mode.bound is None else min(clocks.steps, min(clocks.taken) + mode.bound + 1)
    able = sum(pushed > taken or taken < most for taken, pushed in zip(clocks.taken, clocks.pushed, strict=True))
    if ready < (able if mode.quorum is None else min(mode.quorum, able)):
        return None
    both = enumerate(zip(clocks.taken, clocks.pushed, strict=True))
    return tuple(TakenPush(lane, taken) for lane, (taken, pushed) in both if pushed > taken)


def weights(mode: Mode, taken: Sequence[TakenPush], newest: int) -> tuple[float, ...]:
    """How much each push of a commit set counts: with a quorum, one late by `n` steps 1 / (1 + n), else all alike.

    `newest` is the step that the lane which is furthest on has had taken, in this commit set or before.

    >>> weights(parse("quorum:2"), [TakenPush(1, 6), TakenPush(2, 4)], newest=7)
    (0.5, 0.25)
    """
    if not mode.folds_late:
        return (1.0,) * len(taken)
    return tuple(1.0 / (1 + newest - push.step) for push in taken)
