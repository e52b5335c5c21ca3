"""An owner in relaxed modes: each push of a commit set is in its slices once."""

from __future__ import annotations

import pytest
import torch

from holdfast.core.shares import Share
from holdfast.core.sync.modes import commit_set
from holdfast.dataplane.reduce.work import UnitResult
from holdfast.dataplane.relaxed.relaxed_member import Course, RelaxedMember
from tests.unit.dataplane.members import LANES
from tests.unit.dataplane.relaxed.of_modes import ALL, drive, relaxed_of

COURSE = Course(0, 9, lambda step: [3] * LANES)


def push(relaxed: RelaxedMember, value: float = 1.0) -> Share:
    """Make the next unit."""
    found = relaxed.next_unit(COURSE)
    assert isinstance(found, tuple), found
    step, share = found
    assert step == 3
    gradients = [torch.full_like(p, value) for p in relaxed.space.trainable]
    relaxed.fill(share.first, gradients, UnitResult(value, 0.0, 0.0))
    relaxed.show(share.first)
    return share


@pytest.mark.parametrize(
    ("mode", "lanes", "part"),
    [("bounded:0", LANES, 1.0), ("async", 1, 0.25), ("async", 3, 0.75), ("bounded:2", 4, 1.0), ("quorum:2", 2, 0.5)],
)
def test_a_version_applies_each_push_once(mode: str, lanes: int, part: float) -> None:
    """Adam goes as far as its lr where all gradients are alike; a version goes the part of it that its pushes are."""
    relaxed = relaxed_of(mode, steps=9)
    drive(relaxed, *range(lanes))
    before = [parameter.detach().clone() for parameter in relaxed.space.trainable]
    samples = relaxed.board.step_facts(3).samples
    assert push(relaxed) == Share(0, lanes)
    for _ in range(2):  # asked again, it does not do it again
        relaxed.next_unit(COURSE)
        assert set(relaxed.board.versions()) == {4}
        assert relaxed.board.step_facts(4).samples == samples + 3 * lanes
        for parameter, old in zip(relaxed.space.trainable, before, strict=True):
            torch.testing.assert_close(parameter.detach(), old - 0.01 * part)


def test_shares_are_weighed_by_their_samples() -> None:
    """Three lanes of one worker give 1, the fourth one's worker gives 9: the mean of the batch is 3."""
    relaxed = relaxed_of("bounded:0", steps=9)
    drive(relaxed, 0, 1, 2)
    assert push(relaxed, 1.0) == Share(0, 3)
    drive(relaxed, 3)
    assert push(relaxed, 9.0) == Share(3, 4)
    piece = relaxed.space.layout.slices[0]
    out = torch.empty(piece.stop - piece.start)
    taken = commit_set(relaxed.mode, relaxed._clocks())
    assert taken is not None and len(taken) == LANES
    relaxed.pushes.decide(3, taken)
    records = [relaxed.pushes.record(lane) for lane in range(LANES)]
    assert [(record.samples, record.lanes) for record in records] == [(9, 3), (0, 0), (0, 0), (3, 1)]
    relaxed.push_gradients.total(piece, [0, 3], {0: 9.0, 3: 3.0}, out)
    assert set(out.tolist()) - {0.0} == {3.0}, "but for what lies between parameters"
    drive(relaxed, *range(LANES))
    relaxed.next_unit(COURSE)
    assert relaxed.board.step_facts(4).loss == 3.0


def test_a_lane_that_came_from_another_worker_at_another_step_catches_up_and_joins() -> None:
    """Any push makes a version, so its own is waited for then: after that the worker has one unit a step again."""
    relaxed = relaxed_of("bounded:2", steps=9)
    drive(relaxed, 0, 1, 2)
    assert push(relaxed) == Share(0, 3)
    drive(relaxed, *range(LANES))
    assert push(relaxed) == Share(3, 4)
    assert relaxed.next_unit(COURSE) == (4, ALL)


def test_with_a_quorum_it_may_be_the_share_that_is_waited_for() -> None:
    """So a lane of it that waits for its own push is gone without."""
    relaxed = relaxed_of("quorum:2", steps=9)
    drive(relaxed, 0, 1, 2)
    assert push(relaxed) == Share(0, 3)
    drive(relaxed, *range(LANES))
    assert push(relaxed) == Share(3, 4)
    assert relaxed.next_unit(COURSE) == (4, Share(0, 3))


def test_a_share_without_samples_goes_on() -> None:
    relaxed = relaxed_of("async", steps=9)
    drive(relaxed, 2, 3)
    course = Course(0, 9, lambda step: [1, 0, 0, 0] if step == 3 else [3] * LANES)
    before = [parameter.detach().clone() for parameter in relaxed.space.trainable]
    assert relaxed.next_unit(course) == (3, Share(2, 4)), "the script makes its turn all the same"
    relaxed.fill(2, [torch.zeros_like(p) for p in relaxed.space.trainable], UnitResult(0.0, 9.0, 0.0))
    relaxed.show(2)
    assert relaxed.pushes.all_pushed() == [3, 3, 4, 4]
    assert relaxed.next_unit(course) == (4, Share(2, 4))
    assert relaxed.board.step_facts(4).samples == relaxed.board.step_facts(3).samples
    for parameter, old in zip(relaxed.space.trainable, before, strict=True):
        assert torch.equal(parameter, old), "it weighs nothing"
