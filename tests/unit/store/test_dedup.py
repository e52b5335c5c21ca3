"""What counts, however often it comes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.store.dedup import WINDOW, DedupVerdict, DedupWindow


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), max_size=80))
def test_a_tally_remembers_what_a_client_may_still_ask_for(pushes: list[tuple[int, bool]]) -> None:
    dedup, truth, number = DedupWindow(), {}, 0
    for ahead, ok in pushes:
        number += ahead
        assert dedup.judge(number) is DedupVerdict.NEW
        dedup = dedup.settle(number, ok=ok)
        truth[number] = ok
    for settled, ok in truth.items():
        if number - settled < WINDOW:
            assert dedup.judge(settled) is (DedupVerdict.APPLIED if ok else DedupVerdict.FAILED)
    assert dedup.judge(number + 1) is DedupVerdict.NEW
    assert 0 <= dedup.failed < 1 << 63  # it is kept in a signed word


@given(st.lists(st.booleans(), max_size=WINDOW))
def test_what_counts_ends_before_the_first_that_failed(pushes: list[bool]) -> None:
    dedup = DedupWindow()
    for number, ok in enumerate(pushes, 1):
        dedup = dedup.settle(number, ok=ok)
    assert dedup.counted == ([*pushes, False].index(False))
    for number in range(dedup.counted + 1, len(pushes) + 1):  # who begins again there repeats all that is missing
        if dedup.judge(number) is DedupVerdict.FAILED:
            dedup = dedup.settle(number, ok=True)
    assert dedup.counted == len(pushes)


def test_what_failed_may_be_tried_again_under_its_number() -> None:
    dedup = DedupWindow().settle(1, ok=False).settle(2, ok=True).settle(1, ok=True)
    assert [dedup.judge(number) for number in (1, 2, 3)] == [
        DedupVerdict.APPLIED,
        DedupVerdict.APPLIED,
        DedupVerdict.NEW,
    ]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), max_size=60))
def test_however_pushes_are_repeated_each_number_counts_once(arrivals: list[tuple[int, int]]) -> None:
    """A client repeats a run of pushes that ends at its newest one; servers die between any two of them."""
    dedup, applied, newest = DedupWindow(), [], 0
    for back, new in arrivals:
        for number in range(max(1, newest - back), newest + new + 1):
            if dedup.judge(number) is DedupVerdict.NEW:
                applied.append(number)
                dedup = dedup.settle(number, ok=True)
        newest += new
    assert applied == list(range(1, newest + 1))
