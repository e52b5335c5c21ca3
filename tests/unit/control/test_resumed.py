"""A run that goes on from a checkpoint: what the coordinator makes of it."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.control.membership import blueprint
from holdfast.control.protocol.commands import FailRun, MakeArena, StartWorker
from holdfast.control.protocol.events import HostJoined, HostLevel, Resumed, RunStarted
from holdfast.control.protocol.messages import Reached, Ready, Seeded
from tests.unit.control.driven import Driven, install, ready, to, welcome


def checkpoint(first: Ready, step: int = 40, *modes: Reached) -> Resumed:
    return Resumed(msgspec.structs.replace(first, worker=-1), list(modes) or [Reached()], step)


def test_it_begins_at_the_step_of_the_checkpoint_once_host_0_has_the_state() -> None:
    run = Driven()
    run(RunStarted(checkpoint(ready(0))))
    assert run.told == "the run goes on with the state of step 40"
    assert run(HostJoined(0, "here", slots=2)) == [StartWorker(0, 0, 0), StartWorker(1, 1, 0)]
    assert run(ready(1)) == [MakeArena(4096, 0), welcome(1, seed=True)]
    assert run(ready(0)) == []
    assert run(HostLevel(0, 40, 0)) == []
    assert run(Seeded(1)) == [welcome(0), *to(install(1, [0, 1], [0, 0, 1, 1]), 0, 1)]
    assert run.told.startswith("the arena holds the state of the checkpoint: generation 1 begins at step 40")


def test_who_has_built_something_else_than_the_checkpoint_is_refused_by_name() -> None:
    parts = [("parameter fc.weight", "[2, 4] float32")]
    there = msgspec.structs.replace(ready(0), model="theirs", parts=blueprint.pack(parts), num_parts=1)
    run = Driven(workers=1)
    run(RunStarted(checkpoint(there)))
    run(HostJoined(0, "here", slots=1))
    mine = blueprint.pack([("parameter fc.weight", "[3, 4] float32")])
    (*_, end) = run(msgspec.structs.replace(ready(0), model="mine", parts=mine, num_parts=1))
    assert isinstance(end, FailRun) and end.kind == "OutOfSync"
    assert "parameter fc.weight (the run's checkpoint: [2, 4] float32; worker 0: [3, 4] float32)" in end.message


def test_the_mode_is_that_of_the_checkpoint() -> None:
    run = Driven(workers=1)
    run(RunStarted(checkpoint(ready(0), 40, Reached(), Reached(1, "async", 30, 30))))
    assert run.machine.snapshot().sync == "async"
    found = run.machine.resumable()
    assert found is None, "there is nothing to say before the first generation"


def reading(worker: int, samples: int, shape: str = "[2, 4] float32") -> Ready:
    parts = [("loader 0", f"{samples} samples"), ("parameter fc.weight", shape)]
    hashed, packed = blueprint.fingerprint(parts), blueprint.pack(parts)
    return msgspec.structs.replace(ready(worker), model=hashed, parts=packed, num_parts=2)


def test_a_run_that_had_ended_may_go_on_with_other_data() -> None:
    run = Driven()
    run(RunStarted(msgspec.structs.replace(checkpoint(reading(0, 100)), ended=True)))
    run(HostJoined(0, "here", slots=2))
    assert run(reading(1, 150)) == [MakeArena(4096, 0), welcome(1, seed=True)]
    assert "the script reads other data than the run did before" in run.told
    run(reading(0, 100))
    assert "loader 0 (worker 1: 150 samples; worker 0: 100 samples)" in run.told, "but all the same"


@pytest.mark.parametrize(("ended", "shape"), [(False, "[2, 4] float32"), (True, "[3, 4] float32")])
def test_one_that_had_not_or_has_another_model_may_not(ended: bool, shape: str) -> None:
    run = Driven(workers=1)
    run(RunStarted(msgspec.structs.replace(checkpoint(reading(0, 100)), ended=ended)))
    run(HostJoined(0, "here", slots=1))
    (*_, end) = run(reading(0, 150, shape))
    assert isinstance(end, FailRun) and end.kind == "OutOfSync"
    assert "loader 0 (the run's checkpoint: 100 samples; worker 0: 150 samples)" in end.message
