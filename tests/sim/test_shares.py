"""Runs with a plain loop, in which a unit is a worker's whole share of a step: random ones, and single faults."""

from __future__ import annotations

import pytest

from holdfast.control.protocol.messages import Install
from holdfast.core.shares import LostPart, Share
from holdfast.testing import faults
from holdfast.testing.cluster import Config, SimCluster, SimReport, simulate
from holdfast.testing.config import draw_plain, draw_plain_hosts, plain
from holdfast.testing.fake_host import FakeHost
from holdfast.testing.faults import HOST_POINTS, POINTS, Fault, Schedule
from holdfast.testing.model import Model, Violation
from holdfast.testing.shares.share_arena import FakeShare, ShareArena
from holdfast.testing.shares.share_history import HostHistory, ShareHistory
from holdfast.testing.shares.share_worker import ShareView, ShareWorker
from tests.sim.test_mutants import draw_followers

SEEDS, HOST_SEEDS, FOLLOWER_SEEDS, CHUNK, TWICE = 600, 800, 100, 50, 4
MODEL = Model(lanes=6, slices=4, steps=8)


def run(
    *found: Fault, workers: int = 3, hosts: tuple[int, ...] = (), awaited: int = 1, model: Model = MODEL, seed: int = 1
) -> SimReport:
    schedule = Schedule(found)
    return simulate(seed, plain(Config(model=model, workers=workers, hosts=hosts, awaited=awaited, schedule=schedule)))


# ---------------------------------------------------------------- seeds


@pytest.mark.parametrize("start", range(0, SEEDS, CHUNK))
def test_seeds(start: int) -> None:
    for seed in range(start, start + CHUNK):
        report = simulate(seed, draw_plain(seed))
        assert report.story
        if seed % TWICE == 0:
            assert simulate(seed, draw_plain(seed)).trace_hash == report.trace_hash, f"seed {seed} went two ways"


@pytest.mark.parametrize("start", range(0, HOST_SEEDS, CHUNK))
def test_seeds_on_several_hosts(start: int) -> None:
    for seed in range(start, start + CHUNK):
        report = simulate(seed, draw_plain_hosts(seed))
        assert report.story
        if seed % TWICE == 0:
            assert simulate(seed, draw_plain_hosts(seed)).trace_hash == report.trace_hash, f"seed {seed} went two ways"


@pytest.mark.parametrize("start", range(0, FOLLOWER_SEEDS, CHUNK))
def test_seeds_where_slow_hosts_follow(start: int) -> None:
    for seed in range(start, start + CHUNK):
        assert simulate(seed, plain(draw_followers(seed))).outcome == "end"


@pytest.mark.parametrize("seed", [50, 80, 907])
def test_a_step_that_a_host_has_made_is_not_made_again_of_other_shares(seed: int) -> None:
    """Its workers are all gone, or about to leave, and others hold the state from before it."""
    assert simulate(seed, draw_plain_hosts(seed)).outcome == "end"


@pytest.mark.parametrize("seed", [387, 859])
def test_a_share_does_not_count_where_the_step_was_shared_out_anew_without_its_host(seed: int) -> None:
    assert simulate(seed, draw_plain_hosts(seed)).outcome == "end"


@pytest.mark.parametrize("seed", [2355, 3114, 3642, 4047, 4983, 5174, 5962])
def test_a_share_that_does_not_count_is_not_taken_for_one_with_the_same_first_lane(seed: int) -> None:
    assert simulate(seed, draw_plain_hosts(seed)).outcome == "end"


def test_gradients_of_a_step_that_all_can_finish_do_not_take_the_place_of_those_of_the_next() -> None:
    assert simulate(14851, draw_plain_hosts(14851)).outcome == "end"


def test_sums_that_were_held_back_for_a_copy_are_made_when_the_copy_is_made_anew() -> None:
    assert simulate(9199, draw_plain_hosts(9199)).outcome == "end"


def test_a_host_that_follows_takes_steps_for_what_they_were() -> None:
    """The crew's generation, by which shares are cut, is newer than the one in which it began to follow."""
    assert simulate(400, draw_plain_hosts(400)).outcome == "end"


# ---------------------------------------------------------------- single faults


def test_a_loop_is_a_plain_one_or_one_by_steps() -> None:
    with pytest.raises(ValueError, match="a script's loop is a plain one, or one by steps"):
        Model(lanes=2, slices=1, steps=1, shares=True, by_steps=True)


def test_undisturbed() -> None:
    report = run()
    assert (report.outcome, report.generations, report.lost) == ("end", 1, 0)


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("part", [0.3, 0.85, 0.95])
@pytest.mark.parametrize("during", POINTS)
def test_kill_anywhere(during: str, part: float, clip: bool) -> None:
    model = Model(lanes=6, slices=4, steps=30, clip=clip)
    kill = faults.at(worker=1, step=0 if during in ("quiet", "install") else 3, during=during, part=part).kill()
    report = run(kill, faults.after(0.5).scale(4), model=model)  # the join makes everybody quiet once
    assert (report.outcome, report.lost) == ("end", 1)


