"""A lane with one sample cannot train a BatchNorm: refused when the loader is handed over, with what to do."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn, optim
from torch.utils.data import Subset

from holdfast.errors import ConfigError
from tests.unit.train.problems import loader_of, points

NORMED = (nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))


def prepare(run: Any, samples: int, batch: int, *modules: nn.Module, **options: Any) -> None:
    model = nn.Sequential(*(modules or NORMED))
    loader = loader_of(Subset(points(), range(samples)), batch, **options)
    run.prepare(model, optim.SGD(model.parameters(), lr=0.1), loader)


def test_the_last_batch_is_named_with_what_to_do(join) -> None:
    text = (
        r"^batch_size = 12: the last batch has 5 samples for 4 lanes, so lane 1 gets one, and 1 is a BatchNorm1d, "
        r"which needs two to be trained \(set by the DataLoader\)\. Use drop_last=True, another batch size, or "
        r"hf\.join\(lanes=2\) \(this changes the result\)\.$"
    )
    run = join(lanes=4)
    with pytest.raises(ConfigError, match=text):
        prepare(run, 29, 12)
    prepare(run, 29, 12, drop_last=True)


def test_so_is_a_batch_that_is_too_small_for_its_lanes(join) -> None:
    text = r"a batch has 6 samples for 4 lanes, so lane 2 gets one.*Use a larger batch, or hf\.join\(lanes=3\) \(this"
    with pytest.raises(ConfigError, match=text):
        prepare(join(lanes=4), 48, 6)


def test_one_machine_could_not_do_it_either(join) -> None:
    text = r"the last batch has 1 samples for 1 lanes.*Use drop_last=True, another batch size\.$"
    with pytest.raises(ConfigError, match=text):
        prepare(join(lanes=1), 25, 12)


@pytest.mark.parametrize(
    "modules",
    [
        (nn.Linear(5, 8), nn.LayerNorm(8), nn.Linear(8, 2)),
        (nn.Conv1d(5, 8, 1), nn.BatchNorm1d(8), nn.Flatten()),
        (nn.Conv2d(1, 8, 1), nn.BatchNorm2d(8), nn.Flatten()),
        (nn.Linear(5, 8), nn.BatchNorm1d(8).eval(), nn.Linear(8, 2)),
    ],
)
def test_what_has_more_than_samples_to_normalise_over_is_not_refused(join, modules: tuple[nn.Module, ...]) -> None:
    prepare(join(lanes=4), 29, 12, *modules)


def test_two_samples_are_one_for_each_of_two_lanes(join) -> None:
    run = join(lanes=4)
    with pytest.raises(ConfigError, match=r"the last batch has 2 samples for 4 lanes, so lane 0 gets one"):
        prepare(run, 26, 12)
    run.close()
    prepare(join(lanes=1), 26, 12)
