"""An owner in relaxed modes: each push of a commit set is in its slices once."""

from __future__ import annotations

import pytest
import torch

from holdfast.dataplane.reduce.work import UnitResult
from holdfast.dataplane.relaxed.relaxed_member import Course
from tests.unit.dataplane.members import LANES
from tests.unit.dataplane.relaxed.of_modes import relaxed_of

COURSE = Course(0, 9, lambda step: [3] * LANES)


@pytest.mark.parametrize(
    ("mode", "lanes", "part"), [("bounded:0", LANES, 1.0), ("async", 1, 0.25), ("quorum:2", 2, 0.5)]
)
def test_a_version_applies_each_push_once(mode: str, lanes: int, part: float) -> None:
    """Adam goes as far as its lr where all gradients are alike; a version goes the part of it that its pushes are."""
    relaxed = relaxed_of(mode, steps=9)
    before = [parameter.detach().clone() for parameter in relaxed.space.trainable]
    for lane in range(lanes):
        assert relaxed.next_unit(COURSE) == (3, lane)
        relaxed.fill(lane, [torch.ones_like(p) for p in relaxed.space.trainable], UnitResult(0.5, 0.0, 0.0))
        relaxed.show(lane)
    for _ in range(2):  # asked again, it does not do it again
        relaxed.next_unit(COURSE)
        assert set(relaxed.board.versions()) == {4}
        for parameter, old in zip(relaxed.space.trainable, before, strict=True):
            torch.testing.assert_close(parameter.detach(), old - 0.01 * part)
