from __future__ import annotations

import pytest

from holdfast.config.limits import CrewConfig
from holdfast.control.membership.liveness import Silence, StepPace, silence_limit

LIMITS = CrewConfig(silence_limit=1.5, silence_factor=4.0, silence_most=30.0)


@pytest.mark.parametrize(("step", "limit"), [(0.0, 1.5), (0.3, 1.5), (0.5, 2.0), (5.0, 20.0), (60.0, 30.0)])
def test_the_limit_follows_from_the_step(step: float, limit: float) -> None:
    assert silence_limit(LIMITS, step) == limit


def test_a_least_limit_above_the_most_is_kept() -> None:
    assert silence_limit(CrewConfig(silence_limit=60.0, silence_most=30.0), 1.0) == 60.0


def test_the_step_is_the_median_of_the_newest_reports() -> None:
    pace = StepPace(LIMITS)
    assert pace.limit == 1.5 and pace.step_seconds == 0.0
    for now, step in [(0.0, 0), (2.0, 1), (4.0, 2), (4.5, 2), (6.0, 3), (60.0, 4), (64.0, 6)]:
        pace.reached(step, now)
    assert pace.step_seconds == 2.0, "one long pause does not count"
    assert pace.limit == 8.0
    for step in range(7, 12):
        pace.reached(step, 64.0 + 0.1 * (step - 6))
    assert pace.step_seconds == pytest.approx(0.1) and pace.limit == 1.5


def test_the_limit_is_told_when_it_is_another() -> None:
    pace = StepPace(LIMITS)
    assert pace.news() == (
        "a host that is silent for 1.5 s counts as lost (no step has been measured yet; 4 steps, at least 1.5 s and at "
        "most 30 s)"
    )
    assert pace.news() == ""
    for step in range(3):
        pace.reached(step, 2.0 * step)
    assert pace.news().startswith("a host that is silent for 8.0 s counts as lost (a step takes 2 s;")
    pace.reached(3, 6.1)
    assert pace.news() == "", "a little more or less is no news"


def test_time_in_which_nobody_listened_does_not_count() -> None:
    pulse = Silence()
    assert pulse.listened(0.2) == 0.2
    assert pulse.listened(3600.0) == pytest.approx(0.7)
    pulse.beat()
    assert pulse.listened(0.2) == 0.2
