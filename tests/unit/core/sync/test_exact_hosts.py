"""`next_action` where there are several hosts: what a worker may do before its sums are here, and after."""

from __future__ import annotations

import pytest

from holdfast.core.sync.exact import (
    Action,
    Advance,
    Arrive,
    BoardView,
    Compute,
    Finish,
    Gather,
    Quiesce,
    StepView,
    Sum,
    Wait,
    next_action,
)
from holdfast.core.tree import Node

STEP = 5
#: Workers 1 and 2 on my host drive lanes 0 and 1, worker 3 on the other one lanes 2 and 3. Slices 0 and 1 are at home
#: here.
PLACE = StepView(
    worker=1, step=STEP, driver=(1, 2, 3, 3), owner=(1, 2, 1, 2), members=(1, 2, 3), on_host=(1, 2),
    home=(True, True, False, False),
)  # fmt: skip
EMPTY = BoardView(range(4), [], {}, (5,) * 4, (5,) * 4, pausing=False, gathered=(0,) * 4, unknown=(0, 1, 2, 3))
LOCAL = EMPTY._replace(nodes=[Node(0, 1), Node(1, 1)], arrived={1: 5, 2: 5})
GATHERED = LOCAL._replace(gathered=(0, 0, 6, 6))
HERE = GATHERED._replace(arrived={1: 5, 2: 5, 3: 5}, covered=[0, 1], unknown=())
SUMMED = HERE._replace(summed=(6,) * 4)


@pytest.mark.parametrize(
    ("board", "action"),
    [
        (EMPTY, Compute((0,))),
        (EMPTY._replace(nodes=[Node(0, 1)]), Arrive()),
        (LOCAL, Gather((2,))),
        (LOCAL._replace(gathered=None), Wait((3,), "their arrival at step 5")),
        (GATHERED, Wait((3,), "their arrival at step 5")),
        # What has come of a slice is not summed before all hosts have completed the step before.
        (GATHERED._replace(covered=[0, 1]), Wait((3,), "their arrival at step 5")),
        (HERE, Sum((0,))),
        (HERE._replace(summed=(6, 5, 5, 5)), Wait((3, 2), "gradients and sums of the other hosts")),
        # No slice is finished before all sums are here.
        (HERE._replace(summed=(6, 6, 6, 5)), Wait((3,), "gradients and sums of the other hosts")),
        (SUMMED, Finish((0, 2))),
        # Then the other host may be gone, for all it matters; but not the workers of this one.
        (SUMMED._replace(arrived={1: 5, 2: 5}), Finish((0, 2))),
        (SUMMED._replace(arrived={1: 5, 2: 4}), Wait((2,), "their arrival at step 5")),
        (SUMMED._replace(arrived={}), Arrive()),
        (SUMMED._replace(unknown=(3,)), Wait((3,), "what lanes 3 gave besides gradients")),
        (SUMMED._replace(unknown=(0, 3)), Compute((0,))),  # computed again: whoever did it first is gone
        (SUMMED._replace(versions=(6, 5, 6, 5)), Wait((2,), "their slices of the new parameters")),
        (SUMMED._replace(versions=(6,) * 4), Advance()),
        (SUMMED._replace(pausing=True), Quiesce()),
        (EMPTY._replace(nodes=[Node(0, 1)], arrived={1: 5}), Wait((2,), "the gradients of lanes 1")),
    ],
)
def test_what_a_worker_does_next(board: BoardView, action: Action) -> None:
    assert next_action(PLACE, board) == action


def test_a_worker_that_drives_nothing_sums_what_is_at_home_here() -> None:
    idle = PLACE._replace(driver=(3, 3, 3, 3), on_host=(1,), owner=(1,) * 4, members=(1, 3))
    board = HERE._replace(nodes=[], gathered=None, arrived={1: 5, 3: 5})
    assert next_action(idle, board) == Sum((0, 1))


#: One host: workers 1 and 2 drive and own, server 9 sums.
SUMS_ONLY = StepView(
    worker=1, step=STEP, driver=(1, 1, 2, 2), owner=(1, 1, 2, 2), members=(1, 2, 9), on_host=(1, 2, 9),
    home=(True,) * 4,
    summer=(9,) * 4,
)  # fmt: skip
COMPUTED = EMPTY._replace(
    nodes=[Node(0, 2), Node(2, 2)], arrived={1: 5, 2: 5, 9: 5}, gathered=None, covered=range(4), unknown=()
)


@pytest.mark.parametrize(
    ("worker", "board", "action"),
    [
        (9, EMPTY, Arrive()),
        (9, COMPUTED, Sum((0, 1, 2, 3))),
        (1, COMPUTED, Wait((9,), "gradients and sums of the others")),
        (1, COMPUTED._replace(summed=(6, 6, 6, 5)), Wait((9,), "gradients and sums of the others")),
        (1, COMPUTED._replace(summed=(6,) * 4), Finish((0, 1))),
        (9, COMPUTED._replace(summed=(6,) * 4), Wait((1, 2), "their slices of the new parameters")),
        (9, COMPUTED._replace(summed=(6,) * 4, versions=(6,) * 4), Advance()),
    ],
)
def test_where_servers_only_sum_the_workers_finish(worker: int, board: BoardView, action: Action) -> None:
    assert next_action(SUMS_ONLY._replace(worker=worker), board) == action
