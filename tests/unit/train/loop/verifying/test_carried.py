"""What one phase of a turn leaves behind and a later one uses is found, and named; nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn, optim

import holdfast as hf
from holdfast.core import verify
from holdfast.errors import Impure
from holdfast.train.loop.verifying import twice
from holdfast.train.loop.verifying.carried import Carried, disturbed
from holdfast.train.loop.verifying.digests import digest
from holdfast.train.loop.verifying.forked import Report
from holdfast.train.run import current
from tests.unit.train.problems import loader_of, net, points

Loss = Callable[..., Tensor]


class Gan:
    """Two models with an optimizer each, and their losses."""

    def __init__(self, run: hf.Run, *, lanes: int) -> None:
        self.made, self.told = net(), nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 1))
        self.of_made = optim.Adam(self.made.parameters(), lr=0.01)
        self.of_told = optim.SGD(self.told.parameters(), lr=0.1)
        data = loader_of(points(8 * 3 * lanes), 3 * lanes)
        *_, self.loader = run.prepare(self.made, self.told, self.of_made, self.of_told, data)

    def loss_told(self, y: Tensor, z: Tensor) -> Tensor:
        return (nn.functional.softplus(-self.told(y)) + nn.functional.softplus(self.told(self.made(z).detach()))).mean()

    def loss_made(self, z: Tensor) -> Tensor:
        return nn.functional.softplus(-self.told(self.made(z))).mean()

    def step_told(self) -> None:
        self.of_told.step()
        self.of_told.zero_grad()

    def step_made(self) -> None:
        self.of_made.step()
        self.of_made.zero_grad()


@pytest.fixture
def gan(join) -> Callable[..., tuple[hf.Run, Gan]]:
    def made(lanes: int = 2, **said: Any) -> tuple[hf.Run, Gan]:
        run = join(lanes=lanes, **said)
        return run, Gan(run, lanes=lanes)

    return made


def noise(x: Tensor) -> Tensor:
    return torch.randn(len(x), 5)


# ---------------------------------------------------------------- what is found


def a_variable(run: hf.Run, gan: Gan) -> None:
    for step in run.steps(gan.loader):
        for x, y in step:
            z = noise(x)
            gan.loss_told(y, z).backward()
        gan.step_told()
        for _ in step:
            gan.loss_made(z).backward()
        gan.step_made()


def several(run: hf.Run, gan: Gan) -> None:
    """Of many variables two are used, and one of them under another name."""
    for step in run.steps(gan.loader):
        for x, y in step:
            z = noise(x)
            other, shift = 2.0 * z, torch.rand(())
            loss = gan.loss_told(y, z)
            loss.backward()
        gan.step_told()
        moved = shift
        for _ in step:
            gan.loss_made(other + moved).backward()
        gan.step_made()
        del loss


def a_list(run: hf.Run, gan: Gan) -> None:
    for step in run.steps(gan.loader):
        drawn = []
        for x, y in step:
            drawn.append((noise(x), 0))
            gan.loss_told(y, drawn[-1][0]).backward()
        gan.step_told()
        for _ in step:
            gan.loss_made(drawn[-1][0]).backward()
        gan.step_made()


def an_attribute(run: hf.Run, gan: Gan) -> None:
    """Set and used by two functions."""
    held = SimpleNamespace(z=None)

    def first(step: Any) -> None:
        for x, y in step:
            held.z = noise(x)
            gan.loss_told(y, held.z).backward()
        gan.step_told()

    def second(step: Any, held: Any) -> None:
        for _ in step:
            gan.loss_made(held.z).backward()
        gan.step_made()

    for step in run.steps(gan.loader):
        first(step)
        second(step, held)


def what_a_function_returns(run: hf.Run, gan: Gan) -> None:
    def first(step: Any) -> Tensor:
        for x, y in step:
            z = noise(x)
            gan.loss_told(y, z).backward()
        gan.step_told()
        return z.detach()

    def second(step: Any, given: Tensor) -> None:
        for _ in step:
            gan.loss_made(given).backward()
        gan.step_made()

    for step in run.steps(gan.loader):
        second(step, first(step))


def in_place(run: hf.Run, gan: Gan) -> None:
    state = {"z": torch.zeros(3, 5)}
    for step in run.steps(gan.loader):
        for _, y in step:
            gan.loss_told(y, state["z"].normal_()).backward()
        gan.step_told()
        for _ in step:
            gan.loss_made(state["z"]).backward()
        gan.step_made()


def an_array(run: hf.Run, gan: Gan) -> None:
    for step in run.steps(gan.loader):
        for x, y in step:
            z = numpy.random.standard_normal((len(x), 5)).astype(numpy.float32)
            gan.loss_told(y, torch.from_numpy(z)).backward()
        gan.step_told()
        for _ in step:
            gan.loss_made(torch.from_numpy(z)).backward()
        gan.step_made()


def an_index(run: hf.Run, gan: Gan) -> None:
    source = torch.randn(64, 5, generator=torch.Generator().manual_seed(1))
    for step in run.steps(gan.loader):
        for x, y in step:
            chosen = torch.randperm(64)[: len(x)]
            gan.loss_told(y, source[chosen]).backward()
        gan.step_told()
        for _ in step:
            gan.loss_made(source[chosen] * torch.arange(1.0, 4.0)[:, None]).backward()
        gan.step_made()


def the_batch(run: hf.Run, gan: Gan) -> None:
    for step in run.steps(gan.loader):
        for x, y in step:
            gan.loss_told(y, noise(x)).backward()
        gan.step_told()
        for _ in step:
            gan.loss_made(x).backward()
        gan.step_made()


def of_the_second_phase(run: hf.Run, gan: Gan) -> None:
    for step in run.steps(gan.loader):
        for x, y in step:
            gan.loss_told(y, noise(x)).backward()
        gan.step_told()
        for x, y in step:
            z = noise(x)
            gan.loss_told(y, z).backward()
        gan.step_told()
        for _ in step:
            gan.loss_made(z).backward()
        gan.step_made()


def a_probability(run: hf.Run, gan: Gan) -> None:
    """A function that takes nothing but shares, and one that fails where it gets something else than it expects."""
    for step in run.steps(gan.loader):
        for x, y in step:
            weight = torch.rand(len(x), 1)
            gan.loss_told(y, noise(x)).backward()
        gan.step_told()
        seen = weight.clone()
        for x, _ in step:
            scores = torch.sigmoid(gan.told(gan.made(noise(x))))
            assert torch.equal(seen, weight)
            nn.functional.binary_cross_entropy(scores, weight).backward()
        gan.step_made()


CARRIED: dict[Callable[[hf.Run, Gan], None], dict[str, int]] = {
    a_variable: {"z": 0},
    several: {"other": 0, "shift": 0, "moved": 0},
    a_list: {"drawn": 0},
    an_attribute: {"held.z": 0},
    what_a_function_returns: {"given": 0},
    in_place: {"state['z']": 0},
    an_array: {"z": 0},
    an_index: {"chosen": 0},
    the_batch: {"x": 0},
    of_the_second_phase: {"z": 1},
    a_probability: {"weight": 0},
}
GIVEN = "the loss, the gradient of 0.0.weight, the gradient of 0.0.bias, ..."


@pytest.mark.parametrize("loop", CARRIED, ids=lambda loop: loop.__name__)
def test_what_an_earlier_phase_has_left_behind_is_named(gan, loop) -> None:
    run, pair = gan()
    with pytest.raises(Impure) as told:
        loop(run, pair)
    lane = verify.chosen(0, 0, range(2), 0.01)
    phase = 2 if loop is of_the_second_phase else 1
    given = "an exception" if loop is a_probability else GIVEN
    names = CARRIED[loop]
    assert lane is not None and str(told.value) == str(
        Impure.carried(0, (0, lane), phase, given, names, sure=True)
    ), "in the first step"


def test_with_one_lane_it_is_found_in_the_second_step_that_is_looked_at(gan) -> None:
    run, pair = gan(lanes=1)
    with pytest.raises(Impure, match=r"unit \(step 1, lane 0\) twice in phase 1, .* The variable `z` was set in the"):
        a_variable(run, pair)


def test_what_is_said_of_it(gan) -> None:
    run, pair = gan()
    with pytest.raises(Impure) as told:
        a_variable(run, pair)
    lane = verify.chosen(0, 0, range(2), 0.01)
    assert str(told.value) == (
        f"Worker 0 computed unit (step 0, lane {lane}) twice in phase 1, the second time with other numbers in `z`, "
        f"and it gave something else: {GIVEN}. The step was not committed. The variable `z` was set in the loop over "
        "the units of phase 0 and used in phase 1: so a worker uses what the last unit before has left there, and in "
        "another crew that is another unit. Compute in each unit what it needs: draw it again (each unit has random "
        "numbers of its own), or recompute it from the batch; hf.join(verify=0) or --verify off does not look."
    )
    assert " Of the variables `a`, `b` one or more were set in the loop over the units of phase 0 or 1 and used" in str(
        Impure.carried(0, (0, 0), 2, "the loss", {"a": 0, "b": 1}, sure=False)
    )


def test_many_variables_are_named_together(gan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twice, "ALONE", 1)
    run, pair = gan()
    with pytest.raises(Impure, match="Of the variables `x`, `y`, `z` one or more were set in the loop over the units"):
        a_variable(run, pair)


@pytest.mark.parametrize(("loop", "names"), [(a_variable, "`x`, `y`, `z`"), (in_place, "`state['z']`, `y`")])
def test_where_a_fork_is_not_safe_it_is_found_too(gan, monkeypatch: pytest.MonkeyPatch, loop, names: str) -> None:
    monkeypatch.setattr(twice, "_may_fork", lambda: False)
    run, pair = gan()
    with (
        pytest.warns(UserWarning, match="cannot be forked"),
        pytest.raises(Impure, match=f"with other numbers in {names.replace('[', '.').replace(']', '.')}, and it gave"),
    ):
        loop(run, pair)


@pytest.mark.filterwarnings("ignore:torch has 1 threads")
def test_there_a_loop_that_fails_with_other_numbers_is_said(gan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twice, "_may_fork", lambda: False)
    run, pair = gan()
    with pytest.warns(UserWarning, match="a second time") as told, pytest.raises(AssertionError):
        a_probability(run, pair)
    assert str(told[-1].message) == (
        "The loop over the units was left when unit (step 0, lane 1) was computed a second time, with other numbers in "
        "y, weight, which units of an earlier phase had set."
    )


def test_nobody_looks_where_nobody_asks(gan) -> None:
    run, pair = gan(verify=0.0)
    a_variable(run, pair)
    assert run.step == 8


# ---------------------------------------------------------------- what is none of it


def drawn_anew(run: hf.Run, gan: Gan) -> None:
    """As people should write it; the variables have the same names, and so has the noise that is filled in place."""
    z = fixed = torch.zeros(3, 5)
    for step in run.steps(gan.loader):
        for x, y in step:
            z, label = noise(x), torch.full((len(x), 1), 0.9)
            (gan.loss_told(y, z) + (label * gan.told(y)).mean() + gan.loss_told(y, fixed.normal_())).backward()
        gan.step_told()
        for x, _ in step:
            z = noise(x)
            (gan.loss_made(z) + (label.fill_(0.9) * gan.told(gan.made(fixed.normal_()))).mean()).backward()
        gan.step_made()


def a_copy_of_gradients(run: hf.Run, gan: Gan) -> None:
    """Set between inner loops, so the same in every worker."""
    for step in run.steps(gan.loader):
        for x, y in step:
            gan.loss_told(y, noise(x)).backward()
        first, size = gan.told[0].weight.grad.clone(), sum(p.grad.square().sum() for p in gan.told.parameters())
        z = torch.randn(3, 5)
        gan.step_told()
        for x, _ in step:
            (gan.loss_made(noise(x)) * size + gan.loss_made(z) + (gan.told[0].weight * first).sum()).backward()
        gan.step_made()


def a_table_made_when_needed_first(run: hf.Run, gan: Gan) -> None:
    held = SimpleNamespace(table=None, tables={})

    def table(n: int, step: int) -> Tensor:
        if held.table is None:
            held.table = torch.linspace(0.0, 1.0, 5)
        return held.table + held.tables.setdefault(step, torch.ones(n, 5) * step)

    for step in run.steps(gan.loader):
        for x, y in step:
            gan.loss_told(y, noise(x) + table(len(x), step.number)).backward()
        gan.step_told()
        for x, _ in step:
            gan.loss_made(noise(x) + table(len(x), step.number) + held.table).backward()
        gan.step_made()


def parameters_by_another_name(run: hf.Run, gan: Gan) -> None:
    for step in run.steps(gan.loader):
        for x, y in step:
            weight, first = gan.made[0].weight.detach(), gan.made[2].weight[0]
            gan.loss_told(y, noise(x)).backward()
        gan.step_told()
        for x, _ in step:
            shift = weight.square().sum() + gan.made[0].weight.sum() + first.detach().sum()
            (gan.loss_made(noise(x)) + shift).backward()
        gan.step_made()


PURE = [drawn_anew, a_copy_of_gradients, a_table_made_when_needed_first, parameters_by_another_name]


@pytest.mark.parametrize("report", [Report([], 0, twice.LEFT), Report(["the loss"], 1)])
def test_what_does_not_come_again_is_not_taken_for_it(gan, monkeypatch: pytest.MonkeyPatch, report: Report) -> None:
    copied, once = twice.Twice._copied, [report]

    def first_other(one: twice.Twice, seconds: float, first: Any, give: Any, others: Any) -> Any:
        found = yield from copied(one, seconds, first, give, others)
        return once.pop() if once and others else found

    monkeypatch.setattr(twice.Twice, "_copied", first_other)
    if report.differs:
        with pytest.raises(Impure, match="The cause is state that is kept between batches, or an operation that is"):
            drawn_anew(*gan())
    else:
        drawn_anew(*gan())
    assert not once


@pytest.mark.parametrize("forks", [True, False])
@pytest.mark.parametrize("loop", PURE)
def test_no_false_alarm(gan, monkeypatch: pytest.MonkeyPatch, loop, forks: bool) -> None:
    if not forks:
        monkeypatch.setattr(twice, "_may_fork", lambda: False)
        with pytest.warns(UserWarning, match="cannot be forked"):
            loop(*gan())
    else:
        loop(*gan())
    run = current()
    assert run is not None and run.step == 8


def test_looking_changes_nothing(gan, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = set()
    for share, forks in ((0.0, True), (1.0, True), (1.0, False)):
        monkeypatch.setattr(twice, "_may_fork", lambda forks=forks: forks)
        run, pair = gan(verify=share, seed=1)
        if forks:
            drawn_anew(run, pair)
        else:
            with pytest.warns(UserWarning, match="cannot be forked"):
                drawn_anew(run, pair)
        weights.add(run.weights_sha256())
        run.close()
    assert len(weights) == 1


# ---------------------------------------------------------------- what is disturbed


def test_other_numbers_and_then_the_same_memory_again() -> None:
    data = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    graph = (data[:3].clone().requires_grad_() * 2.0)[1:]
    things = {
        "view": data[2:4], "index": torch.tensor([3, 0, 2]), "flags": torch.tensor([True, False, True]),
        "number": torch.tensor(0.5), "graph": graph, "half": torch.rand(3).bfloat16(), "turned": torch.rand(3, 4).t(),
        "array": numpy.arange(4.0), "whole": numpy.array([2, 0, 1]), "none": torch.empty(0),
    }  # fmt: skip
    before = {name: (_address(thing), _clone(thing)) for name, thing in things.items()}
    rows = data.clone()
    with disturbed([*things.values(), things["index"]]):
        for name, thing in things.items():
            assert name == "none" or not _same(thing, before[name][1]), name
            assert thing.shape == before[name][1].shape and thing.dtype == before[name][1].dtype, name
        assert torch.equal(data, rows), "memory that others have too is not written to"
        assert sorted(things["index"].tolist()) == [0, 2, 3] and sorted(things["whole"].tolist()) == [0, 1, 2]
        assert 0.0 < things["number"] < 0.5 and graph.requires_grad
    for name, thing in things.items():
        assert _same(thing, before[name][1]), name
        assert _address(thing) == before[name][0]
    graph.sum().backward()


def test_what_torch_cannot_compute_with_is_left() -> None:
    eighths = torch.rand(4).to(torch.float8_e4m3fn)
    before = digest(eighths)
    with disturbed([eighths]):
        assert digest(eighths) == before
    assert digest(eighths) == before


def test_objects_of_many_kinds_are_walked_past() -> None:
    class Slots:
        __slots__ = ("z",)

    carried = Carried(list)
    carried.begin_turn(look=True)
    for turn in range(2):
        carried.begin_units(0)
        kept = hf, Slots(), torch.eye(2).to_sparse(), torch.empty(2, device="meta"), numpy.zeros(2, object)
        with torch.inference_mode():
            inferred = torch.rand(3)
        z = torch.rand(3)
        carried.end_unit()
        carried.end_units()
        assert kept and z.shape == inferred.shape and turn < 2
    carried.begin_units(1)
    assert carried.found().phases == {"z": 0, "inferred": 0}


def _address(thing: Any) -> int:
    return thing.data_ptr() if isinstance(thing, Tensor) else thing.ctypes.data


def _clone(thing: Any) -> Any:
    return thing.detach().clone() if isinstance(thing, Tensor) else thing.copy()


def _same(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, Tensor) else bool(numpy.array_equal(one, other))
