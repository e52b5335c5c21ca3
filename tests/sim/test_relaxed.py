"""Relaxed modes, on several hosts, with replicas: random clusters, and named faults.

A failure names its seed; `simulate(seed)` plays it again, event by event.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.testing import faults
from holdfast.testing.cluster import Config
from holdfast.testing.relaxed.relaxed_cluster import draw, simulate
from tests.sim.relaxed_runs import draw_rounds, draw_turning, draw_unequal, primaries, run, unharmed

SEEDS, CHUNK = 300, 50


# ------------------------------------------------------------ random clusters


@pytest.mark.parametrize("start", range(0, SEEDS, CHUNK))
def test_seeds(start: int) -> None:
    for seed in range(start, start + CHUNK):
        report = simulate(seed)
        if seed % 10 == 0:
            assert simulate(seed).trace_hash == report.trace_hash, f"seed {seed} went two ways"


@pytest.mark.chaos
@pytest.mark.parametrize("start", range(SEEDS, 40 * SEEDS, CHUNK))
def test_many_more_seeds(start: int) -> None:
    for seed in range(start, start + CHUNK):
        simulate(seed)


def test_seeds_see_every_mode_and_every_kind_of_fault() -> None:
    configs = [draw(seed) for seed in range(SEEDS)]
    assert {one.sync.partition(":")[0] for one in configs} == {"bounded", "async", "quorum", "local"}
    assert {one.replicas for one in configs} == {0, 1, 2}
    kinds = {fault.what for one in configs for fault in one.schedule.faults}
    assert kinds >= {"lose", "cut", "unlink", "slow", "leave", "join", "lose host", "cut host", "kill", "scale", "sync"}


# ------------------------------------------------------------ named faults


@pytest.mark.parametrize("mode", ["bounded:0", "bounded:2", "async", "quorum:3", "local:5"])
@pytest.mark.parametrize("replicas", [0, 1, 2, 5])
def test_undisturbed(mode: str, replicas: int) -> None:
    report = run(mode=mode, replicas=replicas, seed=2)
    assert (report.outcome, report.generations, report.lost) == ("end", 1, 0)


@pytest.mark.parametrize("mode", ["bounded:0", "bounded:2", "async", "quorum:3", "local:1"])
def test_the_primary_is_lost_and_then_whoever_took_its_place(mode: str) -> None:
    """Two of three hosts, at whatever moment: the last of the chain goes on, and nothing is taken back."""
    for seed in range(12):
        (primary,) = primaries(run(seed=seed, mode=mode))
        first = faults.host(int(primary), after=0.95 + 0.01 * seed).lose()  # by now all replicas have something
        left = [number for number in (1, 2, 3) if number != int(primary)]
        second = faults.host(left[0], after=1.0 + 0.05 * seed).lose()
        report = run(first, second, seed=seed, mode=mode)
        assert (report.outcome, report.lost) == ("end", 4)


def test_the_primary_is_lost_without_replicas() -> None:
    (primary,) = primaries(run(replicas=0))
    report = run(faults.host(int(primary), after=0.8).lose(), replicas=0)
    assert report.outcome == "ResourceError"
    assert "no host that is left had all of it" in report.message


def test_a_new_replica_takes_the_place_of_one_that_was_lost() -> None:
    for seed in range(12):
        (primary,) = primaries(run(seed=seed, replicas=1))
        left = [number for number in (1, 2, 3) if number != int(primary)]
        found = [faults.host(left[0], after=0.75).lose(), faults.host(int(primary), after=1.0 + 0.02 * seed).lose()]
        assert run(*found, seed=seed, replicas=1).outcome == "end"


@pytest.mark.parametrize("drawn", [draw_turning, draw_rounds])
def test_the_primary_is_lost_around_a_change_of_the_mode(drawn: Callable[[int], Config]) -> None:
    turned = 0
    for seed in range(60):
        report = unharmed(seed, drawn(seed))
        assert report.lost == 2
        turned += "lanes keep step by" in report.story
    assert turned == 60, "whoever is lost, the mode changes"


@pytest.mark.parametrize("mode", ["bounded:3", "async", "quorum:2", "quorum:5"])
def test_lanes_of_very_unequal_speed(mode: str) -> None:
    for seed in range(12):
        assert simulate(seed, draw_unequal(seed, mode)).generations == 1
