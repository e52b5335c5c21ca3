"""The script drives: loops, ways out of them, and misuse that gets a sentence."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.utils.data import DataLoader

import holdfast as hf
from holdfast.dataplane.memory import board as cells
from holdfast.errors import ConfigError, NonFinite, NotExact, OutOfSync, UsageError
from tests.unit.train.problems import assert_close, batches_of, loader_of, loss_of, net, plain, points, train

STEPS = 4  # in an epoch


def prepared(run: hf.Run, **options: Any) -> tuple[nn.Module, optim.Optimizer, Any]:
    model = net()
    return run.prepare(model, optim.SGD(model.parameters(), lr=0.05), loader_of(points(), **options))


def unit(model: nn.Module, optimizer: optim.Optimizer, batch: Any) -> None:
    loss_of(model, batch).backward()
    optimizer.step()
    optimizer.zero_grad()


def expected(steps: int, *, batches: Any = None) -> nn.Module:
    model = net()
    taken = list(batches or batches_of(points(), epochs=9))[:steps]
    return plain(model, optim.SGD(model.parameters(), lr=0.05), taken)


# ---------------------------------------------------------------- loops


def test_loops_without_epochs_are_the_same_epochs(join) -> None:
    run = join(lanes=2)
    model, optimizer, loader = prepared(run)
    assert len(loader) == STEPS
    for _ in range(3):
        for batch in loader:
            unit(model, optimizer, batch)
    assert run.step == 3 * STEPS
    assert_close(model, expected(3 * STEPS), rtol=1e-3, atol=1e-5)


def test_several_loops_in_an_epoch_see_the_data_in_other_orders(join) -> None:
    run = join(lanes=2)
    _, optimizer, loader = prepared(run)
    seen: list[list[int]] = []
    for _ in run.epochs(2):
        for _ in range(2):
            ids: list[int] = []
            for x, _ in loader:
                ids += run.unit[2]
                x.requires_grad_().sum().backward()
                optimizer.step()
            seen.append(ids)
    assert all(sorted(ids) == list(range(48)) for ids in seen), "every sample once in every loop"
    assert len({tuple(ids) for ids in seen}) == 4


def test_epochs_may_be_asked_for_several_times(join) -> None:
    run = join(lanes=2)
    model, optimizer, loader = prepared(run)
    seen = []
    for number in (2, 1):
        for epoch in run.epochs(number):
            seen.append(epoch)
            for batch in loader:
                unit(model, optimizer, batch)
    assert (seen, run.step) == ([0, 1, 0], 3 * STEPS)
    assert_close(model, expected(3 * STEPS), rtol=1e-3, atol=1e-5)


def test_facts_of_the_run(join) -> None:
    run = join(lanes=2, seed=3)
    assert (run.step, run.epoch, run.unit, run.lead, run.workers, run.stopping) == (0, 0, None, True, 1, False)
    model, optimizer, loader = prepared(run)
    for epoch in run.epochs(2):
        for batch in loader:
            assert run.epoch == epoch and run.unit[0] == run.step and len(run.unit[2]) == len(batch[0]) == 6
            unit(model, optimizer, batch)
    result = run.result()
    assert (result["steps"], result["epochs"], result["samples"]) == (2 * STEPS, 2, 96)
    assert (result["lanes"], result["seed"], result["threads"]) == (2, 3, 1)


def test_the_loss_is_the_mean_over_the_whole_batch(join) -> None:
    run = join(lanes=5)
    model, optimizer, loader = prepared(run, batch=12)
    before = copy.deepcopy(model)
    for batch in loader:
        if run.step == 1:
            break
        unit(model, optimizer, batch)
    assert run.loss == pytest.approx(loss_of(before, next(batches_of(points()))).item(), rel=1e-5)


# ---------------------------------------------------------------- ways out


@pytest.mark.parametrize("lanes", [1, 4])
def test_break_at_the_top_commits_whole_steps_only(join, lanes: int) -> None:
    run = join(lanes=lanes)
    model, optimizer, loader = prepared(run)
    for batch in loader:
        if run.step == 2:
            break
        unit(model, optimizer, batch)
    assert run.step == 2 and run.unit is None
    assert_close(model, expected(2), rtol=1e-3, atol=1e-5)
    board = run._training.bound.board
    assert (board.cell(0, cells.R_UNIT_STEP), board.cell(0, cells.R_UNIT_LANE)) == (-1, -1)
    first, second = list(batches_of(points(), epochs=1)), list(batches_of(points(), epochs=2))[STEPS:]
    for batch in loader:  # the next loop begins anew
        unit(model, optimizer, batch)
    assert run.step == 2 + STEPS
    assert_close(model, expected(99, batches=first[:2] + second), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("around", [lambda loader: loader, enumerate, lambda loader: (batch for batch in loader)])
def test_break_at_the_bottom_commits_the_step_at_hand(join, lanes: int, around: Callable[[Any], Iterator[Any]]) -> None:
    run = join(lanes=lanes)
    model, optimizer, loader = prepared(run)
    for item in around(loader):
        step, lane, _ = run.unit
        unit(model, optimizer, item[1] if around is enumerate else item)
        if step == 2 and lane == lanes - 1:
            break
    assert run.step == 3
    assert_close(model, expected(3), rtol=1e-3, atol=1e-5)


def test_return_out_of_the_loop_commits_too(join) -> None:
    run = join(lanes=1)
    model, optimizer, loader = prepared(run)

    def one() -> int:
        for batch in loader:
            unit(model, optimizer, batch)
            return 1
        return 0

    assert (one(), run.step) == (1, 1)


@pytest.mark.parametrize("where", ["top", "bottom"])
def test_leaving_in_the_middle_of_a_step_is_out_of_sync(join, where: str) -> None:
    run = join(lanes=4)
    model, optimizer, loader = prepared(run)
    for count, batch in enumerate(loader):
        if where == "top" and count == 6:
            break
        unit(model, optimizer, batch)
        if where == "bottom" and count == 6:
            break
    lane = 2 if where == "top" else 3
    text = f"The loop over the loader was left in the middle of step 1: lane {lane} had no turn. Leave it at the top"
    with pytest.raises(OutOfSync, match=text):
        iter(loader)
    with pytest.raises(OutOfSync, match=text):
        run.weights_sha256()


def test_a_loop_left_badly_at_the_scripts_end_is_said_when_the_run_closes(join) -> None:
    run = join(lanes=4)
    model, optimizer, loader = prepared(run)
    for batch in loader:
        unit(model, optimizer, batch)
        break
    with pytest.raises(OutOfSync, match="in the middle of step 0"):
        run.close()


def test_what_goes_wrong_while_a_break_commits_is_said(join) -> None:
    """A single number of a large matrix, which a glance at a unit does not see."""
    run = join(lanes=1)
    model = nn.Sequential(nn.Linear(5, 20_000), nn.Linear(20_000, 2))
    model, optimizer, loader = run.prepare(model, optim.SGD(model.parameters(), lr=0.05), loader_of(points()))
    for batch in loader:
        loss_of(model, batch).backward()
        model[0].weight.grad[1, 1] = float("inf")
        samples = run.unit[2]
        optimizer.step()
        break
    text = (
        r"^Step 0: the gradient of 0.weight, 0.bias, 1.weight is not finite \(lanes \[0\]; loss .*\). The step was not "
        rf"committed. The samples are, of lane 0 {', '.join(map(str, samples))}. Lower the learning rate"
    )
    with pytest.raises(NonFinite, match=text):
        run.weights_sha256()


def test_the_samples_of_a_unit_are_known_to_the_member_of_another_mode(join) -> None:
    """A change of the mode in the middle of a loop gives the worker another member; the loop is the same."""
    run = join(lanes=2)
    model, optimizer, loader = prepared(run)
    for batch in loader:
        binding = run._training.bound
        if run.unit[:2] == (1, 0):
            binding.member = binding._new_member()
            binding.rebound()
            assert list(binding.member.samples_of(1, 0)) == run.unit[2]
            break
        loss_of(model, batch).backward()
        optimizer.step()


def test_an_iterator_kept_in_a_variable(join) -> None:
    run = join(lanes=1)
    model, optimizer, loader = prepared(run)
    for _ in range(2):
        batches = iter(loader)
        for _ in range(3):
            unit(model, optimizer, next(batches))
    run.weights_sha256()
    assert run.step == 6


def test_an_exception_keeps_the_unit_for_the_report(join) -> None:
    """An exception in the loop's body does not end the loop for the others, and the unit can be told."""
    run = join(lanes=2)
    model, optimizer, loader = prepared(run)
    with pytest.raises(ZeroDivisionError):
        for batch in loader:
            unit(model, optimizer, batch)
            assert run.unit is not None
            if run.unit[:2] == (1, 0):
                raise ZeroDivisionError
    assert run.unit is not None and run.unit[:2] == (1, 0)
    assert not run._training.bound.board.op_closed(0)


