"""Which replicas there should be, of which version; by lists of commands."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.serve.dispatch.rollout import End, Flip, Note, Rejected, Rollout, RolloutLimits, Start


def rollout(wanted=2, **limits):
    return Rollout(RolloutLimits(**limits), objective=0.05, wanted=wanted)


def answering(wanted=2, **limits):
    """A rollout whose version 1 answers with replicas 0, 1, ..."""
    made = rollout(wanted, **limits)
    made.offer(1, 0.0)
    for number in range(wanted):
        made.ready(number, 1.0, 0.001)
    return made


def kinds(commands, *wanted):
    return [command for command in commands if isinstance(command, wanted)]


def test_the_first_version_is_started_with_all_replicas_at_once_and_answers_when_they_are_ready():
    made = rollout()
    assert made.offer(1, 0.0) == [Start(0, 1), Start(1, 1)]
    assert made.ready(0, 1.0) == []
    assert made.ready(1, 1.0) == [Flip(1, (0, 1)), Note("version 1 answers")]


def test_a_lost_replica_is_replaced():
    made = answering()
    assert made.lost(0, 2.0, "signal 9") == [Flip(1, (1,)), Start(2, 1)]
    assert made.ready(2, 2.1) == [Flip(1, (1, 2))]


def test_a_replica_that_has_to_leave_answers_until_another_is_ready():
    made = answering()
    note = Note("replica 1 is to leave (SIGTERM); another is started first")
    assert made.leave(1, 3.0, "SIGTERM") == [note, Start(2, 1)]
    assert made.ready(2, 3.1) == [
        Flip(1, (0, 1, 2)), End(1, "another has taken its place"), Flip(1, (0, 2)),
    ]  # fmt: skip


def test_one_that_is_killed_while_it_leaves_has_its_replacement_already():
    made = answering()
    made.leave(1, 3.0, "SIGTERM")
    assert made.lost(1, 3.05, "signal 9") == [Flip(1, (0,))]
    assert made.ready(2, 3.1) == [Flip(1, (0, 2))]


def test_a_new_version_is_built_one_replica_after_the_other_and_all_flip_together():
    made = answering()
    assert made.offer(2, 5.0) == [Start(2, 2)]
    assert made.ready(2, 5.1) == [Start(3, 2)]
    assert made.ready(3, 5.2) == [Flip(2, (2, 3)), Note("version 2 answers")]
    assert made.of(1, "ready") == [0, 1]  # to go back to


def test_a_proven_version_ends_the_one_before_it():
    made = answering(prove=10.0)
    made.offer(2, 5.0)
    made.ready(2, 5.1)
    made.ready(3, 5.2)
    assert made.look(15.1) == []
    assert made.look(15.3) == [End(0, "version 2 is proven"), End(1, "version 2 is proven")]


@pytest.mark.parametrize(
    ("shown", "reason"),
    [
        ({"failures": 5, "answers": 15}, "5 of 20 requests have failed with version 2, 0.0% with version 1"),
        (
            {"not_finite": 3, "answers": 27},
            "3 of 27 answers had values that are not finite with version 2, 0.0% with version 1",
        ),
    ],
)
def test_a_worse_version_is_rolled_back_and_not_tried_again(shown, reason):
    made = answering()
    made.answered(1, answers=1000)
    made.offer(2, 5.0)
    made.ready(2, 5.1)
    made.ready(3, 5.2)
    made.answered(2, **shown)
    assert made.look(6.0) == [
        Rejected(2, reason), Flip(1, (0, 1)), Note(f"back to version 1: {reason}"), End(2, reason), End(3, reason),
    ]  # fmt: skip
    assert made.offer(2, 7.0) == []


def test_a_version_that_is_much_slower_is_rolled_back():
    made = answering()
    made.offer(2, 5.0)
    made.ready(2, 5.1, 0.2)
    made.ready(3, 5.2, 0.2)
    made.answered(2, answers=30)
    (rejected,) = kinds(made.look(6.0), Rejected)
    assert rejected.reason == "200.0 ms an item with version 2, 1.0 ms with version 1"


def test_a_few_failures_that_the_version_before_had_too_are_no_regression():
    made = answering()
    made.answered(1, answers=900, failures=100)
    made.offer(2, 5.0)
    made.ready(2, 5.1)
    made.ready(3, 5.2)
    made.answered(2, answers=80, failures=20)
    assert made.look(6.0) == []


def test_nothing_is_concluded_from_the_first_few_answers():
    made = answering(answers=20)
    made.offer(2, 5.0)
    made.ready(2, 5.1)
    made.ready(3, 5.2)
    made.answered(2, failures=19)
    assert made.look(6.0) == []


def test_a_version_that_does_not_start_is_tried_three_times_and_the_old_one_stays():
    made = answering()
    made.offer(2, 5.0)
    assert made.lost(2, 5.1, "bad weights") == [
        Note("a replica of version 2 could not start (bad weights); the next try in 0.1 s")
    ]
    assert made.look(5.25) == [Start(3, 2)]
    assert kinds(made.lost(3, 5.3, "bad weights"), Note) != []
    assert made.look(5.6) == [Start(4, 2)]
    assert made.lost(4, 5.7, "bad weights") == [Rejected(2, "bad weights")]
    assert made.look(100.0) == []
    assert made.current.number == 1


def test_the_version_that_answers_is_tried_for_ever_but_not_all_the_time():
    made = answering(1)
    made.lost(0, 2.0, "signal 9")
    now, starts = 2.0, 1
    for number in range(1, 12):
        made.lost(number, now, "out of memory")
        now = made.next_look()
        starts += len(kinds(made.look(now), Start))
    assert starts == 12
    assert now == pytest.approx(2.0 + 0.1 + 0.2 + 0.4 + 0.8 + 1.6 + 3.2 + 5 * 5.0)


def test_a_newer_version_takes_the_place_of_one_that_is_still_being_built():
    made = answering()
    made.offer(2, 5.0)
    assert made.offer(3, 5.1) == [End(2, "version 3 is newer"), Start(3, 3)]


def test_more_and_fewer_replicas_are_wanted():
    made = answering(2)
    assert made.want(3, 2.0) == [Start(2, 1)]
    assert made.ready(2, 2.1) == [Flip(1, (0, 1, 2))]
    assert made.want(1, 3.0) == [End(1, "1 are wanted"), End(2, "1 are wanted"), Flip(1, (0,))]


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10**9))
def test_whatever_happens_it_settles_at_the_wanted_replicas_of_one_version(seed):
    numbers = random.Random(seed)
    made = rollout(numbers.randint(1, 4))
    alive, routed, now, version = {}, set(), 0.0, 0

    def do(commands):
        nonlocal routed
        for command in commands:
            if isinstance(command, Start):
                assert command.replica not in alive
                alive[command.replica] = "starting"
            elif isinstance(command, End):
                alive.pop(command.replica, None)
                routed -= {command.replica}
            elif isinstance(command, Flip):
                routed = set(command.replicas)
                assert all(alive.get(number) == "ready" for number in routed), command

    for _ in range(60):
        now += numbers.random()
        what, pick = numbers.random(), (numbers.choice(sorted(alive)) if alive else None)
        if what < 0.15 or not version:
            version += 1
            do(made.offer(version, now))
        elif what < 0.5 and pick is not None and alive[pick] == "starting":
            alive[pick] = "ready"
            do(made.ready(pick, now, 0.001))
        elif what < 0.7 and pick is not None:
            del alive[pick]
            routed -= {pick}
            do(made.lost(pick, now, "lost"))
        elif what < 0.8 and pick is not None:
            do(made.leave(pick, now, "SIGTERM"))
        elif what < 0.9:
            do(made.want(numbers.randint(1, 4), now))
        elif what < 0.94:
            do(made.demand(numbers.randint(1, version), now, only=numbers.random() < 0.5))
        else:
            do(made.look(now))
    for _ in range(60):  # nothing more happens, and whoever starts becomes ready
        now += 20.0
        do(made.look(now))
        for number in [number for number, stage in alive.items() if stage == "starting"]:
            if number in alive:
                alive[number] = "ready"
                do(made.ready(number, now, 0.001))
    if made.current is None:  # no version could be started three times in a row
        assert set(made.refused) and not alive
        return
    assert sorted(routed) == sorted(made.of(made.current.number)) == sorted(alive)
    assert len(alive) == made.wanted


def two_versions(**limits):
    """Version 2 answers with replica 1, and version 1 is kept with replica 0."""
    made = answering(1, prove=10.0, **limits)
    made.offer(2, 2.0)
    made.ready(1, 3.0, 0.001)
    return made


def test_an_operator_goes_back_to_the_version_before_at_once_for_its_replicas_are_there():
    made = two_versions()
    assert made.demand(1, 4.0, only=True) == [Flip(1, (0,)), Note("version 1 answers")]
    assert made.of(2, "ready") == [1]  # kept, as any version before the one that answers


def test_an_operator_who_goes_back_further_waits_for_replicas():
    made = two_versions()
    made.look(14.0)  # version 2 is proven, and version 1 gone
    assert made.demand(1, 15.0, only=True) == [Start(2, 1)]
    assert made.ready(2, 16.0)[0] == Flip(1, (2,))


def test_while_an_operator_wants_one_version_no_other_is_built():
    made = two_versions()
    made.demand(1, 4.0, only=True)
    assert made.offer(3, 5.0) == [] and made.candidate is None
    assert made.demand(3, 6.0, only=False) == [Start(2, 3)]
    assert made.offer(4, 7.0) == [End(2, "version 4 is newer"), Start(3, 4)]


def test_what_is_being_built_gives_way_to_what_an_operator_wants():
    made = answering(1)
    made.offer(2, 2.0)
    assert made.demand(1, 3.0, only=True) == [End(1, "version 1 is wanted")]
    assert made.candidate is None and made.current.number == 1


def test_what_an_operator_wants_is_not_judged():
    made = two_versions(answers=1)
    made.demand(1, 4.0, only=True)
    made.answered(1, failures=50)
    assert kinds(made.look(5.0), Rejected) == [] and made.current.number == 1


def test_an_operator_may_try_a_refused_version_again():
    made = answering(1, starts=1)
    made.offer(2, 2.0)
    made.lost(1, 3.0, "it cannot be read")
    assert made.refused == {2: "it cannot be read"} and made.offer(2, 4.0) == []
    assert made.demand(2, 5.0, only=False) == [Start(2, 2)]
