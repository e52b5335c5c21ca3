"""One worker or several, any order of turns, a kill in the middle of anything: the same bits."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from holdfast.dataplane.memory.board import Undo
from holdfast.dataplane.memory.board_snapshot import read_rows
from holdfast.dataplane.reduce.work import StepWork
from tests.unit.dataplane.members import LANES, Killed, Worker, adam, groups, install, step, work_of

COUNTS = [(3, 3, 3, 3), (4, 3, 3, 3), (3, 3, 3, 3), (2, 2, 0, 0)]

OPTIMIZERS = {
    "Adam": adam,
    "SGD": lambda m: torch.optim.SGD(groups(m), lr=0.01, momentum=0.9),
    "Adagrad": lambda m: torch.optim.Adagrad(groups(m), lr=0.01),
}


def alone(**options: Any) -> Worker:
    one = Worker(0, 0, **options)
    install([one], [0, 0, 0, 0])
    for number, counts in enumerate(COUNTS):
        step([one], work_of(number, counts))
    return one


@pytest.mark.parametrize("clip", [0.0, 0.5])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_two_members_give_the_bits_of_one(name: str, clip: float) -> None:
    expected = alone(make=OPTIMIZERS[name], clip=clip)
    for seed, driver in enumerate([(0, 0, 1, 1), (1, 0, 0, 1), (0, 1, 1, 1), (1, 1, 1, 1)]):
        chance = random.Random(seed)
        first = Worker(0, 0, make=OPTIMIZERS[name], clip=clip)
        crew = [first, Worker(1, 1, first.arena, make=OPTIMIZERS[name], clip=clip)]
        install(crew, driver)
        for number, counts in enumerate(COUNTS):
            step(crew, work_of(number, counts), chance)
        assert all(worker.state() == expected.state() for worker in crew)
        assert sorted(crew[0].units + crew[1].units) == expected.units, "every unit once"
        assert crew[0].member.facts == crew[1].member.facts == expected.member.facts
        assert expected.member.facts.samples == sum(map(sum, COUNTS))
        assert expected.member.facts.grad_norm > clip or not clip


@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_slices_that_move_between_servers_give_the_bits_of_one(clip: float) -> None:
    expected = alone(clip=clip)
    first = Worker(0, 0, clip=clip)
    crew = [first, *(Worker(number, number, first.arena, clip=clip) for number in (1, 2))]
    for number, (counts, owned) in enumerate(zip(COUNTS, (1, 4, 0, 2), strict=True)):
        install(crew, (0, 0, 0, 0), servers=(1, 2), runs=[(1, owned), (2, 4 - owned)])
        step(crew, work_of(number, counts), random.Random(number))
    assert crew[0].state() == expected.state() and not crew[1].units and not crew[2].units
    shown = {row.worker: row for row in read_rows(first.arena.section("board"))}
    assert [shown[number].applied for number in (0, 1, 2)] == [0, 7, 9]
    assert shown[2].owned == 2 and shown[0].applied_bytes == 0
    whole = sum(piece.nbytes for piece in first.space.layout.slices)
    assert shown[1].applied_bytes + shown[2].applied_bytes == whole * len(COUNTS)
    assert all(0.0 < shown[number].applying_seconds < 10.0 for number in (1, 2))


def test_a_new_member_takes_the_state_from_the_arena() -> None:
    expected = alone()
    first = Worker(0, 0)
    install([first], [0] * 4)
    step([first], work_of(0, COUNTS[0]))
    late = Worker(7, 3, first.arena)
    install([first, late], [0, 7, 7, 0])
    for number in (1, 2):
        step([first, late], work_of(number, COUNTS[number]))
    install([late], [7] * 4)
    step([late], work_of(3, COUNTS[3]))
    assert late.state() == expected.state()


@pytest.mark.parametrize("seed", range(12))
def test_a_kill_between_any_two_actions_changes_nothing(seed: int) -> None:
    expected, chance = alone(), random.Random(seed)
    first = Worker(0, 0)
    crew = [first, Worker(1, 1, first.arena)]
    install(crew, [0, 0, 1, 1])
    fatal, turns, number, row = chance.randrange(1, 24), 0, 0, 2
    while number < len(COUNTS):
        work = work_of(number, COUNTS[number])
        done: set[int] = set()
        while len(done) < len(crew):
            one = chance.choice([w for w in crew if w.worker not in done])
            if one.turn(work) == "done":
                done.add(one.worker)
            turns += 1
            if turns == fatal:  # one of them is gone; another takes its place, or nobody does
                gone = chance.choice(crew)
                crew = [w for w in crew if w is not gone]
                if chance.random() < 0.5:
                    crew.append(Worker(row, row, crew[0].arena))
                    row += 1
                install(crew, [chance.choice(crew).worker for _ in range(4)])
                done = set()
        number += 1
    assert all(worker.state() == expected.state() for worker in crew)


@pytest.mark.parametrize("where", ["before", "torn", "after"])
def test_a_kill_in_the_middle_of_an_update_is_undone(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed inside of the optimizer's own code, with half of a slice written over."""
    expected = alone()
    first = Worker(0, 0)
    other = Worker(1, 1, first.arena)
    install([first, other], [0, 0, 1, 1])
    for number in (0, 1):
        step([first, other], work_of(number, COUNTS[number]))
    original = first.slices.apply

    def apply(slice_: int, hyper: Any, absent: Any, gradient: Any) -> None:
        piece = first.space.layout.slices[slice_]
        if where != "before":
            original(slice_, hyper, absent, gradient)
        if where == "torn":
            first.slices.parameters[piece.dtype][piece.start : piece.start + 10] = float("nan")
            for name, array in first.slices._arrays.items():
                at = first.slices._first_piece[slice_] if name.startswith("scalar/") else piece.start
                array[at : at + 1] = 99
        raise Killed

    monkeypatch.setattr(first.slices, "apply", apply)
    work = work_of(2, COUNTS[2])
    with pytest.raises(Killed):
        for _ in range(100):
            other.turn(work)
            first.turn(work)
    torn = first.board.undo(0)
    assert torn is not None and torn.version == 2
    install([other], [1, 1, 1, 1])
    assert other.board.undo(0) is None
    step([other], work)
    step([other], work_of(3, COUNTS[3]))
    assert other.state() == expected.state()


