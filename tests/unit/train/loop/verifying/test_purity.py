"""Units that are not pure are found; what verifies them is not seen by the script."""

from __future__ import annotations

import errno
import os
import random
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.utils.data import DataLoader, TensorDataset

from holdfast.core.verify import FIRST
from holdfast.dataplane.reduce.work import StepWork
from holdfast.errors import ConfigError, Impure
from holdfast.train.loop.verifying import purity, twice
from holdfast.train.loop.verifying.digests import differing, digest
from holdfast.train.loop.verifying.twice import Twice
from tests.unit.train.problems import loader_of, loss_of, net, points

Unit = Callable[[nn.Module, Any, int], Tensor]


def turns(join, unit: Unit, *, data: Any = None, after: Callable[[nn.Module], None] | None = None, **said: Any) -> int:
    """Loop by steps; the units that the script saw. `unit` gets the model, a batch and their number."""
    run = join(lanes=3, **said)
    model, count = net(), 0
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = run.prepare(model, optimizer, loader_of(points(6 * 20) if data is None else data, 6))
    for step in run.steps(loader):
        for batch in step:
            count += 1
            unit(model, batch, count).backward()
        optimizer.step()
        optimizer.zero_grad()
        if after is not None:
            after(model)
    assert run.step == len(loader)
    return count


