"""Runs on several hosts: single faults, named one by one, and what becomes of the run."""

from __future__ import annotations

import pytest

from holdfast.testing import faults
from holdfast.testing.cluster import Config, SimReport, draw_hosts, simulate
from holdfast.testing.fake_arena import FakeArena, FakeSum
from holdfast.testing.faults import HOST_POINTS, POINTS, Fault, LinkFaults, Schedule
from holdfast.testing.model import Model, Violation, golden_chain

MODEL = Model(lanes=6, slices=4, steps=8)


def run(*found: Fault, workers: int = 2, hosts: tuple[int, ...] = (2, 2), awaited: int = 3, model: Model = MODEL,
        link: LinkFaults | None = None, follow: bool = True, seed: int = 1) -> SimReport:
    schedule = Schedule(found, link or LinkFaults())
    config = Config(
        model=model, workers=workers, hosts=hosts, awaited=awaited, follow=follow, schedule=schedule,
    )
    return simulate(seed, config)


@pytest.mark.parametrize("hosts", [(1,), (2, 2), (1, 1, 1)])
def test_undisturbed(hosts: tuple[int, ...]) -> None:
    report = run(hosts=hosts, awaited=len(hosts) + 1)
    assert (report.outcome, report.generations, report.lost) == ("end", 1, 0)
    assert "gets the state from host" in report.story


def test_without_workers_beside_the_coordinator() -> None:
    report = run(workers=0, awaited=2)
    assert (report.outcome, report.generations) == ("end", 1)
    assert "the run waits for 2 hosts to join: this machine has no workers" in report.story


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("during", POINTS + HOST_POINTS)
def test_a_host_is_lost_anywhere(during: str, clip: bool) -> None:
    model = Model(lanes=6, slices=4, steps=20, clip=clip)
    for part in (0.3, 0.95):
        step = 0 if during in ("quiet", "install", "start", "fetch") else 3
        strikes = [faults.at(worker=w, step=step, during=during, part=part).lose_host() for w in range(2, 6)]
        change = [faults.after(0.7).scale(5)] if during in ("quiet", "install") else []
        report = run(*strikes, *change, model=model)
        assert report.outcome == "end"
        assert "lost (its connection was closed)" in report.story


def test_a_host_is_lost_and_what_it_had_is_computed_again() -> None:
    report = run(faults.host(2, after=0.7).lose())
    assert (report.outcome, report.lost, report.generations) == ("end", 2, 2)
    assert "host 2 lost (its connection was closed) with workers" in report.story


def test_all_but_one_are_lost() -> None:
    report = run(faults.host(1, after=0.7).lose(), faults.host(2, after=0.7).lose())
    assert (report.outcome, report.lost) == ("end", 4)


def test_every_host_is_lost() -> None:
    report = run(faults.host(1, after=0.7).lose(), faults.host(2, after=0.7).lose(), workers=0, awaited=2)
    assert report.outcome == "ResourceError"
    assert "no host that is left had all of it" in report.message


def test_a_short_cut_is_noticed_by_nobody() -> None:
    report = run(faults.host(1, after=0.7).cut(0.2))
    assert (report.outcome, report.lost, report.generations) == ("end", 0, 1)


def test_a_host_that_is_cut_off_joins_again() -> None:
    report = run(faults.host(1, after=0.7).cut(0.8), model=Model(lanes=6, slices=4, steps=40))
    assert (report.outcome, report.lost) == ("end", 2)
    assert "host 1 lost (no sign of life for 0.5 s, limit 0.5 s) with workers" in report.story
    assert "host 3 (host-3) joined with 2 slots" in report.story
    assert "host 3 follows host 0" in report.story


def test_a_host_that_is_cut_off_for_ever() -> None:
    report = run(faults.host(1, after=0.7).cut())
    assert (report.outcome, report.lost) == ("end", 2)


def test_a_slow_host_gets_fewer_lanes() -> None:
    report = run(faults.host(2, after=0.5).slow(4.0), model=Model(lanes=6, slices=4, steps=30))
    assert report.outcome == "end"
    assert "and goes from" in report.story


def test_a_host_joins_and_fetches_the_state() -> None:
    model = Model(lanes=6, slices=4, steps=30)
    report = run(faults.after(0.7).join(2), hosts=(1,), awaited=2, model=model, follow=False)
    assert (report.outcome, report.lost) == ("end", 0)
    assert "host 2 gets the state from host " in report.story


def test_a_host_joins_and_follows_first() -> None:
    report = run(faults.after(0.7).join(2), hosts=(1,), awaited=2, model=Model(lanes=6, slices=4, steps=30))
    assert (report.outcome, report.lost) == ("end", 0)
    assert "host 2 follows host 0 until it has caught up" in report.story
    assert "host 2 has caught up" in report.story
    assert "host 2 gets the state" not in report.story


