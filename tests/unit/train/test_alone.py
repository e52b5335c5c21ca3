"""The plain loop in a run of one process gives the bits of the same script without Holdfast."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.optim import lr_scheduler as lrs
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

import holdfast as hf
from holdfast.errors import NonFinite
from holdfast.train import run as runs
from tests.same import assert_same
from tests.unit.train.problems import assert_close, batches_of, loader_of, loss_of, plain, points, turn

EPOCHS = 2
Epoch = Callable[[Iterable[Any]], None]
#: What a script does with its batches: made from (model, optimizer) once, called for every epoch.
Script = Callable[[nn.Module, optim.Optimizer], Epoch]


def model_of(*between: nn.Module) -> nn.Sequential:
    """So wide that the implementations of an optimizer differ in bits, the same at every call."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(5, 64), *between, nn.Linear(64, 2))


def net() -> nn.Sequential:
    return model_of(nn.Tanh())


def normed() -> nn.Sequential:
    return model_of(nn.BatchNorm1d(64), nn.ReLU())


def momentum(model: nn.Module) -> optim.Optimizer:
    return optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def adam(model: nn.Module) -> optim.Optimizer:
    return optim.Adam(model.parameters(), lr=0.01)


OPTIMIZERS: dict[str, Callable[[nn.Module], optim.Optimizer]] = {
    "SGD-momentum": momentum,
    "Adam": adam,
    "Adam-fused": lambda m: optim.Adam(m.parameters(), lr=0.01, fused=True),
    "Adam-amsgrad": lambda m: optim.Adam(m.parameters(), lr=0.01, amsgrad=True, weight_decay=0.1),
    "Adam-tensor-lr": lambda m: optim.Adam(m.parameters(), lr=torch.tensor(0.01)),
    "AdamW-foreach": lambda m: optim.AdamW(m.parameters(), lr=0.01, foreach=True),
    "RMSprop": lambda m: optim.RMSprop(m.parameters(), lr=0.01, momentum=0.5),
    "Adagrad": lambda m: optim.Adagrad(m.parameters(), lr=0.05),
}


# ---------------------------------------------------------------- scripts


def usual(model: nn.Module, optimizer: optim.Optimizer) -> Epoch:
    return lambda batches: (plain(model, optimizer, batches), None)[1]


def each(
    after: Callable[[nn.Module, optim.Optimizer], Any], before: Callable[[nn.Module], Any] = lambda _: None
) -> Script:
    """The usual loop, with something between `backward` and the step, and something after that."""

    def script(model: nn.Module, optimizer: optim.Optimizer) -> Epoch:
        def epoch(batches: Iterable[Any]) -> None:
            for batch in batches:
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                before(model)
                optimizer.step()
                after(model, optimizer)

        return epoch

    return script


def with_closure(model: nn.Module, optimizer: optim.Optimizer) -> Epoch:
    def epoch(batches: Iterable[Any]) -> None:
        for batch in batches:

            def closure(batch: Any = batch) -> Tensor:
                optimizer.zero_grad()
                loss = loss_of(model, batch)
                loss.backward()
                return loss

            assert optimizer.step(closure) > 0.0

    return epoch


def scheduled(make: Callable[[Any], Any]) -> Script:
    def script(model: nn.Module, optimizer: optim.Optimizer) -> Epoch:
        schedule = make(optimizer)

        def epoch(batches: Iterable[Any]) -> None:
            for batch in batches:
                plain(model, optimizer, [batch])
                schedule.step()

        return epoch

    return script


def averaged(model: nn.Module, optimizer: optim.Optimizer) -> Epoch:
    """What is trained ends as the mean of what it was after each step."""
    mean = AveragedModel(model)

    def epoch(batches: Iterable[Any]) -> None:
        for batch in batches:
            plain(model, optimizer, [batch])
            mean.update_parameters(model)
        model.load_state_dict(mean.module.state_dict())

    return epoch


def accumulating(every: int) -> Script:
    """Where the number of batches is no multiple, the next epoch goes on with the gradient that is there."""

    def script(model: nn.Module, optimizer: optim.Optimizer) -> Epoch:
        def epoch(batches: Iterable[Any]) -> None:
            for count, batch in enumerate(batches, 1):
                (loss_of(model, batch) / every).backward()
                if count % every == 0:
                    optimizer.step()
                    optimizer.zero_grad()

        return epoch

    return script


