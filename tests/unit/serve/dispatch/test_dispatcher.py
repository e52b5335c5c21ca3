"""Which replica computes which requests; played with a clock of its own."""

import heapq
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.serve.dispatch.dispatcher import Dispatcher, DispatchLimits
from holdfast.serve.dispatch.waiting import WaitingRequest


def request(now=0.0, items=1, deadline=math.inf, key=None, size=0):
    return WaitingRequest(items, now, deadline, key, size)


def dispatcher(replicas=1, measured=((1, 0.0015), (2, 0.002)), **limits):
    made = Dispatcher(DispatchLimits(**limits))
    for number in range(replicas):
        made.join(number, list(measured))
    made.route(set(range(replicas)))
    return made


def test_a_free_replica_gets_what_waits_at_once():
    made = dispatcher()
    one = request()
    assert made.admit(one, 0.0) is None
    (batch,) = made.assign(0.0)
    assert (batch.replica, batch.requests, batch.items) == (0, [one], 1)
    assert made.assign(0.0) == []
    assert made.computed(0, 0.002, 0.002) == [one]


def test_what_came_while_a_batch_was_computed_makes_the_next_one():
    made = dispatcher()
    made.admit(request(), 0.0)
    made.assign(0.0)
    later = [request(0.001) for _ in range(3)]
    for one in later:
        made.admit(one, 0.001)
    made.computed(0, 0.002, 0.002)
    (batch,) = made.assign(0.002)
    assert batch.requests == later


def test_two_free_replicas_share_what_waits():
    made = dispatcher(2)
    for _ in range(4):
        made.admit(request(), 0.0)
    assert [batch.items for batch in made.assign(0.0)] == [2, 2]


def test_only_requests_of_one_shape_are_computed_together_and_the_oldest_goes_first():
    made = dispatcher(measured=[(n, 0.001 * n) for n in (1, 2, 4, 8)])
    first, other, third = request(key="a"), request(key="b"), request(key="a")
    for one in (first, other, third):
        made.admit(one, 0.0)
    (batch,) = made.assign(0.0)
    assert batch.requests == [first, third]
    made.computed(0, 0.01, 0.01)
    assert made.assign(0.01)[0].requests == [other]


def test_a_request_of_many_items_is_never_cut():
    made = dispatcher()
    large = request(items=100)
    made.admit(large, 0.0)
    (batch,) = made.assign(0.0)
    assert (batch.requests, batch.items) == ([large], 100)


def test_requests_of_a_lost_replica_go_first_again():
    made = dispatcher(2)
    one, two = request(), request(0.001)
    made.admit(one, 0.0)
    (batch,) = made.assign(0.0)
    made.admit(two, 0.001)
    made.route({1 - batch.replica, batch.replica} - {1 - batch.replica})
    lost = made.lose(batch.replica)
    assert (lost.requests, list(made.waiting)) == ([], [one, two])


def test_a_request_over_which_three_replicas_were_lost_fails():
    made = dispatcher(tries=3)
    bad = request()
    made.admit(bad, 0.0)
    for number in range(3):
        assert made.assign(0.0)[0].requests == [bad]
        lost = made.lose(number)
        made.join(number + 1, [(1, 0.001)])
        made.route({number + 1})
    assert lost.requests == [bad]
    assert lost.reason == "3 replicas were lost while they computed it"
    assert not made.waiting


def test_after_a_second_loss_a_request_is_computed_alone():
    made = dispatcher(measured=[(n, 0.0001 * n) for n in (1, 2, 4)])
    requests = [request() for _ in range(4)]
    for one in requests:
        made.admit(one, 0.0)
    sizes = []
    for number in range(2):
        sizes.append(made.assign(0.0)[0].items)
        made.lose(number)
        made.join(number + 1, [(n, 0.0001 * n) for n in (1, 2, 4)])
        made.route({number + 1})
    assert sizes == [4, 4]
    assert made.assign(0.0)[0].items == 1


