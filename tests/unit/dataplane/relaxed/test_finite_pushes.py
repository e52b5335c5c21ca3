"""Pushes that are finite, and what is made of them is not: it is never applied, and all samples are told."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

from holdfast.core.shares import Share
from holdfast.core.sync.staleness import Staleness
from holdfast.dataplane.reduce.work import UnitResult
from holdfast.dataplane.relaxed.pushes import PushRecord
from holdfast.dataplane.relaxed.relaxed_member import Course, RelaxedMember
from holdfast.errors import NonFinite
from tests.unit.dataplane.members import LANES
from tests.unit.dataplane.relaxed.of_modes import drive, local_of, relaxed_of

ENDS = (
    "Lower the learning rate, clip with run.clip_grad_norm_, or look at them; hf.join(finite=False) lets such numbers "
    "pass."
)


def course(steps: int) -> Course:
    return Course(0, steps, lambda step: [3] * LANES)


def units(
    member: RelaxedMember, steps: int, number: int, value: float, after: Callable[[int], object] = lambda lane: None
) -> None:
    """Make so many units, all of whose gradients are this number."""
    member.samples_of = lambda step, lane: [100 * step + 10 * lane + n for n in range(2)]
    for _ in range(number):
        found = member.next_unit(course(steps))
        assert isinstance(found, tuple), found
        lane = found[1].first
        member.fill(lane, [torch.full_like(p, value) for p in member.space.trainable], UnitResult(0.5, 0.0, 0.0))
        after(lane)
        member.show(lane)


def test_a_sum_of_pushes_that_overflows() -> None:
    relaxed = relaxed_of("bounded:0")
    for lanes in ((0, 1), (2, 3)):  # one worker's, then the other's
        drive(relaxed, *lanes)
        units(relaxed, 4, 1, 3e38)
    text = (
        "The gradient of 0.weight, 0.bias for version 4 is not finite, though each push of it was. It was not applied. "
        "Its samples are, of step 3, lane 0: 300, 301; of step 3, lane 1: 310, 311; of step 3, lane 2: 320, 321; of "
        f"step 3, lane 3: 330, 331. {ENDS}"
    )
    with pytest.raises(NonFinite, match=f"^{re.escape(text)}$"):
        relaxed.next_unit(course(4))
    assert set(relaxed.board.versions()) == {3}


def test_a_push_that_is_not_finite_once_it_is_compensated() -> None:
    relaxed = relaxed_of("async", steps=9, staleness=Staleness("compensate", 1.0))
    text = (
        r"^The gradient of \S+, \S+ for version \d is not finite, though each push of it was, before it was compensated"
        r". It was not applied. Its samples are, of step 3, lane 1: 310, 311. Lower the"
    )
    drive(relaxed, 0)
    assert relaxed.next_unit(course(9)) == (3, Share(0, 1))
    relaxed.fill(1, [torch.full_like(p, 1e30) for p in relaxed.space.trainable], UnitResult(0.5, 0.0, 0.0))
    units(relaxed, 9, 1, 1.0)
    drive(relaxed, 1)
    assert relaxed.next_unit(course(9)) == (3, Share(1, 2)), "the push of lane 0 is applied"
    relaxed.pushes.push(1, PushRecord(3, 3, 3, 0.5, 0.0, 0.0))  # as if another worker had made it meanwhile
    with pytest.raises(NonFinite, match=text):
        relaxed.next_unit(course(9))


def test_a_round_whose_end_is_not_finite_is_told_with_all_its_units() -> None:
    """Which of them went too far is not known: each was finite by itself."""
    on_host = local_of()

    def burst(lane: int) -> None:
        if lane == 1 and on_host._lanes[1].unit == 2:
            on_host._lanes[1].views[0].fill_(float("inf"))

    text = (
        "Lane 1: 0.weight is not finite at the end of a round. It was not applied. Its samples are, of step 25, lane "
        f"1: 2510, 2511; of step 24, lane 1: 2410, 2411; of step 23, lane 1: 2310, 2311. {ENDS}"
    )
    with pytest.raises(NonFinite, match=f"^{re.escape(text)}$"):
        units(on_host, 10, 3 * LANES, 1.0, burst)


def test_rounds_whose_sum_overflows_are_told_with_all_units_of_all_lanes() -> None:
    on_host = local_of()
    units(on_host, 10, 3 * LANES, 1.0, lambda lane: [view.fill_(-3e38) for view in on_host._lanes[lane].views])
    made = [(step, lane) for lane in range(LANES) for step in (25, 24, 23)]
    told = [f"of step {step}, lane {lane}: {step}{lane}0, {step}{lane}1" for step, lane in made]
    with pytest.raises(NonFinite, match=re.escape(f"Its samples are, {'; '.join(told)}. Lower the")):
        on_host.next_unit(course(10))


def test_of_many_units_the_first_are_told() -> None:
    units = [(step, 0) for step in range(40)]
    told = str(NonFinite.in_units("It is not finite", units, lambda step, lane: [step]))
    assert told.startswith("It is not finite. It was not applied. Its samples are, of step 0, lane 0: 0; of step 1, ")
    assert "of step 15, lane 0: 15; ... (40 units in all). Lower the learning rate" in told
    assert "of step 7, lane 2: none. Lower" in str(NonFinite.in_units("x", [(7, 2)], lambda step, lane: []))
