"""The script drives: plain loops, ways out of them, and misuse that gets a sentence. By steps: `loop/test_steps`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.utils.data import DataLoader

import holdfast as hf
from holdfast.dataplane.memory import board as cells
from holdfast.errors import NonFinite, NotExact, UsageError
from tests.unit.train.problems import (
    assert_close,
    batches_of,
    loader_of,
    loss_of,
    net,
    plain,
    points,
    train_plain,
    turn,
)

STEPS = 4  # in an epoch


def prepared(run: hf.Run, **options: Any) -> tuple[nn.Module, optim.Optimizer, Any]:
    model = net()
    return run.prepare(model, optim.SGD(model.parameters(), lr=0.05), loader_of(points(), **options))


def each(model: nn.Module, optimizer: optim.Optimizer, batch: Any) -> None:
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
            each(model, optimizer, batch)
    assert run.step == 3 * STEPS
    assert_close(model, expected(3 * STEPS))


def test_a_loop_turns_once_a_step_with_the_whole_batch(join) -> None:
    run = join(lanes=4)
    model, optimizer, loader = prepared(run, batch=13)
    whole = list(batches_of(points(), batch=13, epochs=1))
    turns = 0
    for turns, (batch, theirs) in enumerate(zip(loader, whole, strict=True), 1):
        assert all(map(torch.equal, batch, theirs))
        each(model, optimizer, batch)
        assert run.step == turns
    assert turns == len(loader) == STEPS


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
                each(model, optimizer, batch)
    assert (seen, run.step) == ([0, 1, 0], 3 * STEPS)
    assert_close(model, expected(3 * STEPS), rtol=1e-3, atol=1e-5)


def test_facts_of_the_run(join) -> None:
    run = join(lanes=2, seed=3)
    assert (run.step, run.epoch, run.unit, run.lead, run.workers, run.stopping) == (0, 0, None, True, 1, False)
    model, optimizer, loader = prepared(run)
    for epoch in run.epochs(2):
        for batch in loader:
            assert run.epoch == epoch and run.unit[:2] == (run.step, 0) and len(run.unit[2]) == len(batch[0]) == 12
            each(model, optimizer, batch)
            assert run.unit is None
    result = run.result()
    assert (result["steps"], result["epochs"], result["samples"]) == (2 * STEPS, 2, 96)
    assert (result["lanes"], result["seed"], result["threads"]) == (2, 3, 1)
    assert (result["units"], result["samples_left_out"]) == ("worker", 0)


def test_which_of_the_two_loops_a_run_has_made_is_told(join) -> None:
    run = join(lanes=2)
    model, optimizer, loader = prepared(run)
    for step in run.steps(loader):
        turn(step, model, optimizer)
    assert run.result()["units"] == "lane"
    for batch in loader:
        each(model, optimizer, batch)
    assert run.result()["units"] == "lane and worker"


def test_the_loss_is_that_of_the_whole_batch(join) -> None:
    run = join(lanes=5)
    model, optimizer, loader = prepared(run, batch=12)
    for batch in loader:
        before = loss_of(model, batch).item()
        each(model, optimizer, batch)
        assert run.loss == before


# ---------------------------------------------------------------- ways out


def test_break_at_the_top(join) -> None:
    run = join(lanes=4)
    model, optimizer, loader = prepared(run)
    for batch in loader:
        if run.step == 2:
            break
        each(model, optimizer, batch)
    assert run.step == 2
    assert_close(model, expected(2))
    first, second = list(batches_of(points(), epochs=1)), list(batches_of(points(), epochs=2))[STEPS:]
    for batch in loader:  # the next loop begins anew
        each(model, optimizer, batch)
    assert run.step == 2 + STEPS
    assert_close(model, expected(99, batches=first[:2] + second))


@pytest.mark.parametrize("around", [lambda loader: loader, enumerate, lambda loader: (batch for batch in loader)])
def test_break_at_the_bottom(join, around: Callable[[Any], Iterator[Any]]) -> None:
    run = join(lanes=4)
    model, optimizer, loader = prepared(run)
    for item in around(loader):
        each(model, optimizer, item[1] if around is enumerate else item)
        if run.step == 3:
            break
    assert run.step == 3 and run.unit is None
    board = run._training.bound.board
    assert (board.cell(0, cells.R_UNIT_STEP), board.cell(0, cells.R_UNIT_LANE)) == (-1, -1)
    assert_close(model, expected(3))


def test_break_before_the_step_which_may_follow(join) -> None:
    run = join(lanes=4)
    model, optimizer, loader = prepared(run)
    for batch in loader:
        loss_of(model, batch).backward()
        if run.step == 1:
            break
        optimizer.step()
        optimizer.zero_grad()
    assert run.step == 1
    optimizer.step()
    assert run.step == 2 and run.unit is None
    assert_close(model, expected(2))


def test_return_out_of_the_loop(join) -> None:
    run = join(lanes=1)
    model, optimizer, loader = prepared(run)

    def one() -> int:
        for batch in loader:
            each(model, optimizer, batch)
            return 1
        return 0

    assert (one(), run.step) == (1, 1)


def a_return(loader: Any) -> Any:
    for batch in loader:
        return batch
    return None


@pytest.mark.parametrize("look", [a_return, lambda loader: next(iter(loader))])
def test_a_glance_at_one_batch_leaves_no_trace(join, look: Callable[[Any], Any]) -> None:
    run = join(lanes=2)
    model, optimizer, loader = prepared(run)
    assert len(look(loader)[0]) == 12
    assert run.step == 0
    train_plain(run, model, optimizer, loader)
    assert (run.step, run.result()["samples"]) == (2 * STEPS, 96)
    assert_close(model, expected(2 * STEPS))


def test_a_loop_that_only_looks_makes_no_steps(join) -> None:
    run = join(lanes=2)
    _, _, loader = prepared(run)
    before, seen = run.weights_sha256(), []
    for _ in loader:
        seen += run.unit[2]
    assert run.step == 0 and run.weights_sha256() == before
    assert sorted(seen) == list(range(48))


def test_an_iterator_kept_in_a_variable(join) -> None:
    run = join(lanes=1)
    model, optimizer, loader = prepared(run)
    for _ in range(2):
        batches = iter(loader)
        for _ in range(3):
            each(model, optimizer, next(batches))
    run.weights_sha256()
    assert run.step == 6
    taken = list(batches_of(points(), epochs=2))
    assert_close(model, expected(99, batches=taken[:3] + taken[STEPS : STEPS + 3]))


def test_an_exception_keeps_the_unit_for_the_report(join) -> None:
    """An exception in the loop's body does not end the loop for the others, and the unit can be told."""
    run = join(lanes=2)
    model, optimizer, loader = prepared(run)
    seen: list[int] = []
    with pytest.raises(ZeroDivisionError):
        for batch in loader:
            loss_of(model, batch).backward()
            assert run.unit is not None
            if run.step == 1:
                seen = run.unit[2]
                raise ZeroDivisionError
            optimizer.step()
            optimizer.zero_grad()
    assert run.unit == (1, 0, seen) and len(seen) == 12
    assert not run._training.bound.board.op_closed(0)


