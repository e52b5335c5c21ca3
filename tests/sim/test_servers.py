"""Workers and parameter servers under the clock rule: thousands of random clusters, and rules broken on purpose.

A failure names its seed; `simulate(seed)` plays it again, event by event.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from holdfast.core.sync import modes
from holdfast.core.sync.modes import Clocks, HeldBack, Mode, TakenPush, parse
from holdfast.testing.model import Violation
from holdfast.testing.server_pushes import Push, Record, Server, Worker
from holdfast.testing.servers import KINDS, Config, Report, Trouble, draw, simulate
from tests.sim.mutants import caught

SEEDS, CHUNK = 2000, 100
LARGE_CHUNK = 20
#: Large clusters that are part of every test run, and some in which a broken rule shows soon.
SOME_LARGE = [("async", 0), ("exact", 2), ("bounded:3", 5), ("quorum:512", 42)]
CAUGHT_LARGE = [
    ("applies twice", 0), ("accepts repeats", 0), ("loses pushes", 0), ("forgets a push", 0), ("loses the version", 0),
    ("does not wait", 1), ("skips a lane", 2), ("drives its first lane", 2), ("never pulls", 2),
    ("allows one more", 5), ("allows one more", 42),
]  # fmt: skip
PLAIN = Config(parse("exact"), lanes=6, workers=3, servers=3, slices=9, steps=8)


def run(*troubles: Trouble, mode: str = "exact", seed: int = 1) -> Report:
    return simulate(seed, replace(PLAIN, mode=parse(mode), troubles=troubles))


# ------------------------------------------------------------ random clusters


def large(seed: int) -> Config:
    return draw(seed, large=True)


@pytest.mark.parametrize("start", range(0, SEEDS, CHUNK))
def test_small_clusters(start: int) -> None:
    for seed in range(start, start + CHUNK):
        simulate(seed)


@pytest.mark.parametrize(("mode", "seed"), SOME_LARGE)
def test_a_thousand_workers_and_fifty_servers(mode: str, seed: int) -> None:
    config = large(seed)
    assert (config.lanes, config.workers, config.servers, config.mode.name) == (1000, 1000, 50, mode)
    assert config.loss > 0 and config.double > 0 and config.messages > 2 and len(config.troubles) >= 30
    report = simulate(seed, config)
    assert report.versions >= config.steps == 12
    assert report.moved > 0 and report.refused > 0
    # Lanes came to where they are held, so a rule that lets them go too far would have been seen.
    assert config.mode.bound is None or report.furthest == config.mode.bound


@pytest.mark.chaos
@pytest.mark.parametrize("start", range(0, SEEDS, LARGE_CHUNK))
def test_two_thousand_large_clusters(start: int) -> None:
    """With `pytest -n 2 -v`, well under an hour on two cores; each line is another twenty."""
    for seed in range(start, start + LARGE_CHUNK):
        simulate(seed, large(seed))


@pytest.mark.chaos
@pytest.mark.parametrize("start", range(SEEDS, 5 * SEEDS, CHUNK))
def test_many_more_small_ones(start: int) -> None:
    for seed in range(start, start + CHUNK):
        simulate(seed)


def test_seeds_see_every_mode_every_trouble_and_every_defence() -> None:
    configs, reports = [draw(seed) for seed in range(400)], [simulate(seed) for seed in range(400)]
    assert {config.mode.name.partition(":")[0] for config in configs} == {
        "exact", "bounded", "async", "quorum", "local",
    }  # fmt: skip
    assert {trouble.what for config in configs for trouble in config.troubles} == set(KINDS)
    for defence in ("moved", "refused", "fenced"):
        assert sum(getattr(report, defence) > 0 for report in reports) > 5, defence


def test_the_same_seed_does_the_same_in_another_process() -> None:
    code = "from holdfast.testing.servers import simulate; print(*(simulate(s).trace for s in range(20)))"
    out = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": "77"}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    traces = [simulate(seed).trace for seed in range(20)]
    assert out.stdout.split() == [str(trace) for trace in traces]
    assert len(set(traces)) == 20


# ------------------------------------------------------------ named troubles


@pytest.mark.parametrize("mode", ["exact", "bounded:0", "local:2"])
def test_undisturbed_a_version_is_a_step(mode: str) -> None:
    assert run(mode=mode).versions == 8


@pytest.mark.parametrize("mode", ["exact", "bounded:2", "quorum:3", "async"])
@pytest.mark.parametrize("what", KINDS)
def test_one_trouble_of_each_kind(what: str, mode: str) -> None:
    for seed in range(5):
        report = run(Trouble(0.2, what, seed), mode=mode, seed=seed)
        assert report.versions >= 8
        if what in ("lose server", "cut server"):
            assert report.generations >= 2 and report.moved > 0


def test_slices_leave_a_server_that_turns_out_to_be_slow() -> None:
    """Nobody tells how fast servers are: it is measured while they apply, and it takes a while to be believed."""
    troubles = [Trouble(0.2, "slow server", 1)] * 3
    busy = replace(PLAIN, mode=parse("async"), slices=30, steps=60, troubles=tuple(troubles))
    report = simulate(1, busy)
    assert report.generations > 1 and report.moved > 0


def test_a_server_that_goes_on_after_it_was_replaced_is_refused() -> None:
    pausing = replace(PLAIN, pauses=0.5, mode=parse("async"), troubles=(Trouble(0.3, "cut server", 1),))
    assert sum(simulate(seed, pausing).fenced for seed in range(30)) > 0


def test_all_servers_are_replaced_one_after_the_other() -> None:
    troubles = [Trouble(0.2 * n, what) for n in range(1, 6) for what in ("add server", "lose server")]
    for seed in range(10):
        assert run(*troubles, mode="bounded:1", seed=seed).generations > 3


@pytest.mark.parametrize("mode", ["quorum:2", "quorum:5", "bounded:3", "async"])
def test_lanes_of_very_unequal_speed(mode: str) -> None:
    """More steps than a quorum's bound, so the fast ones come to wait for the slow ones."""
    for seed in range(20):
        report = simulate(seed, replace(PLAIN, mode=parse(mode), workers=6, steps=30, pauses=0.1))
        assert report.versions >= 30