class Tried:
    """Counts the copies, which the script cannot."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.units: list[tuple[int, int]] = []
        judge = Twice._judge

        def judged(one: Twice, unit: tuple[int, int], reports: Any) -> None:
            self.units.append(unit)
            judge(one, unit, reports)

        monkeypatch.setattr(Twice, "_judge", judged)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Tried:
    return Tried(monkeypatch)


def test_a_pure_script_sees_nothing_of_it(join, tried: Tried, tmp_path: Path) -> None:
    log = tmp_path / "log"

    def unit(model: nn.Module, batch: Any, count: int) -> Tensor:
        with open(log, "a") as file:
            file.write(f"{count}\n")
        return loss_of(model, batch)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert turns(join, unit) == 60
    assert log.read_text().split() == [str(number) for number in range(1, 61)]
    assert [step for step, _ in tried.units] == list(FIRST) and {lane for _, lane in tried.units} == {0, 1, 2}


def test_a_share_of_the_later_steps_is_verified_and_0_verifies_none(join, tried: Tried) -> None:
    turns(join, lambda model, batch, _: loss_of(model, batch), verify=1.0)
    assert [step for step, _ in tried.units] == list(range(20))
    tried.units.clear()
    held = random.Random(1)
    from holdfast.train.run import current

    current().close()
    turns(join, lambda model, batch, _: loss_of(model, batch) * held.random(), verify=0.0)
    assert tried.units == []


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_a_share_that_cannot_be(join, share: float) -> None:
    with pytest.raises(ConfigError, match=r"verify = \S+: must be a share of the steps, 0 to 1 \(set by hf.join\)"):
        join(verify=share)


def carried() -> Unit:
    """A hidden state that goes on from batch to batch, detached as people do it."""
    held: list[Tensor] = []

    def unit(model: nn.Module, batch: Any, _: int) -> Tensor:
        out = model(batch[0]) + (0.5 * held[-1] if held else 0.0)
        held[:] = [out.detach()]
        return nn.functional.mse_loss(out, batch[1])

    return unit


KEPT: dict[str, Callable[[], Unit]] = {
    "hidden state": carried,
    "a counter": lambda: lambda model, batch, count: loss_of(model, batch) * (1.0 + 0.01 * count),
    "a generator of its own": lambda: (lambda own: lambda model, batch, _: loss_of(model, batch) * own.random())(
        random.Random()
    ),
}


@pytest.mark.parametrize("kind", KEPT)
def test_state_that_is_kept_between_batches(join, kind: str) -> None:
    with pytest.raises(Impure) as told:
        turns(join, KEPT[kind]())
    assert str(told.value) == str(
        Impure.twice(0, (0, _lane()), "the loss, the gradient of 0.weight, the gradient of 0.bias, ...", again=True)
    )


def _lane() -> int:
    from holdfast.core import verify

    lane = verify.chosen(0, 0, range(3), 0.01)
    assert lane is not None
    return lane


def test_an_operation_that_is_not_deterministic(join) -> None:
    def unit(model: nn.Module, batch: Any, _: int) -> Tensor:
        return loss_of(model, batch) * (1.0 + int.from_bytes(os.urandom(4), "little"))

    with pytest.raises(Impure, match="The cause is an operation that is not deterministic: two more tries from one"):
        turns(join, unit)


class Moved(TensorDataset):
    """Samples that remember how often they were asked for."""

    asked = 0

    def __getitem__(self, index: int) -> Any:
        self.asked += 1
        x, y = super().__getitem__(index)
        return x + 0.01 * self.asked, y


@pytest.mark.parametrize("fetchers", [0, 1])
def test_a_data_set_with_a_state(join, fetchers: int) -> None:
    run = join(lanes=2)
    model = net()
    loader = DataLoader(Moved(*points(48).tensors), batch_size=12, num_workers=fetchers)
    model, optimizer, loader = run.prepare(model, optim.SGD(model.parameters(), lr=0.1), loader)
    with pytest.raises(Impure, match="the second time it gave something else: the batch, the loss, the gradient of"):
        for step in run.steps(loader):
            for batch in step:
                loss_of(model, batch).backward()
            optimizer.step()


def test_buffers_dropout_and_numbers_of_all_generators_are_pure(join, tried: Tried) -> None:
    class Noisy(nn.Module):
        averaged_buffers = ("mean",)

        def __init__(self) -> None:
            super().__init__()
            self.net, self.norm, self.drop = net(), nn.BatchNorm1d(5), nn.Dropout(0.3)
            self.register_buffer("mean", torch.zeros(5))

        def forward(self, x: Tensor) -> Tensor:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
            return self.net(self.drop(self.norm(x)) + random.random() * self.mean)

    run = join(lanes=2, verify=1.0)
    model = Noisy()
    model, optimizer, loader = run.prepare(model, optim.Adam(model.parameters()), loader_of(points()))
    for epoch in run.epochs(2):
        for step in run.steps(loader):
            for batch in step:
                loss_of(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert epoch >= 0 and run.evaluate(lambda x, y: {"m": model(x).mean()}, DataLoader(points(12), 4))
    assert len(tried.units) == 2 * len(loader)


def test_a_write_past_the_optimizer_in_a_unit(join) -> None:
    def unit(model: nn.Module, batch: Any, _: int) -> Tensor:
        loss = loss_of(model, batch)
        model[2].weight.data.clamp_(-0.05, 0.05)
        return loss

    with pytest.raises(Impure) as told:
        turns(join, unit)
    assert str(told.value) == str(Impure.written(0, f"in unit (step 0, lane {_lane()})", "2.weight"))


def test_a_write_past_the_optimizer_between_steps(join) -> None:
    def after(model: nn.Module) -> None:
        model[0].bias.data.add_(0.1)

    with pytest.raises(Impure, match=r"Worker 0 found parameters changed before step 1 by the script: 0\.bias\."):
        turns(join, lambda model, batch, _: loss_of(model, batch), after=after)


def test_a_write_past_the_optimizer_after_the_units(join) -> None:
    run = join(lanes=2)
    model = net()
    model, optimizer, loader = run.prepare(model, optim.SGD(model.parameters(), lr=0.1), loader_of(points()))
    with pytest.raises(Impure, match=r"parameters changed after the units of step 0 by the script: 0\.weight, 0\.bias"):
        for step in run.steps(loader):
            for batch in step:
                loss_of(model, batch).backward()
            for parameter in model.parameters():
                parameter.data.mul_(0.9)
            optimizer.step()


def test_what_cannot_be_done_twice_is_said_once_and_is_no_alarm(join, tmp_path: Path, tried: Tried) -> None:
    def unit(model: nn.Module, batch: Any, count: int) -> Tensor:
        (tmp_path / str(count)).mkdir()
        return loss_of(model, batch)

    with pytest.warns(UserWarning, match="a second time") as told:
        assert turns(join, unit) == 60
    assert [str(one.message) for one in told] == [
        f"Unit (step 0, lane {_lane()}) could not be computed a second time: the loop over the units calls os.mkdir, "
        "which cannot be done a second time unseen. Units of worker 0 are not verified any more."
    ]
    assert len(tried.units) == 1 and len(list(tmp_path.iterdir())) == 60


def test_where_no_process_can_be_had_that_is_said(join, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(os, "fork", refuse)
    with pytest.warns(UserWarning, match=r"no process could be forked \(Cannot allocate memory\)\. Unit"):
        assert turns(join, lambda model, batch, _: loss_of(model, batch)) == 60


@pytest.mark.parametrize("leave", ["raise", "break"])
def test_a_loop_that_only_the_copy_leaves(join, leave: str) -> None:
    parent = os.getpid()

    def units(step: Any, model: nn.Module) -> Iterator[None]:
        for batch in step:
            if os.getpid() != parent:
                if leave == "break":
                    break
                raise RuntimeError("only here")
            loss_of(model, batch).backward()
            yield

    run = join(lanes=2)
    model = net()
    model, optimizer, loader = run.prepare(model, optim.SGD(model.parameters(), lr=0.1), loader_of(points()))

    def loop() -> None:
        for step in run.steps(loader):
            for _ in units(step, model):
                pass
            optimizer.step()
            optimizer.zero_grad()

    with pytest.warns(UserWarning, match="a second time: the loop over the units was left, by an exception or other"):
        loop()
    assert os.getpid() == parent and run.step == len(loader)


def test_where_a_fork_is_not_safe_the_unit_is_computed_twice_here_and_that_is_said(
    join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(twice, "_may_fork", lambda: False)
    with pytest.warns(UserWarning, match="cannot be forked") as told:
        assert turns(join, lambda model, batch, _: loss_of(model, batch), verify=1.0) == 60 + len(FIRST)
    assert [str(one.message) for one in told] == [
        "torch has 1 threads in this process, or a device other than the CPU, so it cannot be forked. In steps 0, 1, "
        "3, 6, 10, 15 a unit is computed twice in this process, and the loop over the units goes through it twice; "
        "units of later steps are not verified."
    ]


def test_there_either_cause_is_told(join, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twice, "_may_fork", lambda: False)
    with (
        pytest.warns(UserWarning, match="cannot be forked"),
        pytest.raises(Impure, match="The cause is state that is kept between batches, or an operation that is not det"),
    ):
        turns(join, KEPT["a counter"]())


def test_the_default_verifies_later_units_only_while_that_is_cheap(join, monkeypatch: pytest.MonkeyPatch) -> None:
    run = join()
    model = net()
    model, _, loader = run.prepare(model, optim.SGD(model.parameters(), lr=0.1), loader_of(points()))
    run.steps(loader)
    one = run._training.turns.purity
    moment = one._began
    monkeypatch.setattr(purity.time, "monotonic", lambda: moment + 100.0)
    for spent, there in ((0.99, True), (1.01, False)):
        one._spent = spent
        assert one._affordable(500) is there and one._affordable(FIRST[-1])
    one._thrifty = False  # a share was asked for
    assert one._affordable(500)


def test_what_is_hashed_counts_as_well(join, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = 0

    def slow(tensor: Tensor) -> int:
        nonlocal hashed
        hashed += 1  # takes 100 s
        return digest(tensor)

    later = SimpleNamespace(
        monotonic=time.monotonic, perf_counter=lambda: time.perf_counter() + 100.0 * hashed,
        perf_counter_ns=lambda: time.perf_counter_ns() + 100_000_000_000 * hashed,
    )  # fmt: skip
    monkeypatch.setattr(purity, "time", later)
    monkeypatch.setattr(purity, "digest", slow)
    monkeypatch.setattr(twice, "digest", slow)
    turns(join, lambda model, batch, _: loss_of(model, batch))
    from holdfast.train.run import current

    one = current()._training.turns.purity
    tensors, looked = 4, len(FIRST)  # before a step, at its top, in the unit, of the unit, and after the units
    assert hashed == tensors * 5 * looked - tensors, "what was there before step 0 is known at its top"
    assert one._spent == pytest.approx(100.0 * hashed, abs=50.0)
    assert 0.0 < one._usual < 50.0, "a turn in which nothing is looked at"
    assert one._chosen(500, StepWork(500, (0,), (1,), 0, turn=True)) is None, "later steps are left alone"


def test_what_a_fork_makes_slower_counts_up_to_as_much_again(join) -> None:
    run = join()
    model = net()
    run.prepare(model, optim.SGD(model.parameters(), lr=0.1), loader_of(points()))
    one = run._training.turns.purity
    for lane, took, spent, counted in (
        (1, 9.0, 2.0, 0.0), (None, 3.0, 0.0, 0.0), (1, 5.0, 2.0, 0.0), (1, 6.5, 2.0, 1.5), (1, 90.0, 2.0, 2.0)
    ):  # fmt: skip
        one._lane, one._turn, one._spent = lane, (50.0, 50.0 + took, 7.0), 7.0 + spent
        one._count_turn()
        assert one._spent == 7.0 + spent + counted


def test_every_bit_of_every_kind_of_tensor_counts() -> None:
    for tensor in (
        torch.zeros(3, 4), torch.zeros(3, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.bool),
        torch.tensor(0, dtype=torch.int64), torch.zeros(2, 2, dtype=torch.complex64), torch.zeros(4, 3).t(),
    ):  # fmt: skip
        other = tensor.clone()
        assert digest(tensor) == digest(other)
        other.view(-1)[-1:].fill_(1) if other.is_contiguous() else other[-1, -1].fill_(1)
        assert digest(tensor) != digest(other), tensor
    assert digest(torch.tensor([0.0])) != digest(torch.tensor([-0.0]))
    assert digest(torch.empty(0)) == 0
    assert differing({"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4}) == ["b", "c"]
