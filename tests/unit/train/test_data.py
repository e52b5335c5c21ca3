"""Training over loaders of every kind: the settings of the DataLoader keep their meaning."""

from __future__ import annotations

import random
from typing import Any

import numpy
import pytest
import torch
from torch import optim
from torch.utils.data import Dataset, Subset, SubsetRandomSampler

from tests.unit.train.problems import assert_close, batches_of, loader_of, net, plain, points, train


def weights(join, data: Any, lanes: int = 4, **options: Any) -> tuple[str, Any, int]:
    run, model = join(lanes=lanes), net()
    optimizer = optim.SGD(model.parameters(), lr=0.05)
    model, optimizer, loader = run.prepare(model, optimizer, loader_of(data, **options))
    train(run, model, optimizer, loader)
    result = run.weights_sha256(), model, run.step
    run.close()
    return result


@pytest.mark.parametrize(
    ("n", "options", "steps"),
    [
        (48, {"shuffle": False}, 4),
        (50, {}, 5),  # the last batch of two is smaller than the lanes
        (53, {}, 5),  # and one of five does not divide
        (53, {"drop_last": True}, 4),
        (48, {"batch": 13}, 4),
    ],
)
def test_as_in_plain_torch(join, n: int, options: dict[str, Any], steps: int) -> None:
    expected = net()
    plain(expected, optim.SGD(expected.parameters(), lr=0.05), batches_of(points(n), **options))
    _, model, done = weights(join, points(n), **options)
    assert done == 2 * steps
    assert_close(model, expected, rtol=1e-3, atol=1e-5)


def test_subsets_train_on_their_samples(join) -> None:
    chosen = list(range(0, 48, 2))
    whole = weights(join, Subset(points(), chosen))
    assert whole[2] == 4 and whole[0] != weights(join, points())[0]
    assert weights(join, points(), shuffle=False, sampler=SubsetRandomSampler(chosen))[0] == whole[0]


class Augmented(Dataset[Any]):
    """Noise from all three generators, drawn for each sample."""

    def __init__(self) -> None:
        self.data = points()

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        x, y = self.data[index]
        return x + random.random() + numpy.random.rand() + torch.rand(5), y


def test_augmentation_is_the_same_in_every_run_and_in_fetching_processes(join) -> None:
    first = weights(join, Augmented())[0]
    random.random(), numpy.random.rand(), torch.rand(3)
    assert weights(join, Augmented())[0] == first
    assert weights(join, Augmented(), num_workers=2)[0] == first
    assert weights(join, points())[0] != first


def test_collate_fn(join) -> None:
    def doubled(samples: list[Any]) -> Any:
        return torch.stack([2 * x for x, _ in samples]), torch.stack([y for _, y in samples])

    expected = net()
    plain(expected, optim.SGD(expected.parameters(), lr=0.05), batches_of(points(), collate_fn=doubled))
    assert_close(weights(join, points(), collate_fn=doubled)[1], expected, rtol=1e-3, atol=1e-5)