@pytest.mark.parametrize("during", POINTS + HOST_POINTS)
def test_a_host_is_lost_anywhere(during: str) -> None:
    model = Model(lanes=6, slices=4, steps=20)
    for part in (0.3, 0.95):
        step = 0 if during in ("quiet", "install", "start", "fetch") else 3
        strikes = [faults.at(worker=w, step=step, during=during, part=part).lose_host() for w in range(2, 6)]
        change = [faults.after(0.7).scale(5)] if during in ("quiet", "install") else []
        report = run(*strikes, *change, workers=2, hosts=(2, 2), awaited=3, model=model)
        assert report.outcome == "end"


def backlogs(found: Fault, *, workers: int) -> dict[int, list[LostPart]]:
    """Step -> what was left over after it, in a run in which this happens."""
    cluster = SimCluster(1, plain(Config(model=MODEL, workers=workers, schedule=Schedule((found,)))))
    assert cluster.run().outcome == "end"
    return {version - 1: sorted(left) for version, left in cluster.history.backlogs().items() if left}


def test_what_a_lost_worker_owed_joins_the_next_step() -> None:
    kill = faults.at(worker=1, step=3).kill()
    assert backlogs(kill, workers=3) == {3: [LostPart(0, 0, 3, 2), LostPart(0, 0, 3, 3)]}


def test_a_share_outlives_its_worker() -> None:
    assert backlogs(faults.at(worker=1, step=3, during="arrive").kill(), workers=3) == {}


def test_where_nobody_has_given_anything_the_step_is_shared_out_anew() -> None:
    assert backlogs(faults.at(worker=0, step=3).kill(), workers=1) == {}


def test_what_is_lost_in_the_last_step_is_left_over() -> None:
    kill = faults.at(worker=2, step=7).kill()
    assert backlogs(kill, workers=3) == {7: [LostPart(0, 0, 7, 4), LostPart(0, 0, 7, 5)]}


def test_a_worker_that_has_gone_through_a_step_without_samples_gives_the_empty_share() -> None:
    """Only the first worker has samples in step 2, and dies over them: its lanes go to others that are past that."""
    model = Model(lanes=6, slices=4, steps=8, short=2)
    kill = faults.at(worker=0, step=2).kill()
    cluster = SimCluster(1, plain(Config(model=model, workers=3, schedule=Schedule((kill,)))))
    assert cluster.run().outcome == "end"
    assert any(not share.parts for share in cluster.history.made(2)), cluster.history.made(2)
    assert sorted(cluster.history.backlogs()[3]) == [LostPart(0, 0, 2, 0), LostPart(0, 0, 2, 1)]


# ---------------------------------------------------------------- the watchman himself


@pytest.fixture
def host() -> FakeHost:
    return FakeHost(SimCluster(1, plain(Config(model=MODEL, workers=1))), 0, 1)


def share(first: int, last: int, step: int = 0) -> FakeShare:
    return FakeShare(Share(first, last), 1, tuple(LostPart(0, 0, step, lane) for lane in range(first, last)), False)


def test_two_ways_of_making_a_step_are_seen(host: FakeHost) -> None:
    history = ShareHistory(MODEL)
    one, other = HostHistory(history, host), HostHistory(history, host)
    one.commit(0, (share(0, 6),), (1, 2, 3, 4), ())
    other.commit(0, (share(0, 6),), (1, 2, 3, 4), ())
    with pytest.raises(Violation, match="host 0 makes step 0 of"):
        other.commit(0, (share(0, 3),), (5, 6, 7, 8), tuple(share(3, 6).parts))


def test_what_only_a_lost_host_had_made_may_be_made_again(host: FakeHost) -> None:
    history = ShareHistory(MODEL)
    lost = FakeHost(host.cluster, 1, 1)
    HostHistory(history, lost).commit(0, (share(0, 6),), (1, 2, 3, 4), ())
    lost.up = False
    HostHistory(history, host).commit(0, (share(0, 3),), (5, 6, 7, 8), tuple(share(3, 6).parts))
    assert history.made(0) == (share(0, 3),)


def test_samples_that_are_used_twice_are_seen(host: FakeHost) -> None:
    arena = host.arena
    assert isinstance(arena, ShareArena)
    arena.seed()
    arena.give(0, share(0, 4))
    arena.give(0, share(3, 6))
    with arena.seen([0, 3]), pytest.raises(Violation, match="step 0 uses"):
        arena.settle(0)


def test_samples_that_are_nowhere_are_seen(host: FakeHost) -> None:
    history = ShareHistory(MODEL)
    HostHistory(history, host).commit(0, (share(0, 5),), (1, 2, 3, 4), ())
    with pytest.raises(Violation, match="of 6 parts 5 were used and 0 left over"):
        history.check_end([1])


def test_a_share_that_came_and_does_not_count_is_seen(host: FakeHost) -> None:
    arena = host.arena
    assert isinstance(arena, ShareArena)
    arena.seed()
    arena.give(0, share(0, 4))
    arena.stayed = True
    with pytest.raises(Violation, match=r"of step 0 shares \[0\] have come, and \[\] are to count"):
        arena.begin_generation(frozenset(range(6)))


def test_a_turn_that_is_played_again_is_seen(host: FakeHost) -> None:
    arena = host.arena
    assert isinstance(arena, ShareArena)
    arena.seed()
    worker = ShareWorker(host.cluster, host, 0, 0, [])
    worker.step, worker.turns = 0, [0]
    worker._board_view = ShareView(arena, 0, Install(1, [0], [0], [0] * 6, [0], {}, 0))
    with pytest.raises(Violation, match=r"worker 0 runs the body of step 0 after those of \[0\]"):
        worker._turn_begins()
