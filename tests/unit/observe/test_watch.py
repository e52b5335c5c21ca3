from __future__ import annotations

from holdfast.config.limits import CrewConfig
from holdfast.observe.watch import Seen, Suspect, Watch, told_limits
from tests.unit.observe.rows import row

LIMITS = CrewConfig(frozen_limit=3.0, hang_limit=30.0, hang_factor=20.0, idle_limit=600.0)


def looks(watch: Watch, seen: Seen, seconds: float, every: float = 0.5) -> list[Suspect]:
    found: list[Suspect] = []
    for _ in range(round(seconds / every)):
        found += watch.look([seen], every)
    return found


def test_a_stopped_worker_is_named_once_after_the_limit() -> None:
    watch = Watch(LIMITS)
    assert looks(watch, Seen(1, True, row(1)), 3.0) == []
    assert looks(watch, Seen(1, True, row(1)), 5.0) == [Suspect(1, True, 3.5, None)]


def test_a_short_stop_is_forgiven() -> None:
    watch = Watch(LIMITS)
    looks(watch, Seen(1, True, None), 2.5)
    looks(watch, Seen(1, False, None), 0.5)
    assert looks(watch, Seen(1, True, None), 2.5) == []


def test_a_unit_that_does_not_end() -> None:
    watch = Watch(LIMITS)
    stuck = Seen(0, False, row(0, unit_step=7, unit_lane=2))
    assert looks(watch, stuck, 30.5) == []
    assert looks(watch, stuck, 60) == [Suspect(0, False, 30.5, (7, 2))]


def test_slow_units_have_a_longer_limit() -> None:
    watch = Watch(LIMITS)
    watch.look([Seen(1, False, row(1, unit_seconds=4.0))], 0.5)
    assert watch.unit_limit() == 80.0
    assert looks(watch, Seen(0, False, row(0, unit_lane=0)), 80) == []


def test_outside_a_unit_we_are_patient() -> None:
    watch = Watch(LIMITS)
    idle = Seen(0, False, row(0))
    assert looks(watch, idle, 600) == []
    assert [suspect.unit for suspect in looks(watch, idle, 2)] == [None]


def test_any_movement_counts() -> None:
    watch = Watch(LIMITS)
    for beat in range(200):
        assert watch.look([Seen(0, False, row(0, unit_lane=1, beat=beat // 50))], 0.5) == []


def test_who_waits_for_another_is_a_victim() -> None:
    watch = Watch(LIMITS)
    assert looks(watch, Seen(0, False, row(0, waiting_for=1)), 5000, every=1.0) == []


def test_who_has_no_row_yet_is_starting() -> None:
    assert looks(Watch(LIMITS), Seen(0, False, None), 5000, every=1.0) == []


def test_nobody_ages_while_nobody_watches() -> None:
    watch = Watch(LIMITS)
    watch.look([Seen(0, True, None)], 0.5)
    assert watch.look([Seen(0, True, None)], 3600.0) == []


def test_the_limits_are_told() -> None:
    assert told_limits(LIMITS) == (
        "limits: a worker that is stopped for 3 s and 5 times the slowest unit so far is replaced; one that stays in a "
        "unit for 30 s and 20 times the slowest unit so far, or stands still outside a unit for 600 s, counts as hung"
    )