def test_a_model_whose_requests_may_not_be_computed_twice_fails_them():
    made = dispatcher(retry=False)
    one = request()
    made.admit(one, 0.0)
    made.assign(0.0)
    lost = made.lose(0)
    assert (lost.requests, lost.reason) == (
        [one], "its replica was lost, and this model's requests may not be computed twice",
    )  # fmt: skip


def test_of_a_batch_that_failed_each_request_is_tried_alone_and_only_the_bad_one_fails():
    made = dispatcher(measured=[(n, 0.0001 * n) for n in (1, 2, 4)])
    requests = [request() for _ in range(3)]
    bad = requests[1]
    for one in requests:
        made.admit(one, 0.0)
    assert made.assign(0.0)[0].items == 3
    assert made.failed(0) == []
    failed, answered = [], []
    while made.waiting:
        (batch,) = made.assign(0.0)
        assert batch.items == 1
        if batch.requests == [bad]:
            failed += made.failed(0)
        else:
            answered += made.computed(0, 0.0, 0.001)
    assert (failed, answered) == ([bad], [requests[0], requests[2]])


def test_a_full_queue_refuses():
    made = dispatcher(items=2, objective=100.0)
    made.admit(request(), 0.0)
    made.assign(0.0)
    assert made.admit(request(items=2), 0.0) is None
    refusal = made.admit(request(), 0.0)
    assert refusal.reason == "2 items are waiting already"
    assert refusal.retry_after >= 1.0


def test_what_would_be_answered_too_late_is_refused_at_once():
    made = dispatcher(measured=[(1, 0.005), (2, 0.01), (4, 0.02)], objective=0.05)
    taken = 0
    while (refusal := made.admit(request(), 0.0)) is None:
        taken += 1
    assert 2 <= taken <= 5
    assert refusal.reason == f"it could not be answered within 50 ms, as {taken} items are waiting already"
    assert refusal.retry_after > 0


def test_fewer_may_wait_where_requests_wait_too_long_all_the_same():
    taken = {}
    for waited in (0.001, 0.2):
        made, now = dispatcher(measured=[(1, 0.001), (2, 0.002), (64, 0.02)], objective=0.05), 0.0
        for _ in range(100):
            made.admit(request(now), now)
            now += waited
            made.assign(now)
            made.computed(0, now, 0.001)
        taken[waited] = 0
        while made.admit(request(now), now) is None:
            taken[waited] += 1
    assert 1 <= taken[0.2] <= 0.5 * taken[0.001]


def test_a_client_that_waits_longer_is_taken_and_one_in_a_hurry_is_not():
    made = dispatcher(measured=[(1, 0.01), (2, 0.02)], objective=0.05)
    while made.admit(request(), 0.0) is None:
        pass
    assert made.admit(request(deadline=10.0), 0.0) is None
    assert made.admit(request(deadline=0.001), 0.0) is not None
    assert made.admit(request(deadline=0.0), 0.0).reason == "its time is over"


def test_a_model_slower_than_its_objective_answers_one_at_a_time_all_the_same():
    made = dispatcher(measured=[(1, 0.2), (1, 0.2)], objective=0.05)
    assert made.admit(request(), 0.0) is None
    made.assign(0.0)
    assert made.admit(request(), 0.0) is None  # the next one waits for one batch


def test_what_nobody_waits_for_any_more_is_taken_out():
    made = dispatcher(objective=10.0)
    made.admit(request(), 0.0)
    made.assign(0.0)
    stale, gone, kept = request(deadline=0.5), request(), request()
    for one in (stale, gone, kept):
        made.admit(one, 0.0)
    gone.given_up = True
    assert made.remove_if_over(1.0) == [stale, gone]
    assert (list(made.waiting), made.waiting.items) == ([kept], 1)


def test_a_replica_that_takes_long_is_late_first_and_hung_then():
    made = dispatcher(hang=2.0)
    made.admit(request(), 0.0)
    made.assign(0.0)
    assert (made.late(0.04), made.hung(0.04)) == ([], [])
    assert (made.late(0.1), made.hung(0.1)) == ([0], [])
    assert made.hung(2.1) == [0]