def test_an_exception_that_is_caught_ends_the_loop_at_the_next_one(join) -> None:
    run = join(lanes=1)
    model, optimizer, loader = prepared(run)
    try:
        for batch in loader:
            if run.step == 2:
                raise KeyError
            each(model, optimizer, batch)
    except KeyError:
        pass
    for batch in loader:
        each(model, optimizer, batch)
    assert run.step == 2 + STEPS


def test_the_samples_of_a_unit_are_known_to_the_member_of_another_mode(join) -> None:
    """A change of the mode in the middle of a loop gives the worker another member; the loop is the same."""
    run = join(lanes=2)
    model, optimizer, loader = prepared(run)
    for step in run.steps(loader):
        for batch in step:
            binding = run._training.bound
            if run.unit[:2] == (1, 0):
                binding.member = binding._new_member()
                binding.rebound()
                assert list(binding.member.samples_of(1, 0)) == run.unit[2]
                return
            loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    pytest.fail("step 1 was never reached")


# ---------------------------------------------------------------- between the steps


def test_an_evaluation_may_stand_between_two_turns(join) -> None:
    run = join(lanes=2)
    model, optimizer, loader = prepared(run)
    scores = []
    for count, batch in enumerate(loader):
        each(model, optimizer, batch)
        scores.append(run.evaluate(lambda x, y: {"loss": loss_of(model, (x, y))}, DataLoader(points(), batch_size=8)))
        assert run.agree(float(count)) == count
        assert len(scores) < 2 or scores[-1]["loss"] < scores[-2]["loss"]
    assert run.step == STEPS
    assert_close(model, expected(STEPS))


@pytest.mark.parametrize("name", ["evaluate", "agree"])
def test_an_evaluation_in_a_turn_is_refused(join, name: str) -> None:
    run = join(lanes=2)
    model, optimizer, loader = prepared(run)
    asked = {
        "evaluate": lambda: run.evaluate(lambda x, y: {"loss": 0.0}, DataLoader(points(), batch_size=8)),
        "agree": lambda: run.agree(1.0),
    }
    text = (
        r"run\.evaluate or run\.agree was called in a turn of the loop over the loader, before the optimizer\.step\(\) "
        r"of step 1\. Call it after that\."
    )
    with pytest.raises(UsageError, match=text):
        for batch in loader:
            if run.step == 1:
                asked[name]()
            each(model, optimizer, batch)


def test_a_look_at_the_weights_may_stand_anywhere(join) -> None:
    run = join(lanes=2)
    model, optimizer, loader = prepared(run)
    seen = []
    for batch in loader:
        seen.append(run.weights_sha256())
        loss_of(model, batch).backward()
        seen.append(run.weights_sha256())
        optimizer.step()
        optimizer.zero_grad()
        seen.append(run.weights_sha256())
    assert run.step == STEPS and len(set(seen)) == STEPS + 1


