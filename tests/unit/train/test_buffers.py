"""Buffers: every unit starts from its step's, and what lanes leave in them is merged in lane order."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.utils.data import DataLoader

from holdfast.errors import NotExact
from tests.unit.train.problems import assert_close, batches_of, loader_of, loss_of, plain, points, train, turn


def normed() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))


def run_over(
    run: Any, model: nn.Module, epochs: int = 1, batch: int = 12, ids: dict[int, list[int]] | None = None
) -> list[dict[str, Tensor]]:
    """Train; return the state after each step, and note the samples of the first one's lanes in `ids`."""
    optimizer = optim.SGD(model.parameters(), lr=0.05)
    model, optimizer, loader = run.prepare(model, optimizer, loader_of(points(), batch))
    seen: list[dict[str, Tensor]] = []
    for _ in run.epochs(epochs):
        for step in run.steps(loader):
            seen.append(copy.deepcopy(model.state_dict()))
            for data in step:
                _, lane, samples = run.unit
                if step.number == 0 and ids is not None:
                    ids[lane] = samples
                loss_of(model, data).backward()
            optimizer.step()
            optimizer.zero_grad()
    return [*seen, copy.deepcopy(model.state_dict())]


def test_statistics_are_the_lanes_means(join) -> None:
    """One step by hand: each lane's own BatchNorm statistics, then their weighted mean."""
    run = join(lanes=3)
    ids: dict[int, list[int]] = {}
    before, after = run_over(run, normed(), batch=40, ids=ids)[:2]
    means, counts = [], [len(samples) for samples in ids.values()]
    assert counts == [14, 13, 13]
    for samples in ids.values():
        lane = normed()
        lane.load_state_dict(before)
        lane(torch.stack([points()[i][0] for i in samples]))
        means.append((lane[1].running_mean, lane[1].running_var))
    for index, name in enumerate(("1.running_mean", "1.running_var")):
        expected = sum(pair[index] * count for pair, count in zip(means, counts, strict=True)) / sum(counts)
        torch.testing.assert_close(after[name], expected)
    assert after["1.num_batches_tracked"] == 1


def test_with_one_lane_they_are_plain_torchs(join) -> None:
    model, expected = normed(), normed()
    run_over(join(lanes=1), model, epochs=2)
    assert_close(model, plain(expected, optim.SGD(expected.parameters(), lr=0.05), batches_of(points())))


def test_dropout_and_statistics_are_the_same_in_every_run(join) -> None:
    def weights() -> str:
        run = join(lanes=4)
        with torch.random.fork_rng():
            torch.manual_seed(1)
            model = nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 2))
        run_over(run, model, epochs=2)
        sha = run.weights_sha256()
        run.close()
        return sha

    first = weights()
    torch.rand(17)
    assert weights() == first


class Counting(nn.Module):
    """Changes its buffers in the ways that modules do."""

    averaged_buffers = ("mean", "hidden")

    def __init__(self, **which: bool) -> None:
        super().__init__()
        self.which = which
        self.linear = nn.Linear(5, 2)
        with torch.no_grad():
            self.linear.weight.fill_(0.1)
            self.linear.bias.zero_()
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(5))
        self.register_buffer("hidden", torch.zeros(5), persistent=False)
        self.register_buffer("empty", torch.zeros(0))
        self.register_buffer("none", None)
        self.register_buffer("mask", torch.ones(300, 300))  # large: looked at by its count of writes only

    def forward(self, x: Tensor) -> Tensor:
        if self.which.get("count"):
            self.seen += len(x)
        if self.which.get("replace"):
            self.mean = 0.5 * self.mean + 0.5 * x.mean(0)
        if self.which.get("hide"):
            self.hidden.mul_(0.5).add_(x.mean(0), alpha=0.5)
        if self.which.get("reshape"):
            self.mean = torch.zeros(6)
        return self.linear(x)


def test_counts_that_differ_between_lanes_are_refused(join) -> None:
    text = r"buffer seen \(torch.int64, of a Counting\) ended with different values in different lanes"
    with pytest.raises(NotExact, match=text):
        run_over(join(lanes=5), Counting(count=True))


