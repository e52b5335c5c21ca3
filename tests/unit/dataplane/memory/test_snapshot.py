"""A snapshot is of one version, whatever the owners do meanwhile, and makes the same arena elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from holdfast.dataplane.memory.arena_view import ArenaView
from holdfast.dataplane.memory.manifest import read_manifest
from holdfast.dataplane.memory.snapshot import Snapshot, SnapshotRoom, _copy, put_sections, take
from tests.unit.dataplane.members import LANES, Worker, install, step, work_of


def view_of(worker: Worker) -> ArenaView:
    memory = memoryview(worker.arena._map)
    manifest = read_manifest(memory)
    assert manifest is not None
    return ArenaView(memory, manifest)


def taken(view: ArenaView, meanwhile: Callable[[], None] = lambda: None) -> Snapshot:
    """Take one in a thread, as the launcher does, while something else happens here."""
    found: list[Snapshot | None] = []
    room = SnapshotRoom()
    thread = threading.Thread(target=lambda: found.append(take(view, room, lambda: None, lambda: False)))
    thread.start()
    while thread.is_alive():
        meanwhile()
        thread.join(0.001)
    assert found and found[0] is not None
    return found[0]


def same(view: ArenaView, snapshot: Snapshot) -> None:
    assert not view.board.held(10**6), "owners may go on"
    for name, data in snapshot.sections.items():
        assert bytes(data) == bytes(view.section(name)), name
    assert snapshot.words == view.board.state_words()


def test_at_once_where_lanes_are_missing() -> None:
    one = Worker(0, 0)
    install([one], [0] * LANES)
    step([one], work_of(0))
    assert one.turn(work_of(1)) == "computed"
    view = view_of(one)
    snapshot = taken(view)
    assert snapshot.version == 1
    assert 0 < snapshot.waited < snapshot.held, "lanes are missing all the while: only the last look is between"
    same(view, snapshot)


def test_owners_stand_until_it_is_taken() -> None:
    """All lanes of the step are there, so it is taken of the next version; the owner waits at that one."""
    one = Worker(0, 0)
    install([one], [0] * LANES)
    for _ in range(LANES):
        assert one.turn(work_of(0)) == "computed"
    view, turns = view_of(one), iter(range(100))
    snapshot = taken(view, lambda: next(turns) < 1 and one.turn(work_of(0)))
    assert snapshot.version == 1 and view.board.versions() == [1] * len(view.manifest.slices)
    same(view, snapshot)


def test_a_crew_that_has_all_lanes_waits_for_all_of_it() -> None:
    one = Worker(0, 0)
    install([one], [0] * LANES)
    step([one], work_of(0))
    for _ in range(LANES):
        assert one.turn(work_of(1)) == "computed"
    view = view_of(one)
    one.board.hold(1)  # as it is announced
    snapshot = _copy(view, 1, b"", SnapshotRoom())
    assert snapshot.waited == snapshot.held > 0
    one.board.hold(None)


def test_a_held_step_is_computed_and_neither_summed_nor_finished() -> None:
    one = Worker(0, 0)
    install([one], [0] * LANES)
    one.board.hold(1)
    step([one], work_of(0))
    for _ in range(LANES):
        assert one.turn(work_of(1)) == "computed"
    assert one.turn(work_of(1)) == "wait" and one.board.versions() == [1] * one.board.num_slices
    one.board.hold(None)
    assert one.turn(work_of(1)) == "done" and one.board.versions() == [2] * one.board.num_slices


@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_another_arena_goes_on_from_it_with_the_same_bits(clip: float) -> None:
    one = Worker(0, 0, clip=clip)
    install([one], [0] * LANES)
    for number in range(3):
        step([one], work_of(number))
    assert one.turn(work_of(3)) == "computed"
    view = view_of(one)
    snapshot = taken(view)
    other = Worker(0, 0, clip=clip)
    there = view_of(other)
    put_sections(there, {name: bytes(data) for name, data in snapshot.sections.items()})
    assert there.board.land_state(memoryview(snapshot.words)) == 3
    other.buffers.load(3, everything=True)
    install([other], [0] * LANES)
    for worker in (one, other):
        step([worker], work_of(3))
        step([worker], work_of(4))
    assert other.state() == one.state()


def test_it_ends_when_the_run_does() -> None:
    one = Worker(0, 0)
    install([one], [0] * LANES)
    for _ in range(LANES):
        one.turn(work_of(0))
    looks = iter([False, False, True, True])
    assert take(view_of(one), SnapshotRoom(), lambda: None, lambda: next(looks, True)) is None
    assert not one.board.held(10**6)