def test_an_exception_that_is_caught_ends_the_loop_at_the_next_one(join) -> None:
    run = join(lanes=1)
    model, optimizer, loader = prepared(run)
    try:
        for batch in loader:
            if run.step == 2:
                raise KeyError
            unit(model, optimizer, batch)
    except KeyError:
        pass
    for batch in loader:
        unit(model, optimizer, batch)
    assert run.step == 2 + STEPS


# ---------------------------------------------------------------- misuse


def test_an_evaluation_inside_of_the_loop_is_refused(join) -> None:
    run = join(lanes=1)
    model, optimizer, loader = prepared(run)
    with pytest.raises(UsageError, match=r"another one, or run\.evaluate, was begun; that ended the first at step 1"):
        for batch in loader:
            unit(model, optimizer, batch)
            run.evaluate(lambda x, y: {"loss": loss_of(model, (x, y))}, DataLoader(points(), batch_size=8))


def test_two_loops_at_a_time_are_refused(join) -> None:
    run, model = join(lanes=1), net()
    optimizer = optim.SGD(model.parameters(), lr=0.05)
    model, optimizer, one, two = run.prepare(model, optimizer, loader_of(points()), loader_of(points()))
    with pytest.raises(UsageError, match="Inside of a loop over a prepared loader another one"):
        next(zip(one, two, strict=True))


