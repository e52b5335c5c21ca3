"""When slices move between servers for speed: hysteresis, what is worth a pause, and trying slow servers again."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest

from holdfast.config.limits import CrewConfig
from holdfast.control import slice_balance
from holdfast.control.membership.roster import CrewLimits
from holdfast.control.slice_balance import Applied, OwnerChange, SliceBalance

LIMITS = CrewLimits(lanes=4, workers=2, crew=CrewConfig(settle=1.0, probe=5.0, probe_limit=15.0))
MB = 1_000_000
SIZES = [MB] * 12
EVEN = (2,) * 6 + (3,) * 6
SERVERS = (2, 3)


class Pretended:
    """Two servers that apply a version every tenth of a second, and a report every half."""

    def __init__(self, rates: Mapping[int, float], owners: tuple[int, ...] = EVEN) -> None:
        self.rates, self.owners = dict(rates), owners
        self.owning, self.since, self.now = SliceBalance(), 0.0, 0.0
        self.applied = dict.fromkeys(rates, (0, 0.0))
        self.changes: list[OwnerChange] = []
        self.noise = random.Random(5)

    def report(self, versions: int = 5, noise: float = 0.0) -> OwnerChange | None:
        self.now += 0.5
        for server, rate in self.rates.items():
            size = sum(size for size, owner in zip(SIZES, self.owners, strict=True) if owner == server) * versions
            took = size / rate * (1 + noise * (2 * self.noise.random() - 1))
            self.applied[server] = self.applied[server][0] + size, self.applied[server][1] + took
        shown = {server: total for server, total in self.applied.items() if total[0]}
        self.owning, change = slice_balance.measured(
            self.owning, self.now, self.since, self.owners, SIZES, SERVERS, shown, LIMITS
        )
        if change is not None:
            self.changes.append(change)
            self.owners, self.since = change.owners, self.now
            self.owning = slice_balance.installed(self.owning, self.now, self.owners, SERVERS, LIMITS)
        return change

    def held(self) -> list[int]:
        return [self.owners.count(server) for server in SERVERS]


def test_a_slow_server_gives_slices_away_after_two_reports_with_a_reason() -> None:
    run = Pretended({2: 1e9, 3: 0.2e9})
    assert [run.report() for _ in range(2)] == [None, None], "a rate needs two looks, and a change two rates"
    change = run.report()
    assert change is not None and run.held() == [10, 2]
    assert change.reason == (
        "slices move: a version should take 0.01 s and not 0.03 s (67% less): "
        "server 3 has 6 MB and applies 200 MB in a second (median 600 MB)"
    )
    assert not any(run.report() for _ in range(20)), "and that is good enough"


def test_a_server_that_becomes_slow_later_is_found_out_soon() -> None:
    run = Pretended({2: 1e9, 3: 1e9})
    assert not any(run.report() for _ in range(200))
    run.rates[3] = 0.25e9
    assert any(run.report() for _ in range(4))
    for _ in range(10):
        run.report()
    assert run.held()[1] <= 3 and len(run.changes) <= 2


def test_changes_keep_their_distance() -> None:
    run = Pretended({2: 1e9, 3: 0.2e9})
    run.since = 2.0
    assert [bool(run.report()) for _ in range(7)] == [False] * 5 + [True, False]


@pytest.mark.parametrize("settle", [0.0, 600.0])
def test_any_distance_between_changes_will_do(settle: float) -> None:
    limits = replace(LIMITS, crew=CrewConfig(settle=settle))
    known = SliceBalance()
    for at in range(1, 9):
        applied = {2: (at * MB, at * 0.1), 3: (at * MB, at * 0.4)}
        known, change = slice_balance.measured(known, at * 0.5, 0.0, EVEN, SIZES, SERVERS, applied, limits)
        assert (change is not None) == (settle == 0.0 and at > 2)
    assert known.rates() == {2: pytest.approx(MB / 0.1), 3: pytest.approx(MB / 0.4)}


def test_noise_moves_nothing() -> None:
    run = Pretended({2: 1e9, 3: 0.9e9})
    assert not any(run.report(noise=0.25) for _ in range(2000))


def test_where_servers_have_little_to_do_nothing_is_gained_by_moving() -> None:
    run = Pretended({2: 60e9, 3: 15e9})
    assert not any(run.report() for _ in range(50)), "of a tenth of a second, a version takes 0.4 ms"
    assert run.owning.shown[3].busy == pytest.approx(0.004)


def test_steps_that_take_longer_than_a_report_are_measured_all_the_same() -> None:
    run = Pretended({2: 1e9, 3: 0.2e9})
    for _ in range(4):
        run.report(versions=1)
        for _ in range(5):
            run.report(versions=0)
    assert run.owning.shown[3].busy < 0.02 and not run.changes, "30 ms in 3 s are worth no pause"
    assert run.owning.rates() == {2: pytest.approx(1e9), 3: pytest.approx(0.2e9)}


def test_a_server_that_is_too_slow_to_own_anything_is_tried_with_growing_patience() -> None:
    run = Pretended({2: 1e9, 3: 0.001e9})
    tries, idle = [], 0.0
    for _ in range(300):
        if change := run.report():
            if 3 in change.owners:
                tries.append(round(run.now - idle))
                assert change.reason == "server 3 owns nothing; it is tried with a little to see how fast it is now"
                assert run.held() == [11, 1]
            else:
                idle = run.now
    assert tries[:4] == [5, 10, 15, 15]


def test_a_server_that_is_fast_again_gets_its_share_back() -> None:
    run = Pretended({2: 1e9, 3: 0.001e9})
    while 3 in run.owners:
        run.report()
    run.rates[3] = 1e9
    for _ in range(60):
        run.report()
    assert run.held() == [6, 6] and not run.owning.probes


def test_a_server_that_nobody_has_seen_at_work_is_not_tried() -> None:
    after = slice_balance.installed(SliceBalance({2: Applied((1, 1.0), 0.0)}), 1.0, (2,) * 12, SERVERS, LIMITS)
    assert not after.probes and list(after.shown) == [2]


def test_where_there_is_one_slice_nothing_is_tried() -> None:
    probed = SliceBalance({3: Applied((1, 1.0), 0.0)}, probes=slice_balance.installed(
        SliceBalance({3: Applied((1, 1.0), 0.0)}), 0.0, (2,), SERVERS, LIMITS
    ).probes)  # fmt: skip
    assert list(probed.probes) == [3]
    assert slice_balance.measured(probed, 99.0, 0.0, (2,), [MB], SERVERS, {}, LIMITS)[1] is None


def test_owners_where_the_servers_have_changed() -> None:
    shown = {2: Applied((9, 9.0), 0.0, 3e6, 1.0, 1.0), 3: Applied((9, 9.0), 0.0, 1e6, 1.0, 1.0)}
    assert slice_balance.owners_for(SliceBalance(), (2, 3), SIZES) == EVEN
    assert slice_balance.owners_for(SliceBalance(shown), (2, 3), SIZES) == (2,) * 9 + (3,) * 3
    assert (
        slice_balance.owners_for(SliceBalance(shown), (), SIZES)
        == slice_balance.owners_for(SliceBalance(shown), (2,), ())
        == ()
    )
    assert slice_balance.owners_for(SliceBalance(), (2, 3, 4), [MB]) == (3,), "more servers than slices: some own none"
