"""What of an arena goes into a checkpoint, and comes back into another one from the disk."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.checkpoint.capture import Taken, content, progress, restore
from holdfast.checkpoint.content import RunFacts, Script
from holdfast.checkpoint.forms.export import weights_sha256
from holdfast.checkpoint.reader import newest
from holdfast.checkpoint.writer import write
from holdfast.dataplane.memory.arena_view import ArenaView
from holdfast.dataplane.memory.results import NESTED, OperationResults
from holdfast.errors import OtherState
from tests.unit.dataplane.members import LANES, Worker, install, step, work_of
from tests.unit.dataplane.memory.test_snapshot import taken, view_of

FACTS = RunFacts(run="a", step=3, version=3, epoch=0, samples=36, loss=0.5, sync="exact", lanes=4, seed=0, threads=1)


def trained(steps: int) -> Worker:
    one = Worker(0, 0)
    install([one], [0] * LANES)
    for number in range(steps):
        step([one], work_of(number))
    return one


def captured(view: ArenaView) -> Taken:
    snapshot = taken(view)
    return Taken(view.manifest, snapshot, progress(view, snapshot.version))


def test_an_arena_to_the_disk_and_back(tmp_path) -> None:  # type: ignore[no-untyped-def]
    one = trained(3)
    view = view_of(one)
    snapshot = taken(view)
    at = progress(view, snapshot.version)
    assert (at.step, at.samples, at.serial) == (3, 36, 0)
    made = content(Taken(view.manifest, snapshot, at), FACTS, Script("a.py", (), ""), {}, {})
    assert [(entry.name, entry.shape) for entry in made.state][:2] == [("0.weight", (20, 6)), ("0.bias", (20,))]
    assert made.tensors["parameters/float32"].dtype == made.tensors["state/exp_avg/float32"].dtype == "float32"
    write(tmp_path / "it", made, keep=2)
    found = newest(tmp_path / "it").checkpoint
    assert found is not None and len(weights_sha256(found)) == 64
    other = Worker(0, 0)
    assert restore(found, view_of(other)) == 3
    other.buffers.load(3, everything=True)
    assert other.state() == one.state()
    for worker in (one, other):
        install([worker], [0] * LANES)
        step([worker], work_of(3))
    assert other.state() == one.state()


def test_what_came_after_the_last_loop_of_a_run_that_had_ended_is_not_made(tmp_path) -> None:  # type: ignore[no-untyped-def]
    one = trained(1)
    view = view_of(one)
    one.board.begin_op(2 * NESTED, 0, -1)
    one.board.begin_op(3 * NESTED, 1, 5)
    results = OperationResults(view.section("evaluation-past"))
    for op in (NESTED, 2 * NESTED + 5, 3 * NESTED):
        results.put(op, b"{}")
    view.section("evaluation")[:3] = b"abc"
    write(tmp_path, content(captured(view), FACTS, Script("a.py", (), ""), {}, {}), keep=1)
    found = newest(tmp_path).checkpoint
    assert found is not None
    for ended in (False, True):
        there = view_of(Worker(0, 0))
        restore(found, there, ended=ended)
        kept = OperationResults(there.section("evaluation-past"))
        assert there.board.op()[0] == (2 if ended else 3) * NESTED
        assert [kept.has(op) for op in (NESTED, 2 * NESTED + 5, 3 * NESTED)] == [True, True, not ended]
        assert any(there.section("evaluation")) is not ended


def test_an_arena_of_something_else_is_left_alone(tmp_path) -> None:  # type: ignore[no-untyped-def]
    view = view_of(trained(1))
    made = content(captured(view), FACTS, Script("a.py", (), ""), {}, {})
    tensors = {name: tensor for name, tensor in made.tensors.items() if name != "ready"}
    write(tmp_path, msgspec.structs.replace(made, tensors=tensors), keep=1)
    found = newest(tmp_path).checkpoint
    assert found is not None
    other = Worker(0, 0)
    before = other.state()
    with pytest.raises(OtherState, match=r"ready \(none bytes there, .* here\)"):
        restore(found, view_of(other))
    assert other.state() == before and view_of(other).board.versions() == [0] * other.board.num_slices