# ------------------------------------------------------------ mutants


class AppliesTwice(Record):
    """Applies what a message brought once more."""

    def apply(self, commit_set: Sequence[TakenPush]) -> list[Push]:
        return [push for push in super().apply(commit_set) for _ in range(2)]


class AcceptsRepeats(Record):
    """Takes a push in, whether or not it is news."""

    @staticmethod
    def receive(records: Sequence[Record], push: Push, complete: bool) -> tuple[int, list[Push]]:
        for record in records:
            record.pushes[push[:2]] = push
        return len(records), []


class TakesInWhatCounts(Record):
    """Takes a push in when the lane's clock was raised already."""

    @staticmethod
    def receive(records: Sequence[Record], push: Push, complete: bool) -> tuple[int, list[Push]]:
        return Record.receive(records, push, complete=False)


class LosesTheRecord(Record):
    """A slice moves as its parameters alone."""

    def moved(self) -> Record:
        other = type(self)()
        other.generation, other.value = self.generation, self.value
        return other


class LosesPushes(Record):
    """A slice moves without the pushes that were not applied yet."""

    def moved(self) -> Record:
        other = super().moved()
        other.pushes = {}
        return other


class ForgetsAPush(Record):
    """A slice moves without the push that came last."""

    def moved(self) -> Record:
        other = super().moved()
        if other.pushes:
            other.pushes.popitem()
        return other


class LosesTheVersion(Record):
    """A slice moves, and its new owner does the last version again."""

    def moved(self) -> Record:
        other = super().moved()
        other.version = max(other.version - 1, 0)
        return other


class NotFenced(Server):
    """Goes on with a slice that another server has fetched."""

    def fenced(self, record: Record) -> bool:
        return False


class NeverPulls(Worker):
    """Computes with the parameters that it began with."""

    def pulled(self) -> int:
        return 0


def ignores_the_bound(mode: Mode, now: Clocks, mine: Sequence[int]) -> int | HeldBack | None:
    """Lets lanes run ahead of others for ever."""
    return modes.next_lane(mode if mode.bound is None else replace(mode, bound=1000), now, mine)


def allows_one_more(mode: Mode, now: Clocks, mine: Sequence[int]) -> int | HeldBack | None:
    """Lets lanes be one step further ahead than they may."""
    return modes.next_lane(mode if mode.bound is None else replace(mode, bound=mode.bound + 1), now, mine)


