"""Schedulers move once per step as on one machine, and a worker that comes late takes their state over."""

from __future__ import annotations

import copy
import gc
import io
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import optim
from torch.optim import lr_scheduler as lrs

from holdfast.dataplane.memory.arena import Arena, Sections
from holdfast.dataplane.memory.sections import CELL
from holdfast.dataplane.reduce.several_optimizers import together
from holdfast.errors import NotExact
from holdfast.train.loop.optimizer_settings import Settings, find_schedulers
from holdfast.train.loop.plain.scheduler_steps import SchedulerSteps
from holdfast.train.loop.scheduler_order import number_schedulers
from holdfast.train.loop.variables.differences import Left
from tests.unit.train.problems import batches_of, loader_of, loss_of, net, plain, points, train, turn

STEPS = 4  # in an epoch

SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda o: lrs.StepLR(o, 3, gamma=0.5),
    "MultiStepLR": lambda o: lrs.MultiStepLR(o, [2, 3, 7], gamma=0.5),
    "CosineAnnealingLR": lambda o: lrs.CosineAnnealingLR(o, 8),
    "OneCycleLR": lambda o: lrs.OneCycleLR(o, 0.2, total_steps=20),
    "CyclicLR": lambda o: lrs.CyclicLR(o, 0.01, 0.1, step_size_up=3),
    "LambdaLR": lambda o: lrs.LambdaLR(o, [lambda t: 0.9**t, lambda t: 1 / (1 + t)]),
    "LambdaLR-numpy": lambda o: lrs.LambdaLR(o, lambda t: numpy.cos(t / 9)),
    "MultiplicativeLR": lambda o: lrs.MultiplicativeLR(o, lambda t: 0.95),
    "SequentialLR": lambda o: lrs.SequentialLR(o, [lrs.LinearLR(o, 0.1, 1, 3), lrs.ExponentialLR(o, 0.9)], [3]),
    "ChainedScheduler": lambda o: lrs.ChainedScheduler([lrs.ConstantLR(o, 0.1, 3), lrs.ExponentialLR(o, 0.9)], o),
}


def optimizer_of(model: torch.nn.Module) -> optim.Optimizer:
    first, *rest = model.parameters()
    return optim.SGD([{"params": [first]}, {"params": rest, "lr": 0.02}], lr=0.1, momentum=0.9)


def rates(optimizer: optim.Optimizer) -> tuple[float, ...]:
    return tuple(float(v) for g in optimizer.param_groups for v in (g["lr"], g["momentum"]))


def plain_rates(make: Callable[[Any], Any], steps: int) -> list[tuple[float, ...]]:
    optimizer = optimizer_of(net())
    scheduler, seen = make(optimizer), []
    for _ in range(steps):
        optimizer.step()
        seen.append(rates(optimizer))
        scheduler.step()
    return [*seen, rates(optimizer)]