def test_undo_puts_back_the_exact_bytes() -> None:
    one = Worker(0, 0)
    install([one], [0] * 4)
    step([one], work_of(0))
    before = one.state()
    for index in range(len(one.space.layout.slices)):
        one.slices.guard(index, 5)
        one.board.row = 5
        one.board.begin_undo(index, 1)
        assert one.board.undo(5) == Undo(index, 1)
        one.slices.scratch(one.space.layout.slices[index]).normal_()
        one.slices.apply(index, one.member.hyper[index], frozenset())
        first = one.slices._first_piece[index]
        one.slices._ready[first : first + 1] = 0
        assert one.state() != before
        one.board.row = 0
        install([one], [0] * 4)
        assert one.board.undo(5) is None
        assert one.state() == before


def test_a_version_that_was_out_before_the_kill_is_kept() -> None:
    one = Worker(0, 0)
    install([one], [0] * 4)
    step([one], work_of(0))
    after = one.state()
    one.slices.guard(0, 5)
    one.slices.parameters["float32"][:10] += 1.0
    changed = one.state()
    one.board.row = 5
    one.board.begin_undo(0, 0)  # the copy is of version 0, and version 1 is published
    one.board.row = 0
    install([one], [0] * 4)
    assert one.state() == changed != after


def test_a_new_holder_of_a_row_waits_until_the_old_ones_slice_is_mended() -> None:
    one = Worker(0, 0)
    install([one], [0] * 4)
    one.board.begin_undo(0, 0)
    one.member._controls.pausing = True  # type: ignore[misc]
    assert not one.member._undo_free()
    one.board.clear_undo(0)
    assert one.member._undo_free()


def test_steps_that_are_versions_ahead_are_the_same_steps() -> None:
    """What was counted beyond one version a step does not matter to a step, only to where the board says so."""
    plain, ahead = Worker(0, 0), Worker(0, 0)
    for index in range(len(ahead.space.layout.slices)):
        ahead.board.publish(index, 5)
    for one in (plain, ahead):
        install([one], [0] * LANES)
    for number in range(3):
        work = work_of(number)
        later = StepWork(number, work.lanes, work.counts, ahead=5)
        while plain.turn(work) != "done":
            pass
        while ahead.turn(later) != "done":
            pass
        assert ahead.state() == plain.state()
    assert (plain.board.versions(), ahead.board.versions()) == ([3] * 4, [8] * 4)
    assert ahead.through(2) and not ahead.through(3), "its row shows steps"