def ignores_the_room(mode: Mode, now: Clocks, mine: Sequence[int]) -> int | HeldBack | None:
    """Lets lanes push more than there is room for."""
    return modes.next_lane(mode, Clocks(now.steps, now.pushed, now.taken, now.pushed), mine)


def drives_its_first_lane_only(mode: Mode, now: Clocks, mine: Sequence[int]) -> int | HeldBack | None:
    """Forgets the lanes that a worker took over."""
    return modes.next_lane(mode, now, mine[:1])


def leaves_late_lanes_out(mode: Mode, now: Clocks) -> tuple[TakenPush, ...] | None:
    """Takes only pushes of the newest step."""
    made = modes.commit_set(mode, now)
    return made and tuple(push for push in made if push.step == max(step for _, step in made))


def skips_a_lane(mode: Mode, now: Clocks) -> tuple[TakenPush, ...] | None:
    """Leaves the last lane for another time, where there are others."""
    made = modes.commit_set(mode, now)
    return made and (made[:-1] or made)


def waits_for_lanes_that_wait(mode: Mode, now: Clocks) -> tuple[TakenPush, ...] | None:
    """Wants a quorum of all lanes that have steps left, also of those held back until there is a commit set."""
    made = modes.commit_set(mode, now)
    wanted = min(mode.quorum or len(now.taken), sum(taken < now.steps for taken in now.taken))
    return made if made is not None and len(made) >= wanted else None


def does_not_wait(mode: Mode, now: Clocks) -> tuple[TakenPush, ...] | None:
    """Makes commit sets of whatever there is."""
    return modes.commit_set(replace(mode, quorum=1), now)


Mutate = Callable[[Config], Config]
MUTANTS: dict[str, tuple[Mutate, str]] = {
    "applies twice": (lambda config: replace(config, record=AppliesTwice), "not its commit set"),
    "accepts repeats": (lambda config: replace(config, record=AcceptsRepeats), "is not there"),
    "takes in what counts": (lambda config: replace(config, record=TakesInWhatCounts), "counts, and the lane has"),
    "loses the record": (lambda config: replace(config, record=LosesTheRecord), "is not there"),
    "loses pushes": (lambda config: replace(config, record=LosesPushes), "is not there"),
    "forgets a push": (lambda config: replace(config, record=ForgetsAPush), "is not there"),
    "loses the version": (lambda config: replace(config, record=LosesTheVersion), "is not there"),
    "does not fence": (lambda config: replace(config, server=NotFenced), "goes on from"),
    "never pulls": (lambda config: replace(config, worker=NeverPulls), "too stale"),
    "ignores the bound": (lambda config: replace(config, next_lane=ignores_the_bound), "ahead of the slowest"),
    "allows one more": (lambda config: replace(config, next_lane=allows_one_more), "ahead of the slowest"),
    "ignores the room": (lambda config: replace(config, next_lane=ignores_the_room), "there is no room"),
    "drives its first lane": (lambda config: replace(config, next_lane=drives_its_first_lane_only), "starves"),
    "leaves late lanes out": (lambda config: replace(config, commit_set=leaves_late_lanes_out), "leaves out"),
    "skips a lane": (lambda config: replace(config, commit_set=skips_a_lane), "leaves out"),
    "waits for lanes that wait": (lambda config: replace(config, commit_set=waits_for_lanes_that_wait), "starves"),
    "does not wait": (lambda config: replace(config, commit_set=does_not_wait), "did not wait"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name: str) -> None:
    mutate, expected = MUTANTS[name]
    caught(simulate, range(SEEDS), draw, mutate, expected)


@pytest.mark.parametrize(("name", "seed"), CAUGHT_LARGE)
def test_mutants_are_caught_in_large_clusters(name: str, seed: int) -> None:
    mutate, expected = MUTANTS[name]
    with pytest.raises(Violation, match=expected):
        simulate(seed, mutate(large(seed)))


@pytest.mark.chaos
@pytest.mark.parametrize("name", MUTANTS)
def test_all_mutants_are_caught_in_large_clusters(name: str) -> None:
    """By whatever shows first: what a rule is there for, or what follows when it is broken."""
    caught(simulate, range(40), large, MUTANTS[name][0], "seed")
