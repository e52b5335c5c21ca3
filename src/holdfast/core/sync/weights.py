"""Shares: which part of a step a commit set takes, and how much each of its pushes counts. Pure.

A whole step is the mean over all samples of its batch. Where not all lanes are in a commit set, or a push counts less
than its samples (it is late, or stale), the commit set takes a part of a step, and the learning rate is scaled by that
part: so four quarter steps go as far as one whole one. Not every optimizer can do that
(`dataplane.reduce.partial_step`), hence `parted`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.core.sync.modes import Mode, TakenPush, weights
from holdfast.core.sync.staleness import Staleness

__all__ = ["Given", "VersionShare", "parted", "share_of"]


class Given(NamedTuple):
    """What is known of a push that a commit set takes."""

    samples: int  #: 0: the lane had none in this step
    age: int  #: versions that were made since the one it was computed from


class VersionShare(NamedTuple):
    """What a commit set takes of a step."""

    pushes: dict[int, TakenPush]  #: lane -> push, of those that have samples
    load: dict[int, float]  #: lane -> its weight in the mean
    stale: frozenset[int]  #: lanes whose push was computed from an older version
    part: float  #: of a whole step


def share_of(
    mode: Mode, staleness: Staleness, given: Mapping[TakenPush, Given], newest: int, counts: Sequence[int]
) -> VersionShare:
    """The share of a commit set of these pushes.

    `newest` is the step that the lane which is furthest on has had taken, `counts` the samples of every lane in the
    commit set's newest step.

    >>> quarter = share_of(Mode("async", quorum=1, bound=None), Staleness(), {TakenPush(2, 7): Given(8, 0)}, 7, [8] * 4)
    >>> quarter.part
    0.25
    """
    late = dict(zip(given, weights(mode, list(given), newest), strict=True))
    pushes = {push.lane: push for push, one in given.items() if one.samples}
    steps = len(given) / len(counts)  # of a version; those that were made since are taken to be like this one
    load = {
        lane: late[push] * staleness.weight(given[push].age * steps) * given[push].samples
        for lane, push in pushes.items()
    }
    part = 1.0 if mode.rounds or not pushes else sum(load.values()) / max(1, sum(counts))
    return VersionShare(pushes, load, frozenset(lane for lane, push in pushes.items() if given[push].age), part)


def parted(mode: Mode, lanes: int) -> str:
    """Why a commit set of this mode may take a part of a step; empty where each takes a whole one.

    >>> from holdfast.core.sync.modes import parse
    >>> parted(parse("bounded:4"), 4)
    'any lane makes a version, with a part of a step'
    >>> parted(parse("bounded:0"), 4)
    ''
    """
    if mode.quorum is None or mode.quorum >= lanes:
        return ""
    first = "any lane makes" if mode.quorum == 1 else f"any {mode.quorum} of {lanes} lanes make"
    return f"{first} a version, with a part of a step"
