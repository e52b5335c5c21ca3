"""When lanes move for speed: hysteresis, and trying slow workers again with growing patience."""

from __future__ import annotations

from holdfast.config.limits import CrewConfig
from holdfast.control import lane_balance
from holdfast.control.lane_balance import LaneBalance
from holdfast.control.membership.roster import CrewLimits

LIMITS = CrewLimits(lanes=6, workers=2, crew=CrewConfig(settle=1.0, probe=5.0, probe_limit=15.0))
EVEN = (0, 0, 0, 1, 1, 1)
ALONE = (0,) * 6


def test_one_report_is_not_enough() -> None:
    balance, proposal = lane_balance.measured(LaneBalance(), 10.0, EVEN, (0, 1), {0: 0.1, 1: 0.4}, LIMITS)
    assert proposal is None
    balance, proposal = lane_balance.measured(balance, 10.5, EVEN, (0, 1), {0: 0.1, 1: 0.4}, LIMITS)
    assert proposal is not None
    assert proposal.drivers == (0, 0, 0, 0, 0, 1)
    assert "worker 1 takes 0.4 s a lane" in proposal.reason


def test_two_reports_must_follow_each_other() -> None:
    balance = LaneBalance()
    for slow in (0.4, 0.1, 0.4, 0.1):
        balance, proposal = lane_balance.measured(balance, 10.0, EVEN, (0, 1), {0: 0.1, 1: slow}, LIMITS)
        assert proposal is None


def test_changes_keep_their_distance() -> None:
    balance = lane_balance.installed(LaneBalance(), 10.0, EVEN, (0, 1), LIMITS)
    for now in (10.3, 10.6, 10.9):
        balance, proposal = lane_balance.measured(balance, now, EVEN, (0, 1), {0: 0.1, 1: 0.4}, LIMITS)
        assert proposal is None
    assert lane_balance.measured(balance, 11.0, EVEN, (0, 1), {0: 0.1, 1: 0.4}, LIMITS)[1] is not None


def test_small_gains_are_left_alone() -> None:
    balance = LaneBalance()
    for now in (10.0, 11.0, 12.0):
        balance, proposal = lane_balance.measured(balance, now, EVEN, (0, 1), {0: 0.1, 1: 0.11}, LIMITS)
        assert proposal is None


def test_speeds_of_strangers_are_forgotten() -> None:
    balance, _ = lane_balance.measured(LaneBalance(), 1.0, EVEN, (0, 1), {0: 0.1, 1: 0.2, 7: 9.0}, LIMITS)
    assert balance.seconds == {0: 0.1, 1: 0.2}
    assert lane_balance.installed(balance, 2.0, ALONE, (0, 8), LIMITS).seconds == {0: 0.1}


def test_an_idle_worker_is_tried_with_growing_patience() -> None:
    """It stays slow: it gets a lane for a while after 5 s, 10 s, 15 s, 15 s, ... and loses it again."""
    tries, gaps = [], []
    drivers: tuple[int, ...] = ALONE
    balance = lane_balance.installed(LaneBalance({0: 0.1, 1: 2.0}), 0.0, drivers, (0, 1), LIMITS)
    idle_since = 0.0
    for tick in range(1, 800):
        now = tick / 10
        seconds = {0: 0.1, 1: 2.0} if 1 in drivers else {0: 0.1}
        balance, proposal = lane_balance.measured(balance, now, drivers, (0, 1), seconds, LIMITS)
        if proposal is not None:
            if 1 in proposal.drivers:
                tries.append(proposal.reason)
                gaps.append(round(now - idle_since))
            else:
                idle_since = now
            drivers = proposal.drivers
            balance = lane_balance.installed(balance, now, drivers, (0, 1), LIMITS)
    assert gaps == [5, 10, 15, 15, 15]
    assert tries[0] == "worker 1 drives no lane; it is tried with lane 5 to see how fast it is now"


def test_a_worker_that_is_fast_again_keeps_its_lanes() -> None:
    drivers: tuple[int, ...] = ALONE
    balance = lane_balance.installed(LaneBalance({0: 0.1, 1: 2.0}), 0.0, drivers, (0, 1), LIMITS)
    for tick in range(1, 100):
        now = tick / 10
        seconds = {0: 0.1, 1: 0.1} if 1 in drivers else {0: 0.1}
        balance, proposal = lane_balance.measured(balance, now, drivers, (0, 1), seconds, LIMITS)
        if proposal is not None:
            drivers = proposal.drivers
            balance = lane_balance.installed(balance, now, drivers, (0, 1), LIMITS)
    assert drivers == EVEN
    assert balance.probes == {}


def test_a_lane_is_not_taken_from_who_has_only_one() -> None:
    limits = CrewLimits(lanes=2, workers=2)
    balance = lane_balance.installed(LaneBalance({0: 0.1, 1: 0.1, 2: 9.0}), 0.0, (0, 1), (0, 1, 2), limits)
    assert lane_balance.measured(balance, 99.0, (0, 1), (0, 1, 2), {0: 0.1, 1: 0.1}, limits)[1] is None