def test_counts_that_agree_are_kept(join) -> None:
    model = Counting(count=True)
    run_over(join(lanes=4), model)
    assert model.seen == 4 * 3, "each lane counts its own three samples of a step"


@pytest.mark.parametrize("name", ["replace", "hide"])
def test_replaced_and_hidden_buffers_are_merged(join, name: str) -> None:
    model, other = Counting(**{name: True}), Counting(**{name: True})
    run = join(lanes=4)
    run_over(run, model)
    run.close()
    run_over(join(lanes=1), other)
    key = "mean" if name == "replace" else "hidden"
    mine, theirs = getattr(model, key), getattr(other, key)
    torch.testing.assert_close(mine, theirs)
    assert mine.abs().sum() > 0
    assert ("hidden" in model.state_dict()) is False


def test_a_buffer_that_changes_its_shape_is_refused(join) -> None:
    with pytest.raises(NotExact, match=r"buffer mean changed from \(\(5,\), torch.float32\) to \(\(6,\), torch"):
        run_over(join(), Counting(reshape=True))


def test_large_constant_masks_are_not_copied(join) -> None:
    run, model = join(lanes=4), Counting()
    copies = []
    model, optimizer, loader = run.prepare(model, optim.SGD(model.parameters(), lr=0.05), loader_of(points()))
    for step in run.steps(loader):
        turn(step, model, optimizer)
        buffers = run._training.bound.buffers
        index = buffers._names.index("mask")
        copies += [buffers._changed[lane * buffers._count + index] for lane in range(4)] + [buffers._newest[index]]
        assert not buffers._records[0][index].any(), "no lane has a copy of the mask"
    assert not any(copies)


def test_an_evaluation_in_training_mode_leaves_no_trace(join) -> None:
    """torch writes BatchNorm's statistics past its own count of writes."""
    run, model = join(lanes=2), normed()
    data = DataLoader(points(), batch_size=8)
    model, optimizer, loader = run.prepare(model, optim.SGD(model.parameters(), lr=0.05), loader_of(points()))
    train(run, model, optimizer, loader, epochs=1)
    before = copy.deepcopy(model.state_dict())
    first = run.evaluate(lambda x, y: {"loss": loss_of(model, (x, y))}, data)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert run.evaluate(lambda x, y: {"loss": loss_of(model, (x, y))}, data) == first


def test_the_model_run_between_two_loops_leaves_no_trace_in_units(join) -> None:
    def weights(peek: bool) -> str:
        run, model = join(lanes=2), normed()
        model, optimizer, loader = run.prepare(model, optim.SGD(model.parameters(), lr=0.05), loader_of(points()))
        for _ in run.epochs(2):
            for step in run.steps(loader):
                turn(step, model, optimizer)
            if peek and run.epoch == 0:
                model(torch.randn(9, 5))
        sha = run.weights_sha256()
        run.close()
        return sha

    assert weights(peek=True) == weights(peek=False)


class Queue(nn.Module):
    """Remembers the newest samples, as MoCo does with keys."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 2)
        self.register_buffer("queue", torch.zeros(6, 5))

    def forward(self, x: Tensor) -> Tensor:
        self.queue.copy_(torch.cat([x.detach(), self.queue])[:6])
        return self.linear(x)


def test_a_queue_is_refused_by_name(join) -> None:
    run, model = join(lanes=4), Queue()
    model, _optimizer, loader = run.prepare(model, optim.SGD(model.parameters(), lr=0.05), loader_of(points()))
    text = (
        r"buffer queue \(torch\.float32, of a Queue\) ended with different values in different lanes\. A forward pass "
        r"sees one lane's samples: write what comes of the whole batch in the turn, after the inner loop, to an object "
        r"that is kept \(run\.keep\); a statistic that may be averaged is named in the class: averaged_buffers = "
        r"\(\"queue\",\)\.$"
    )
    with pytest.raises(NotExact, match=text):
        for turn in run.steps(loader):
            for batch in turn:
                loss_of(model, batch).backward()


def test_buffers_that_all_lanes_leave_alike_are_no_matter(join) -> None:
    """The vectors of spectral normalisation follow from the weights alone."""
    run = join(lanes=4)
    with torch.random.fork_rng():
        model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(5, 2)))
    run_over(run, model)
    assert run.step == 4