def test_step_twice(join) -> None:
    model, optimizer, loader = prepared(join())
    with pytest.raises(NotExact, match=r"optimizer.step\(\) was called twice in unit \(step 0, lane 0\)"):
        for batch in loader:
            unit(model, optimizer, batch)
            optimizer.step()


def test_no_step(join) -> None:
    model, _, loader = prepared(join())
    with pytest.raises(NotExact, match=r"unit \(step 0, lane 0\) called backward\(\) but not optimizer.step\(\)"):
        for batch in loader:
            loss_of(model, batch).backward()


def test_neither_backward_nor_step(join) -> None:
    _, _, loader = prepared(join())
    with pytest.raises(NotExact, match=r"unit \(step 0, lane 0\) called neither backward\(\) nor optimizer.step\(\)"):
        for _ in loader:
            pass


def test_step_outside_of_the_loop(join) -> None:
    _, optimizer, _ = prepared(join())
    with pytest.raises(NotExact, match=r"optimizer.step\(\) was called outside of a loop over the prepared loader"):
        optimizer.step()


def test_prepare_twice(join) -> None:
    run = join()
    prepared(run)
    with pytest.raises(UsageError, match=r"run.prepare\(...\) was called twice. Hand everything over in one call"):
        prepared(run)


def test_prepare_again_after_a_refusal(join) -> None:
    run, model = join(lanes=8), net()
    with pytest.raises(ConfigError, match="batch_size = 4: smaller than lanes = 8"):
        run.prepare(model, optim.SGD(model.parameters(), lr=0.05), loader_of(points(), 4))
    model, optimizer, loader = prepared(run)
    train(run, model, optimizer, loader, epochs=1)
    assert run.step == STEPS


def test_prepare_nothing_known(join) -> None:
    with pytest.raises(UsageError, match=r"run\.prepare got a int. It takes models, optimizers, DataLoaders and"):
        join().prepare(net(), 5)


def test_join_twice(join) -> None:
    join()
    with pytest.raises(UsageError, match=r"hf.join\(\) was called twice in one process. Keep the run it returned"):
        join()


@pytest.mark.parametrize(("option", "value", "least"), [("lanes", 0, 1), ("seed", -1, 0), ("threads", "2", 1)])
def test_join_with_what_cannot_be(join, option: str, value: Any, least: int) -> None:
    text = rf"{option} = {value}: must be a whole number of at least {least} \(set by hf.join\)"
    with pytest.raises(ConfigError, match=text):
        join(**{option: value})


def test_nothing_prepared(join) -> None:
    with pytest.raises(UsageError, match=r"Nothing is prepared yet. Call run.prepare\(model, optimizer, loader\)"):
        next(join().epochs(1))


def test_a_loss_that_is_not_finite(join) -> None:
    model, optimizer, loader = prepared(join(lanes=2))
    with pytest.raises(NonFinite, match=r"^Step 0, lane 0: the loss is nan. It was not applied. Its samples are \d+, "):
        for batch in loader:
            (loss_of(model, batch) * float("nan")).backward()
            optimizer.step()


def test_a_gradient_that_is_not_finite(join) -> None:
    run = join(lanes=2)
    model, optimizer, loader = prepared(run)
    before = run.weights_sha256()
    text = r"^Step 0, lane 0: the gradient of 0.bias is not finite, with a loss of \d.\d+. It was not applied."
    with pytest.raises(NonFinite, match=text):
        for batch in loader:
            loss_of(model, batch).backward()
            model[0].bias.grad[0] = float("inf")
            optimizer.step()
    assert run.step == 0 and run.weights_sha256() == before


def test_not_finite_passes_where_asked_for(join) -> None:
    run = join(lanes=2, finite=False)
    model, optimizer, loader = prepared(run)
    for batch in loader:
        (loss_of(model, batch) * float("nan")).backward()
        optimizer.step()
    assert run.step == STEPS and torch.isnan(model[0].weight).all()


def test_backward_is_put_back(join) -> None:
    original = torch.Tensor.backward
    run = join()
    prepared(run)
    assert torch.Tensor.backward is not original
    run.close()
    assert torch.Tensor.backward is original
