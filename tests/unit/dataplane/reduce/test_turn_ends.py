"""How workers have ended versions: what they show of it, and what is compared."""

from __future__ import annotations

import pytest

from holdfast.core.endings import LEFT, SKIPPED, STEPPED
from holdfast.core.roles import Role
from holdfast.dataplane.memory import board as cells
from holdfast.dataplane.memory.board import Board, board_bytes
from holdfast.dataplane.reduce.turn_ends import TurnEnds
from holdfast.dataplane.reduce.work import StepWork
from holdfast.errors import OutOfSync

AT = Role(0, (0, 1), {0: 0, 1: 1}, on_host=(0,), servers=(1,))


@pytest.fixture
def boards() -> list[Board]:
    """Of a worker and a server, as rows of one memory."""
    memory = memoryview(bytearray(board_bytes(2, 4, 3)))
    several = [Board(memory, 2, 4, 3) for _ in range(2)]
    several[0].format()
    for worker, board in enumerate(several):
        board.claim(worker, worker, 100 + worker)
    return several


def note(ends: TurnEnds, board: Board, how: int, *, version: int, line: int, ahead: int = 0) -> None:
    board.put(cells.R_LINE, line)
    ends.note(StepWork(version - ahead, (0, 1), (1, 1), ahead, turn=True), how)


def test_what_was_ended_alike_or_by_one_alone_is_no_matter(boards: list[Board]) -> None:
    mine, theirs = map(TurnEnds, boards)
    mine.check(AT, AT.members)
    note(mine, boards[0], STEPPED, version=4, line=9)
    mine.check(AT, AT.members)
    note(theirs, boards[1], STEPPED, version=4, line=11)
    note(theirs, boards[1], SKIPPED, version=5, line=12)
    mine.check(AT, AT.members)
    assert mine.newest() == (4, 4, STEPPED, 9) and theirs.newest() == (5, 5, SKIPPED, 12)


@pytest.mark.parametrize(("gone_on", "line"), [(0, " (line 12 of the script)"), (1, ""), (4, "")])
def test_an_ending_is_compared_also_when_others_have_gone_on(boards: list[Board], gone_on: int, line: str) -> None:
    mine, theirs = map(TurnEnds, boards)
    note(mine, boards[0], STEPPED + 1, version=4, line=9, ahead=2)
    note(theirs, boards[1], LEFT, version=4, line=12, ahead=2)
    for more in range(gone_on):
        note(theirs, boards[1], STEPPED, version=5 + more, line=13)
    mine.check(AT, AT.on_host)
    with pytest.raises(OutOfSync) as raised:
        mine.check(AT, AT.members)
    assert str(raised.value).startswith(
        "Step 2 was ended by optimizer.step() in worker 0 (line 9 of the script) and by leaving the loop in server 1"
        f"{line}. Decide it by"
    )


def test_a_row_that_another_worker_has_left_says_nothing(boards: list[Board]) -> None:
    mine, theirs = map(TurnEnds, boards)
    note(mine, boards[0], STEPPED, version=4, line=9)
    note(theirs, boards[1], SKIPPED, version=4, line=12)
    mine.check(Role(0, (0, 7), {0: 0, 7: 1}), (0, 7))