def play(rate, seconds, replicas=1, seed=0, objective=0.05, slow=1.0):
    """A Poisson stream against replicas that take 1 ms + 0.5 ms an item, give or take; times of answers."""
    made = Dispatcher(DispatchLimits(objective=objective))
    numbers = random.Random(seed)
    for number in range(replicas):
        made.join(number, [(1, 0.0015), (2, 0.002)])
    made.route(set(range(replicas)))
    now, following, done, times, refused = 0.0, numbers.expovariate(rate), [], [], 0
    items = [0] * replicas
    while now < seconds:
        if done and done[0][0] < following:
            now, number, took = heapq.heappop(done)
            times += [now - one.came for one in made.computed(number, now, took)]
        else:
            now, following = following, following + numbers.expovariate(rate)
            refused += made.admit(request(now), now) is not None
        for batch in made.assign(now):
            took = (0.001 + 0.0005 * batch.items) * numbers.uniform(0.9, 1.3) * (slow if batch.replica else 1.0)
            items[batch.replica] += batch.items
            heapq.heappush(done, (now + took, batch.replica, took))
    return sorted(times), refused / seconds, items


@pytest.mark.parametrize("rate", [100, 1000, 1500])
def test_below_capacity_nothing_is_refused_and_the_objective_holds(rate):
    times, refused, _ = play(rate, 10)
    assert refused < 0.005 * rate
    assert times[int(0.99 * len(times))] < 0.05


@pytest.mark.parametrize(("rate", "replicas"), [(2500, 1), (4000, 1), (6000, 2)])
def test_above_capacity_what_is_taken_is_answered_in_time(rate, replicas):
    times, refused, _ = play(rate, 10, replicas)
    good = sum(time <= 0.05 for time in times) / 10
    assert good > 0.9 * 1700 * replicas
    assert times[int(0.98 * len(times))] < 0.055
    assert refused > 0


def test_a_slow_replica_takes_less():
    _, _, items = play(3000, 5, replicas=2, slow=4.0)
    assert items[1] < 0.45 * items[0]


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**9))
def test_every_request_that_was_taken_ends_once_whatever_happens(seed):
    numbers = random.Random(seed)
    made = Dispatcher(DispatchLimits(objective=0.05, tries=3))
    alive, computing, born, now = [], {}, 0, 0.0
    open_, ended = set(), []
    for _ in range(300):
        now += numbers.expovariate(1000)
        what = numbers.random()
        if what < 0.5:
            one = request(now, numbers.randint(1, 5), now + numbers.choice([0.01, 1.0, math.inf]), numbers.choice("ab"))
            if made.admit(one, now) is None:
                open_.add(one)
        elif what < 0.65 and computing:
            number = numbers.choice(sorted(computing))
            computing.pop(number)
            ended += made.computed(number, now, 0.002)
        elif what < 0.72 and computing:
            number = numbers.choice(sorted(computing))
            computing.pop(number)
            ended += made.failed(number)
        elif what < 0.8 and alive:
            number = numbers.choice(alive)
            alive.remove(number)
            computing.pop(number, None)
            ended += made.lose(number).requests
            made.route(set(alive))
        elif what < 0.9:
            made.join(born, [(1, 0.001)])
            alive.append(born)
            born += 1
            made.route(set(alive))
        else:
            ended += made.remove_if_over(now)
        for batch in made.assign(now):
            assert batch.replica in alive
            assert batch.replica not in computing
            assert len({one.key for one in batch.requests}) == 1
            computing[batch.replica] = batch.requests
        held = [*made.waiting, *(one for batch in computing.values() for one in batch)]
        assert len(set(held)) == len(held)
        assert set(held) | set(ended) == open_
        assert len(set(ended)) == len(ended)
        assert not set(held) & set(ended)
        assert made.waiting.items == sum(one.items for one in made.waiting)