@pytest.mark.parametrize("every", [2, 4])
def test_turns_without_a_step_add_to_the_same_gradient(join, every: int) -> None:
    def accumulate(model: nn.Module, optimizer: optim.Optimizer, batches: Any) -> nn.Module:
        for count, batch in enumerate(batches, 1):
            (loss_of(model, batch) / every).backward()
            if count % every == 0:
                optimizer.step()
                optimizer.zero_grad()
        return model

    run = join(lanes=2)
    model, optimizer, loader = prepared(run)
    accumulate(model, optimizer, loader)
    assert (run.step, run.result()["samples"]) == (STEPS // every, 48)
    other = net()
    assert_close(model, accumulate(other, optim.SGD(other.parameters(), lr=0.05), batches_of(points(), epochs=1)))


# ---------------------------------------------------------------- misuse


def test_two_loops_at_a_time_are_refused(join) -> None:
    run, model = join(lanes=1), net()
    optimizer = optim.SGD(model.parameters(), lr=0.05)
    model, optimizer, one, two = run.prepare(model, optimizer, loader_of(points()), loader_of(points()))
    with pytest.raises(UsageError, match="Inside of a loop over a prepared loader another one"):
        for batch in one:
            each(model, optimizer, batch)
            for other in two:
                each(model, optimizer, other)


@pytest.mark.parametrize("by_hand", [False, True])
def test_two_loaders_go_along(join, by_hand: bool) -> None:
    """A turn ends when the first loader is asked again, and each sample of both is seen once."""
    run, model = join(lanes=2), net()
    one, two = loader_of(points()), loader_of(points(36))
    model, optimizer, one, two = run.prepare(model, optim.SGD(model.parameters(), lr=0.05), one, two)

    def pairs() -> Iterator[Any]:
        first, second = iter(one), iter(two)
        while True:
            try:
                yield next(first), next(second)
            except StopIteration:
                return

    seen: list[list[float]] = [[], []]
    for _ in run.epochs(1):
        for several in pairs() if by_hand else zip(one, two, strict=False):
            for batch, found in zip(several, seen, strict=True):
                found += batch[0][:, 0].tolist()
            (loss_of(model, several[0]) + loss_of(model, several[1])).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert run.step == 3, "the shorter one ends it"
    assert len(set(seen[0])) == 36 and sorted(seen[1]) == sorted(points(36).tensors[0][:, 0].tolist())
    assert seen[0] != seen[1]


def test_step_twice(join) -> None:
    model, optimizer, loader = prepared(join())
    text = r"optimizer.step\(\) was called twice for one batch, at step 1\. Call it once a batch, or once for several"
    with pytest.raises(NotExact, match=text):
        for batch in loader:
            each(model, optimizer, batch)
            optimizer.step()


def test_step_outside_of_the_loop(join) -> None:
    _, optimizer, _ = prepared(join())
    with pytest.raises(NotExact, match=r"optimizer.step\(\) was called outside of a loop over the prepared loader"):
        optimizer.step()


# ---------------------------------------------------------------- what is not finite


@pytest.mark.parametrize("bad", ["nan", "inf"])
def test_a_loss_that_is_not_finite(join, bad: str) -> None:
    run = join(lanes=2)
    model, optimizer, loader = prepared(run)
    before = run.weights_sha256()
    text = rf"^Step 0, lane 0: the loss is {bad}. It was not applied. Its samples are \d+, "
    with pytest.raises(NonFinite, match=text):
        for batch in loader:
            (loss_of(model, batch) * float(bad)).backward()
            optimizer.step()
    assert run.step == 0 and run.weights_sha256() == before


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


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_in_a_lane_what_is_not_finite_is_refused_too(join, what: str) -> None:
    run = join(lanes=2)
    model, optimizer, loader = prepared(run)
    text = r"the loss is nan" if what == "loss" else r"the gradient of 0.bias is not finite, with a loss of \d.\d+"
    with pytest.raises(NonFinite, match=rf"^Step 0, lane 0: {text}. It was not applied. Its samples are \d+, "):
        for step in run.steps(loader):
            for batch in step:
                (loss_of(model, batch) * (float("nan") if what == "loss" else 1.0)).backward()
                model[0].bias.grad[0] = float("inf")
            optimizer.step()
    assert run.step == 0 and all(map(torch.equal, model.parameters(), net().parameters()))


def test_a_single_number_that_a_glance_at_a_unit_does_not_see_is_refused_before_the_step(join) -> None:
    run = join(lanes=1)
    model = nn.Sequential(nn.Linear(5, 20_000), nn.Linear(20_000, 2))
    model, optimizer, loader = run.prepare(model, optim.SGD(model.parameters(), lr=0.05), loader_of(points()))
    samples: list[int] = []
    with pytest.raises(NonFinite) as caught:
        for step in run.steps(loader):
            for batch in step:
                samples = run.unit[2]
                loss_of(model, batch).backward()
                model[0].weight.grad[1, 1] = float("inf")
            optimizer.step()
    text = (
        r"^Step 0: the gradient of 0.weight, 0.bias, 1.weight is not finite \(lanes \[0\]; loss .*\). The step was not "
        rf"committed. The samples are, of lane 0 {', '.join(map(str, samples))}. Lower the learning rate"
    )
    caught.match(text)