def scaled(model: nn.Module, optimizer: optim.Optimizer) -> Epoch:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)

    def epoch(batches: Iterable[Any]) -> None:
        for batch in batches:
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(model, batch)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=False)

    return epoch


def rate_of_a_count(model: nn.Module, optimizer: optim.Optimizer) -> Epoch:
    def epoch(batches: Iterable[Any]) -> None:
        for count, batch in enumerate(batches):
            optimizer.param_groups[0]["lr"] = 0.1 / (1 + count)
            plain(model, optimizer, [batch])

    return epoch


def restarting(model: nn.Module, optimizer: optim.Optimizer) -> Epoch:
    """Each epoch begins with the state that the optimizer had before the first."""
    first = copy.deepcopy(optimizer.state_dict())

    def epoch(batches: Iterable[Any]) -> None:
        if optimizer.state:
            optimizer.load_state_dict(copy.deepcopy(first))
        plain(model, optimizer, batches)

    return epoch


def by_hand(model: nn.Module, _: optim.Optimizer) -> None:
    with torch.no_grad():
        model[0].weight.clamp_(-0.2, 0.2)
    model[0].bias.data.mul_(0.9)


def edited(model: nn.Module) -> None:
    model[0].weight.grad[0] = 0.0
    model[0].bias.grad = None


SCRIPTS: dict[str, Script] = {
    "clip_grad_norm_": each(lambda *_: None, lambda m: nn.utils.clip_grad_norm_(m.parameters(), 0.3)),
    "clip_grad_value_": each(lambda *_: None, lambda m: nn.utils.clip_grad_value_(m.parameters(), 0.05)),
    "edited gradients": each(lambda *_: None, edited),
    "parameters written to": each(by_hand),
    "OneCycleLR": scheduled(lambda o: lrs.OneCycleLR(o, 0.2, total_steps=20)),
    "SequentialLR": scheduled(lambda o: lrs.SequentialLR(o, [lrs.LinearLR(o), lrs.ExponentialLR(o, 0.9)], [3])),
    "a closure": with_closure,
    "an average": averaged,
    "2 turns a step": accumulating(2),
    "3 turns a step": accumulating(3),
    "a scaler": scaled,
    "a rate of a count": rate_of_a_count,
    "another state": restarting,
}  # fmt: skip


# ---------------------------------------------------------------- comparing