@pytest.mark.parametrize("when", ["handed over", "found", "made after prepare"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_rate_of_every_step_is_plain_torchs(join, name: str, when: str) -> None:
    make = SCHEDULERS[name]
    run, model = join(lanes=4), net()
    optimizer = optimizer_of(model)
    scheduler = make(optimizer) if when != "made after prepare" else None
    given = [scheduler] if when == "handed over" else []
    model, optimizer, loader, *_ = run.prepare(model, optimizer, loader_of(points()), *given)
    scheduler = scheduler or make(optimizer)
    seen = []
    for _ in run.epochs(2):
        for step in run.steps(loader):
            turn(step, model, optimizer)
            seen.append(rates(optimizer))
            scheduler.step()
        for batch in loader:
            plain(model, optimizer, [batch])
            seen.append(rates(optimizer))
            scheduler.step()
    assert [*seen, rates(optimizer)] == plain_rates(make, 4 * STEPS)


def test_a_scheduler_per_epoch_moves_at_once(join) -> None:
    run, model = join(lanes=2), net()
    optimizer = optimizer_of(model)
    scheduler = lrs.StepLR(optimizer, 1, gamma=0.5)
    model, optimizer, loader = run.prepare(model, optimizer, loader_of(points()))
    seen = []
    for _ in run.epochs(3):
        for step in run.steps(loader):
            seen.append(rates(optimizer)[0])
            turn(step, model, optimizer)
        scheduler.step()
    assert seen == [0.1 * 0.5**epoch for epoch in range(3) for _ in range(STEPS)]


def test_plateau_steps_per_epoch_and_is_refused_in_a_unit(join) -> None:
    run, model = join(lanes=2), net()
    optimizer = optimizer_of(model)
    scheduler = lrs.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    model, optimizer, loader, scheduler = run.prepare(model, optimizer, loader_of(points()), scheduler)
    for _ in run.epochs(3):
        for step in run.steps(loader):
            turn(step, model, optimizer)
        scheduler.step(1.0)
    assert rates(optimizer)[0] == 0.1 * 0.5**2
    for step in run.steps(loader):
        for batch in step:
            loss = loss_of(model, batch)
            with pytest.raises(NotExact, match="ReduceLROnPlateau was stepped inside a unit with a number that only"):
                scheduler.step(loss)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_in_a_plain_loop_a_scheduler_may_be_stepped_as_on_one_machine(join) -> None:
    """Also twice a step, and with the count of batches."""

    def stepped(optimizer: optim.Optimizer, scheduler: Any, model: Any, batches: Any) -> list[tuple[float, ...]]:
        seen = []
        for i, batch in enumerate(batches):
            plain(model, optimizer, [batch])
            scheduler.step(i / 2)
            seen.append(rates(optimizer))
            scheduler.step()
            seen.append(rates(optimizer))
        return seen

    def objects() -> tuple[Any, ...]:
        model = net()
        optimizer = optimizer_of(model)
        return optimizer, lrs.CosineAnnealingWarmRestarts(optimizer, 4), model

    optimizer, scheduler, model = objects()
    model, optimizer, loader = join(lanes=2).prepare(model, optimizer, loader_of(points()))
    mine = stepped(optimizer, scheduler, model, loader)
    assert mine == stepped(*objects(), batches_of(points(), epochs=1))
    assert len(set(mine)) > STEPS


# ---------------------------------------------------------------- units of relaxed modes


def noting() -> tuple[Any, Settings]:
    """A scheduler whose calls are noted until the step is complete."""
    optimizer = optimizer_of(net())
    scheduler = lrs.CosineAnnealingWarmRestarts(optimizer, 4)
    settings = Settings(optimizer, [scheduler])
    settings.begin_unit()
    return scheduler, settings


def test_a_scheduler_stepped_twice_in_a_unit_is_refused() -> None:
    scheduler, settings = noting()
    settings.filled()
    scheduler.step()
    with pytest.raises(NotExact, match=r"CosineAnnealingWarmRestarts was stepped twice in one unit. Step it once"):
        scheduler.step()


def test_a_scheduler_stepped_by_a_count_of_units_is_refused() -> None:
    scheduler, settings = noting()
    settings.filled()
    scheduler.step(0.0)
    settings.begin_unit()
    settings.filled()
    with pytest.raises(NotExact, match=r"was stepped with \[0.0\] in one unit and with \[0.5\] in another of the"):
        scheduler.step(0.5)


def test_a_scheduler_stepped_before_the_optimizer_is_refused_in_a_unit() -> None:
    scheduler, _ = noting()
    with pytest.raises(NotExact, match=r"was stepped before optimizer.step\(\) in a unit, and would act on the step"):
        scheduler.step()


def test_a_scheduler_made_after_the_first_loop_is_refused(join) -> None:
    run, model = join(lanes=2), net()
    model, optimizer, loader = run.prepare(model, optimizer_of(model), loader_of(points()))
    train(run, model, optimizer, loader, epochs=1)
    scheduler = lrs.StepLR(optimizer, 1)
    for begin in (iter, run.steps):
        with pytest.raises(NotExact, match="an LR scheduler was made after the first loop over the loader had begun"):
            next(begin(loader))
    assert scheduler


def test_its_state_can_be_saved_and_the_scheduler_is_put_back(join) -> None:
    run, model = join(lanes=2), net()
    optimizer = optimizer_of(model)
    scheduler = lrs.SequentialLR(optimizer, [lrs.LinearLR(optimizer), lrs.ExponentialLR(optimizer, 0.9)], [3])
    model, optimizer, loader = run.prepare(model, optimizer, loader_of(points()))
    for step in run.steps(loader):
        turn(step, model, optimizer)
        scheduler.step()
    torch.save(scheduler.state_dict(), io.BytesIO())
    assert scheduler.state_dict()["last_epoch"] == STEPS
    run.close()
    assert not {"step", "state_dict", "_holdfast_step"} & scheduler.__dict__.keys()
    scheduler.step()
    assert scheduler.last_epoch == STEPS + 1


def test_inner_schedulers_are_left_to_their_owner() -> None:
    optimizer = optimizer_of(net())
    inner = [lrs.LinearLR(optimizer), lrs.ExponentialLR(optimizer, 0.9)]
    outer = lrs.SequentialLR(optimizer, inner, [3])
    stranger = lrs.StepLR(optimizer_of(net()), 1)
    assert find_schedulers(optimizer, []) == [outer]
    assert find_schedulers(optimizer, [inner[0], outer]) == [outer]
    assert stranger not in find_schedulers(optimizer, [])


# ---------------------------------------------------------------- the cells


def arena_of(rows: int) -> Arena:
    sections = Sections()
    sections.add("settings", 3 * CELL * rows)
    sections.add("settings-elsewhere", 3 * CELL * rows)
    return Arena(sections)


def worker(name: str, arena: Arena, row: int) -> tuple[optim.Optimizer, Any, Settings]:
    optimizer = optimizer_of(net())
    scheduler = SCHEDULERS[name](optimizer)
    optimizer.step()
    settings = Settings(optimizer, [scheduler])
    settings.attach(arena, row)
    return optimizer, scheduler, settings


def unit(optimizer: optim.Optimizer, scheduler: Any, settings: Settings, step: int) -> None:
    settings.begin_unit()
    settings.filled()
    applied = settings.hyper()
    scheduler.step()
    settings.write(step, applied, step)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_late_worker_restores_the_settings_of_any_step(name: str) -> None:
    arena = arena_of(2)
    optimizer, scheduler, settings = worker(name, arena, 0)
    settings.enter(0, 0)
    for step in range(9):
        before = copy.deepcopy(settings.hyper())
        unit(optimizer, scheduler, settings, step)
        other, their_scheduler, theirs = worker(name, arena, 1)
        theirs.restore(step)
        assert rates(other) == rates(optimizer), "the step is under way: not moved yet"
        assert [g["lr"] for g in theirs.applied(step)] == [g["lr"] for g in before]
        theirs.restore(step + 1)
        settings.end_units()
        assert rates(other) == rates(optimizer), f"after step {step}"
        for _ in range(4):  # and it goes on alike
            their_scheduler.step()
        twin, twin_scheduler, _ = worker(name, arena_of(1), 0)
        for _ in range(step + 5):
            twin_scheduler.step()
        assert rates(other) == pytest.approx(rates(twin), rel=1e-12)


def to_a_second_loop(optimizer: optim.Optimizer, scheduler: Any, settings: Settings) -> None:
    """A loop of one step, another rate made by hand, and the beginning of the next loop."""
    settings.enter(0, 0)
    unit(optimizer, scheduler, settings, 0)
    settings.end_units()
    settings.leave_units()
    optimizer.param_groups[0]["lr"] = 0.77
    settings.enter(1, 1)


def test_settings_made_between_two_loops_are_found_with_the_operation() -> None:
    arena = arena_of(2)
    optimizer, scheduler, settings = worker("StepLR", arena, 0)
    to_a_second_loop(optimizer, scheduler, settings)
    other, _, theirs = worker("StepLR", arena, 1)
    theirs.restore(1)
    assert rates(other)[0] == 0.1, "its own script will make the change"
    theirs.restore(1, 1)
    assert rates(other)[0] == 0.77


@pytest.mark.parametrize("moved", [False, True])
def test_a_later_phase_of_a_turn_is_a_place_of_its_own(moved: bool) -> None:
    arena = arena_of(2)
    optimizer, _, settings = worker("StepLR", arena, 0)
    top = settings.enter_turn(3, 0, 5, {})
    if moved:
        optimizer.param_groups[0]["lr"] = 0.77
    second = settings.enter_turn(3, 0, 5, {}, phase=1)
    assert top < second < settings.enter_turn(4, 0, 7, {}), "also where nothing has moved"
    other, _, theirs = worker("StepLR", arena, 1)
    place = theirs.enter_late(0, 6, {top, second})
    assert (place.step, place.version, place.tag, place.phase, place.left) == (3, 5, second, 1, False)
    other.param_groups[0]["lr"] = 0.5  # by the script's code of the phase before
    theirs.enter_phase_late()
    assert rates(other)[0] == (0.77 if moved else 0.1)
    assert theirs.enter_late(0, 6, {top}).phase == 0


def test_variables_are_found_by_turn_and_by_worker() -> None:
    arena = arena_of(2)
    first, second = (worker("StepLR", arena, row)[2] for row in range(2))
    first.enter_turn(3, 0, 3, {"i": Left("7", 1)}, {"hash": "ab"})
    second.enter_turn(3, 0, 3, {"i": Left("8", 0)})
    second.enter_turn(4, 0, 4, {"i": Left("9", 0)})
    assert first.variables() == {3: [{"i": ("7", 1)}, {"i": ("8", 0)}], 4: [{"i": ("9", 0)}]}
    assert first.of_others(3) == [{"i": Left("8", 0)}] and second.of_others(3) == [{"i": Left("7", 1)}]
    assert first.of_others(4) and not second.of_others(4) and first.told(3, {0, 1}) == {0: {"hash": "ab"}}


def test_variables_that_have_no_room_are_left_out_and_said_once() -> None:
    arena = arena_of(1)
    optimizer, _, settings = worker("StepLR", arena, 0)
    optimizer.param_groups[0]["note"] = "x" * (CELL // 4)
    variables = {f"self.state.variable_{number:03}": Left("9" * 90) for number in range(64)}
    with pytest.warns(UserWarning, match=r"room for 32 of the 64 simple values .* lacks self\.state\.variable_032, "):
        settings.enter_turn(3, 0, 3, variables)
    assert [*settings.variables()[3][0]] == [*variables][:32]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settings.enter_turn(4, 0, 4, variables)
    optimizer.param_groups[0]["note"] = "x" * CELL
    with pytest.raises(NotExact, match="the settings of optimizer and schedulers take"):
        settings.enter_turn(5, 0, 5, variables)


@pytest.mark.parametrize("done", [0, 2, 3])
def test_a_worker_that_was_further_than_all_stand_goes_back_to_there(done: int) -> None:
    """It made units of three steps of the pass, some for a host that was lost before others held what came of them."""
    optimizer, scheduler, settings = worker("MultiplicativeLR", arena_of(1), 0)
    to_a_second_loop(optimizer, scheduler, settings)
    tempo = SchedulerSteps(settings)
    for step in (1, 2, 3):
        tempo.turn_to(step, 1)
        settings.begin_unit()
        settings.filled()
        scheduler.step()
        settings.write(step, tempo.hyper(step, 1), 1)
    tempo.settle(1 + done, None if done else 1)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.77 * 0.95**done)
    assert tempo.reached(0), "steps that were taken back count no more"


def test_a_kill_in_the_middle_of_a_write_leaves_the_cell_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """At whatever store the writer dies, what was written before is still found."""
    arena = arena_of(2)
    optimizer, scheduler, settings = worker("StepLR", arena, 0)
    settings.enter(0, 0)
    for step in range(4):
        unit(optimizer, scheduler, settings, step)
        settings.end_units()
    expected = rates(optimizer)
    unit(optimizer, scheduler, settings, 4)
    memory = arena.section("settings")
    whole = bytes(memory)
    heads = [memory[cell * 16384 : cell * 16384 + 16].cast("q") for cell in range(3)]
    newest = max(heads, key=lambda head: head[0])
    newest[0] = 0  # died before the last store: the cell says nothing
    newest[1] = 3
    other, _, theirs = worker("StepLR", arena, 1)
    theirs.restore(4)
    assert rates(other) == expected
    memory[:] = whole
    theirs.restore(5)
    settings.end_units()
    assert rates(other) == rates(optimizer)


def test_settings_too_large_for_a_cell_are_refused() -> None:
    optimizer = optimizer_of(net())
    optimizer.param_groups[0]["notes"] = "x" * 20_000
    settings = Settings(optimizer, [])
    settings.attach(arena_of(1), 0)
    with pytest.raises(NotExact, match=r"the settings of optimizer and schedulers take 40... bytes, more than 16360"):
        settings.enter(0, 0)


def test_names_of_parameters_are_no_settings(join) -> None:
    """torch keeps the names of `named_parameters` in the group; thousands of them must fit."""
    model = net()
    optimizer = optim.SGD(list(model.named_parameters()), lr=0.1)
    optimizer.param_groups[0]["param_names"] = ["a long name " * 200] * 4
    run = join(lanes=2)
    model, optimizer, loader = run.prepare(model, optimizer, loader_of(points()))
    train(run, model, optimizer, loader, epochs=1)
    assert math.isfinite(run.loss)


def test_schedulers_are_found_in_the_order_in_which_they_were_made_whatever_the_collector_did() -> None:
    number_schedulers()
    first, second = (torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1) for _ in range(2))
    made: list[Any] = []
    for number in range(6):
        if number % 2:
            gc.collect(number % 3)
        kind = torch.optim.lr_scheduler
        made.append(kind.ReduceLROnPlateau(first) if number % 2 else kind.ExponentialLR(second, 0.9))
    objects = gc.get_objects()
    for shuffled in (objects, objects[::-1]):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gc, "get_objects", lambda shuffled=shuffled: shuffled)
            assert find_schedulers(together([first, second]), []) == made
            assert find_schedulers(together([first, second]), [made[4]]) == [made[4], *made[:4], made[5]]
