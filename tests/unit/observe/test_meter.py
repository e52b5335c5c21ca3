"""What rows of the board add up to: speeds, waits, samples, ages of pushes."""

from __future__ import annotations

import pytest

from holdfast.dataplane.memory.board_snapshot import BoardPlan
from holdfast.dataplane.relaxed.ages import Ages
from holdfast.observe.meter import Meter
from holdfast.observe.progress import line
from tests.unit.observe.rows import row

PLAN = BoardPlan(steps_per_epoch=100, epochs=3, batch=32)


def test_speeds_are_those_of_the_last_seconds() -> None:
    meter = Meter()
    for second in range(20):
        rows = [
            row(0, step=10 * second, samples=100 * second, busy_seconds=second * 0.9, wait_seconds=second * 0.1),
            row(1, step=10 * second, samples=50 * second, busy_seconds=second * 0.5, wait_seconds=second * 0.5),
        ]
        view = meter.update(rows, PLAN, float(second))
    assert view.step == 190 and view.total_steps == 300
    assert view.samples_per_second == pytest.approx(150)
    assert view.speeds == {0: pytest.approx(100), 1: pytest.approx(50)}
    assert view.waits == {0: pytest.approx(0.1), 1: pytest.approx(0.5)}
    assert view.eta == pytest.approx(11)
    assert view.samples == 19 * 150


def test_a_lost_workers_samples_still_count() -> None:
    meter = Meter()
    meter.update([row(0, samples=10), row(1, samples=20)], PLAN, 0.0)
    assert meter.update([row(0, samples=15)], PLAN, 1.0).samples == 35


def test_nothing_is_known_at_first() -> None:
    view = Meter().update([], BoardPlan(0, 0, 0), 0.0)
    assert (view.step, view.loss, view.eta, view.samples_per_second) == (0, None, None, 0.0)
    assert line(view) == "step 0"


def test_a_loss_that_is_not_finite_is_not_drawn() -> None:
    view = Meter().update([row(0, step=3, loss=float("nan"))], PLAN, 0.0)
    assert view.loss is None


def test_the_meter_puts_hosts_together() -> None:
    meter = Meter()
    meter.looked(0, [row(0, step=3, samples=10)], PLAN, 0.0)
    meter.looked(1, [], BoardPlan(0, 0, 0), 0.1)
    view = meter.looked(1, [row(1, step=4, samples=5)], BoardPlan(0, 0, 0), 0.2)
    assert (view.step, view.samples, view.total_steps, set(view.steps)) == (4, 15, 300, {0, 1})
    meter.gone(1)
    assert set(meter.looked(0, [row(0, step=5, samples=12)], PLAN, 0.4).steps) == {0}
    assert meter.view.samples == 17


def test_the_meter_adds_up_what_was_applied_on_hosts_that_are_there_and_on_those_that_are_gone() -> None:
    """The home moves when it is lost, and the next one begins to count anew."""
    meter, home = Meter(), PLAN._replace(ages=Ages((4, 2), 2, 1))
    meter.looked(0, [row(0)], PLAN, 0.0)
    assert meter.looked(1, [row(1)], home, 0.1).ages == home.ages
    meter.gone(1)
    view = meter.looked(0, [row(0)], PLAN._replace(ages=Ages((1, 0, 1), 2, 2)), 0.2)
    assert view.ages == Ages((5, 2, 1), 4, 2)
    assert meter.looked(0, [row(0)], BoardPlan(0, 0, 0), 0.3).ages == view.ages, "its memory is closed; it was so"