def test_a_lone_host_donors() -> None:
    report = run(faults.after(0.7).join(2), hosts=(), awaited=1, model=Model(lanes=6, slices=4, steps=30))
    assert report.outcome == "end"
    assert "host 1 is to follow" in report.story
    assert "host 1 has caught up" in report.story


def test_a_donor_is_lost() -> None:
    for after in (0.85, 0.9, 0.95):
        found = [faults.after(0.7).join(1), faults.host(1, after=after).lose()]
        report = run(*found, workers=0, hosts=(1, 1), awaited=2, model=Model(lanes=6, slices=4, steps=30))
        assert report.outcome == "end"


def test_links_break() -> None:
    report = run(faults.host(1, after=0.7).unlink(), model=Model(lanes=6, slices=4, steps=20))
    assert (report.outcome, report.lost, report.generations) == ("end", 0, 2)
    assert "has lost a connection (reset by peer)" in report.story


def test_a_host_leaves() -> None:
    report = run(faults.host(1, after=0.7).leave(), model=Model(lanes=6, slices=4, steps=30))
    assert (report.outcome, report.lost, report.generations) == ("end", 0, 2)
    assert "host 1 (host-1) is to leave (SIGTERM)" in report.story
    assert "host 1 is let go" in report.story


def test_every_host_is_replaced() -> None:
    found = [faults.host(1, after=0.5).leave(), faults.after(0.6).join(2), faults.host(2, after=1.2).leave()]
    report = run(*found, workers=0, hosts=(2,), awaited=1, model=Model(lanes=4, slices=4, steps=60))
    assert report.outcome == "end"
    assert "it goes on until another host has the state of the run" in report.story
    assert "host 1 is let go" in report.story


def test_a_source_is_lost_while_others_fetch_from_it() -> None:
    """Those that had an older state go on from it."""
    for seed in range(20):
        strike = faults.at(worker=3, step=1, during="quiet", part=0.0).cut_host()
        report = run(faults.at(worker=1, step=2, during="finish").kill(), strike, seed=seed)
        assert report.outcome == "end"


def test_links_that_lose_messages() -> None:
    for seed in range(10):
        link = LinkFaults(loss=0.33, double=0.2, late=0.3)
        report = run(faults.host(1, after=2.5).cut(0.8), faults.at(worker=0, step=4).kill(), link=link, seed=seed)
        assert report.outcome == "end"


def test_drain_ends_every_host_at_the_same_step() -> None:
    for seed in range(10):
        report = run(faults.after(0.9).drain(), faults.host(2, after=0.9).lose(), seed=seed)
        assert report.message == "ended early (asked for)"


def test_swarms_hold_every_kind_of_fault() -> None:
    schedules = [draw_hosts(seed).schedule.faults for seed in range(300)]
    kinds = {fault.what for schedule in schedules for fault in schedule}
    assert kinds >= {"lose", "cut", "unlink", "slow", "leave", "join", "lose host", "cut host", "kill", "scale"}


def test_faults_are_data() -> None:
    assert faults.host(1, after=0.5).cut(2.0) == faults.HostFault(1, 0.5, "cut", 2.0)
    assert faults.at(worker=1, step=7, during="sum").lose_host() == faults.At(1, 7, "sum", 0.5, "lose host")


# ---------------------------------------------------------------- the watchman himself


@pytest.fixture
def arena() -> FakeArena:
    arena = FakeArena(MODEL, rows=4)
    arena.seed()
    return arena


def test_a_level_needs_all_sums_and_all_facts(arena: FakeArena) -> None:
    total = golden_chain(MODEL)[1][0]
    assert FakeArena(MODEL, rows=4).level() == -1
    arena.land_facts(0, range(6))
    for slice_ in range(4):
        assert arena.level() == 0
        arena.land_total(0, slice_, total, 0)
    assert arena.level() == 1
    other = FakeArena(MODEL, rows=4)
    other.seed()
    for slice_ in range(4):
        other.land_total(0, slice_, total, 0)
    assert other.level() == 0


def test_a_generation_forgets_sums_that_are_not_complete(arena: FakeArena) -> None:
    arena.land_total(0, 2, golden_chain(MODEL)[1][0], 0)
    arena.land_piece(0, 1, 3, FakeSum(1, 7, 8))
    arena.begin_generation(frozenset(range(6)))
    assert arena.summed == [0] * 4
    assert not any(arena.pieces)


def test_what_comes_of_an_old_generation_is_seen(arena: FakeArena) -> None:
    arena.installed(0, 4)
    with pytest.raises(Violation, match="a piece of generation 3 comes in generation 4"):
        arena.check_fence(3, "a piece")


def test_a_state_that_goes_back_is_seen(arena: FakeArena) -> None:
    states = golden_chain(MODEL)[0]
    arena.land_state(1, 5, states[5])
    with pytest.raises(Violation, match="a host at step 5 fetches the state at step 4"):
        arena.land_state(2, 4, states[4])