def bare(model: nn.Module, optimizer: optim.Optimizer, script: Script, data: Any, **options: Any) -> None:
    """The script without Holdfast."""
    epoch = script(model, optimizer)
    taken = list(batches_of(data, epochs=EPOCHS, **options))
    for number in range(EPOCHS):
        epoch(taken[number * len(taken) // EPOCHS : (number + 1) * len(taken) // EPOCHS])


def held(
    run: hf.Run, model: nn.Module, optimizer: optim.Optimizer, script: Script, data: Any, *, late: bool = False,
    **options: Any,
) -> None:  # fmt: skip
    """The script in a run; with `late` what it needs is made after `prepare`."""
    epoch = script(model, optimizer) if not late else None
    model, optimizer, loader = run.prepare(model, optimizer, loader_of(data, **options))
    epoch = epoch or script(model, optimizer)
    for _ in run.epochs(EPOCHS):
        epoch(loader)


def assert_same_bits(
    join: Callable[..., hf.Run], script: Script = usual, make: Callable[[nn.Module], optim.Optimizer] = momentum,
    made: Callable[[], nn.Module] = net, data: Any = None, late: bool = False, **options: Any,
) -> None:  # fmt: skip
    data = data or points()
    model, other = made(), made()
    mine, theirs = make(model), make(other)
    bare(other, theirs, script, data, **options)  # before `join`, which sets the number of threads
    run = join(lanes=4)
    held(run, model, mine, script, data, late=late, **options)
    assert any(not torch.equal(*pair) for pair in zip(other.parameters(), made().parameters(), strict=True))
    for _ in range(2):  # in the run, and after it
        assert_same(model.state_dict(), other.state_dict(), "model")
        assert_same(mine.state_dict(), theirs.state_dict(), "optimizer")
        run.close()


# ---------------------------------------------------------------- the same bits


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_with_every_kind_of_optimizer(join, name: str) -> None:
    assert_same_bits(join, make=OPTIMIZERS[name])


@pytest.mark.parametrize("make", [momentum, adam])
@pytest.mark.parametrize("name", SCRIPTS)
def test_with_every_kind_of_loop(join, name: str, make: Callable[[nn.Module], optim.Optimizer]) -> None:
    assert_same_bits(join, SCRIPTS[name], make)


@pytest.mark.parametrize("name", ["OneCycleLR", "an average", "a closure"])
def test_with_what_is_made_after_prepare(join, name: str) -> None:
    assert_same_bits(join, SCRIPTS[name], adam, late=True)


@pytest.mark.parametrize("options", [{"batch": 13}, {"batch": 13, "drop_last": True}, {"shuffle": False}])
def test_with_every_kind_of_loader(join, options: dict[str, Any]) -> None:
    assert_same_bits(join, make=adam, **options)


@pytest.mark.parametrize("script", ["OneCycleLR", "2 turns a step", "clip_grad_norm_"])
def test_with_statistics_of_batches(join, script: str) -> None:
    assert_same_bits(join, SCRIPTS[script], adam, normed, points(53), drop_last=True)


def test_with_a_model_that_is_run_between_the_loops(join) -> None:
    """Its statistics follow, as on one machine."""

    def script(model: nn.Module, optimizer: optim.Optimizer) -> Epoch:
        def epoch(batches: Iterable[Any]) -> None:
            plain(model, optimizer, batches)
            model(torch.arange(15.0).reshape(3, 5))

        return epoch

    assert_same_bits(join, script, made=normed)


def test_with_evaluations_in_between(join) -> None:
    """They leave no trace, also of a model in training mode."""
    scores: list[float] = []
    test = DataLoader(points(30), batch_size=7)

    def script(model: nn.Module, optimizer: optim.Optimizer) -> Epoch:
        def epoch(batches: Iterable[Any]) -> None:
            for batch in batches:
                plain(model, optimizer, [batch])
                if (run := runs.current()) is not None:
                    scores.append(run.evaluate(lambda x, y: {"loss": loss_of(model, (x, y))}, test)["loss"])

        return epoch

    assert_same_bits(join, script, adam, normed)
    assert len(set(scores)) == len(scores) == 8


def test_a_scaler_that_leaves_steps_out(join) -> None:
    """As in torch alone. What is left out counts as a step; losses are told as they were before they were scaled."""

    def script(model: nn.Module, optimizer: optim.Optimizer) -> Epoch:
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)

        def epoch(batches: Iterable[Any]) -> None:
            for batch in batches:
                loss = loss_of(model, batch)
                scaler.scale(loss).backward()
                if len(told) % 8 in (0, 5):
                    model[0].weight.grad[0, 0] = float("inf")
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                run = runs.current()
                told.append((scaler.get_scale(), loss.item(), run.loss if run else loss.item(), run and run.step))

        return epoch

    told: list[tuple[Any, ...]] = []
    assert_same_bits(join, script, adam)
    theirs, mine = told[:8], told[8:]
    assert [one[:3] for one in mine] == [one[:3] for one in theirs]
    assert [one[0] for one in mine] == [32.0, 32.0, 64.0, 64.0, 128.0, 64.0, 64.0, 128.0]
    assert [one[3] for one in mine] == list(range(1, 9))


def test_with_as_many_threads_as_the_script_has(join, two_threads: None) -> None:
    """The gradient of a LayerNorm hangs on their number."""
    assert_same_bits(join, make=adam, made=lambda: model_of(nn.LayerNorm(64)), data=points(256), batch=64)


def test_what_is_random_is_the_same_in_every_run(join) -> None:
    def weights() -> str:
        run = join(lanes=4)
        model = model_of(nn.Dropout(0.5))
        held(run, model, momentum(model), usual, points())
        sha = run.weights_sha256()
        run.close()
        return sha

    first = weights()
    torch.rand(17)
    assert weights() == first


# ---------------------------------------------------------------- threads


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def seen_threads(run: hf.Run) -> list[int]:
    """In a plain loop, in one by steps, and in a plain one again."""
    model = net()
    model, optimizer, loader = run.prepare(model, momentum(model), loader_of(points(), batch=48))
    seen = []
    for batch in loader:
        plain(model, optimizer, [batch])
        seen.append(torch.get_num_threads())
    for step in run.steps(loader):
        turn(step, model, optimizer)
        seen.append(torch.get_num_threads())
    for batch in loader:
        seen.append(torch.get_num_threads())
        plain(model, optimizer, [batch])
    return seen


def test_the_scripts_number_of_threads_is_that_of_a_plain_loop(join, two_threads: None) -> None:
    assert seen_threads(join(lanes=2)) == [2, 1, 2]


def test_a_number_of_threads_that_was_asked_for_is_that_of_every_loop(join, two_threads: None) -> None:
    assert seen_threads(join(lanes=2, threads=1)) == [1, 1, 1]


def test_a_number_that_the_script_sets_later_stays(join, two_threads: None) -> None:
    run, model = join(lanes=2), net()
    model, optimizer, loader = run.prepare(model, momentum(model), loader_of(points()))
    torch.set_num_threads(3)
    for batch in loader:
        plain(model, optimizer, [batch])
        assert torch.get_num_threads() == 3


# ---------------------------------------------------------------- with loops by steps


@pytest.mark.parametrize("order", [(True, False, True), (False, True, False), (True, True, False, False, True)])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_kind_of_loop_goes_on_where_the_other_ended(join, name: str, order: tuple[bool, ...]) -> None:
    make, run, model = OPTIMIZERS[name], join(lanes=4), net()
    model, optimizer, loader = run.prepare(model, make(model), loader_of(points()))
    other = net()
    theirs, taken = make(other), iter(list(batches_of(points(), epochs=len(order))))
    for epoch, by_steps in zip(run.epochs(len(order)), order, strict=True):
        if by_steps:
            for step in run.steps(loader):
                turn(step, model, optimizer)
        else:
            plain(model, optimizer, loader)
        plain(other, theirs, [next(taken) for _ in loader_of(points())])
        assert run.step == 4 * (epoch + 1)
        assert_close(model, other, rtol=1e-3, atol=2e-5)
    assert run.result()["samples"] == 48 * len(order)
    states = optimizer.state_dict()["state"], theirs.state_dict()["state"]
    for key, state in states[1].items():
        for part, value in state.items():
            if isinstance(value, Tensor):
                torch.testing.assert_close(states[0][key][part], value, rtol=1e-3, atol=1e-4)


def test_buffers_and_schedules_go_on_too(join) -> None:
    def objects() -> tuple[Any, ...]:
        model = normed()
        optimizer = momentum(model)
        return model, optimizer, lrs.StepLR(optimizer, 3, gamma=0.5)

    run = join(lanes=1)
    model, optimizer, schedule = objects()
    model, optimizer, loader = run.prepare(model, optimizer, loader_of(points()))
    other, theirs, their_schedule = objects()
    for epoch in run.epochs(4):
        if epoch % 2:
            for step in run.steps(loader):
                turn(step, model, optimizer)
                schedule.step()
        else:
            for batch in loader:
                plain(model, optimizer, [batch])
                schedule.step()
    for batch in batches_of(points(), epochs=4):
        plain(other, theirs, [batch])
        their_schedule.step()
    assert_close(model, other, rtol=1e-3, atol=1e-5)
    assert optimizer.param_groups[0]["lr"] == theirs.param_groups[0]["lr"] < 0.05


def test_what_was_written_to_parameters_in_a_plain_loop_holds_in_one_by_steps(join) -> None:
    run, model = join(lanes=4), net()
    model, optimizer, loader = run.prepare(model, momentum(model), loader_of(points()))
    each(by_hand)(model, optimizer)(loader)
    optimizer.zero_grad()
    for step in run.steps(loader):
        turn(step, model, optimizer)
    other = net()
    theirs, taken = momentum(other), list(batches_of(points(), epochs=2))
    each(by_hand)(other, theirs)(taken[:4])
    theirs.zero_grad()
    assert_close(model, plain(other, theirs, taken[4:]), rtol=1e-3, atol=1e-5)


# ---------------------------------------------------------------- refused all the same


def test_a_gradient_of_several_turns_is_looked_at_before_it_is_applied(join) -> None:
    run, model = join(lanes=2), net()
    model, optimizer, loader = run.prepare(model, momentum(model), loader_of(points()))
    with pytest.raises(NonFinite, match=r"^Step 0, lane 0: the loss is nan\. It was not applied\."):
        for count, batch in enumerate(loader):
            (loss_of(model, batch) * (1.0 if count else float("nan"))).backward()
            if count:
                optimizer.step()
    assert run.step == 0 and all(map(torch.equal, model.parameters(), net().parameters()))
