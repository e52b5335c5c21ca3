"""The batch of a unit from the user's DataLoader: what is kept, and what is refused."""

from __future__ import annotations

import multiprocessing.process
import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from holdfast.data.batches import Batches, UnitRequest
from holdfast.data.randomness import data_key
from holdfast.errors import ConfigError, NotExact


@pytest.fixture(autouse=True)
def _sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fetching processes that are killed leave the directory of their sockets: as in a run, there is one for all."""
    with tempfile.TemporaryDirectory(prefix="f-") as path:
        monkeypatch.setitem(multiprocessing.process.current_process()._config, "tempdir", path)  # type: ignore[attr-defined]
        yield



class Numbers(Dataset[Any]):
    """Sample i is i, with random numbers of three kinds as an augmentation would draw them."""

    def __init__(self, n: int = 20) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[int, float, float, float]:
        return index, random.random(), numpy.random.rand(), float(torch.rand(()))


def requests(batches: Batches, lanes: int, epoch: int = 0, seed: int = 0) -> Iterator[UnitRequest]:
    for step in range(batches.steps):
        for lane, count in enumerate(batches.counts(step)):
            if count:
                yield batches.request(data_key(seed, epoch, step, lane), epoch, step, lane)


def fetched(loader: DataLoader[Any], lanes: int = 4, epoch: int = 0) -> list[Any]:
    batches = Batches(loader, num_lanes=lanes, seed=0)
    try:
        units = list(requests(batches, lanes, epoch))
        return [batches.fetch(unit, lambda at=at: iter(units[at:])) for at, unit in enumerate(units)]
    finally:
        batches.close()


def ids(loader: DataLoader[Any], lanes: int = 4, epoch: int = 0) -> list[int]:
    return [int(i) for unit in fetched(loader, lanes, epoch) for i in unit[0]]


def flat(units: list[Any]) -> list[float]:
    return [float(v) for unit in units for column in unit for v in column]


def test_every_sample_once_in_an_order_that_depends_on_the_epoch() -> None:
    loader = DataLoader(Numbers(), batch_size=8, shuffle=True)
    orders = [ids(loader, epoch=epoch) for epoch in (0, 1)]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(20))
    assert orders[0] != orders[1] != list(range(20))
    assert ids(loader, lanes=1) == ids(loader, lanes=3) == orders[0], "lanes cut the batch, they do not reorder it"


def test_without_shuffle_they_come_in_order() -> None:
    assert ids(DataLoader(Numbers(), batch_size=8)) == list(range(20))


@pytest.mark.parametrize(("drop", "counts"), [(False, [(2, 2, 2, 2)] * 2 + [(1, 1, 0, 0)]), (True, [(2, 2, 2, 2)] * 2)])
def test_the_last_batch(drop: bool, counts: list[tuple[int, ...]]) -> None:
    batches = Batches(DataLoader(Numbers(18), batch_size=8, drop_last=drop), num_lanes=4, seed=0)
    assert [batches.counts(step) for step in range(batches.steps)] == counts


def test_a_batch_that_does_not_divide() -> None:
    batches = Batches(DataLoader(Numbers(), batch_size=7), num_lanes=3, seed=0)
    assert [batches.counts(step) for step in range(3)] == [(3, 2, 2), (3, 2, 2), (2, 2, 2)]
    assert batches.ids(0, 0, 0) + batches.ids(0, 0, 1) + batches.ids(0, 0, 2) == list(range(7))


def test_many_steps_are_the_same_in_any_order_of_asking() -> None:
    batches = Batches(DataLoader(Numbers(900), batch_size=3, shuffle=True), num_lanes=1, seed=0)
    forward = [batches.ids(0, step, 0) for step in range(300)]
    assert [batches.ids(0, step, 0) for step in reversed(range(300))] == forward[::-1]


def test_subsets() -> None:
    chosen = list(range(3, 19, 2))
    assert sorted(ids(DataLoader(Subset(Numbers(), chosen), batch_size=4, shuffle=True))) == chosen
    sampled = ids(DataLoader(Numbers(), batch_size=4, sampler=SubsetRandomSampler(chosen)))
    assert sorted(sampled) == chosen != sampled


class Many(Numbers):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        assert type(indices) is list
        return [("many", i) for i in indices]


def test_getitems_and_collate_fn_are_used() -> None:
    units = fetched(DataLoader(Many(4), batch_size=4, collate_fn=lambda samples: samples), lanes=2)
    assert units == [[("many", 0), ("many", 1)], [("many", 2), ("many", 3)]]


def test_random_transforms_are_the_same_whoever_fetches() -> None:
    loader = DataLoader(Numbers(), batch_size=8, shuffle=True)
    first = flat(fetched(loader))
    random.random(), numpy.random.rand(), torch.rand(3)
    assert flat(fetched(loader)) == first
    assert flat(fetched(loader, epoch=1)) != first
    assert len(set(first)) > 70, "and they differ from sample to sample"


def _init(worker: int) -> None:
    random.seed(worker)  # what a script does; units do not depend on it


def test_fetching_processes_give_the_same_bits() -> None:
    loader = DataLoader(Numbers(), batch_size=8, shuffle=True)
    ahead = DataLoader(Numbers(), batch_size=8, shuffle=True, num_workers=2, worker_init_fn=_init)
    assert flat(fetched(ahead)) == flat(fetched(loader))


def test_other_lanes_than_expected_begin_a_new_stream() -> None:
    batches = Batches(DataLoader(Numbers(), batch_size=4, num_workers=1), num_lanes=4, seed=0)
    units = list(requests(batches, 4))
    try:
        assert batches.fetch(units[0], lambda: iter(units))[0].tolist() == [0]
        stream = batches._stream
        assert batches.fetch(units[1], lambda: iter(units[1:]))[0].tolist() == [1]
        assert batches._stream is stream
        assert batches.fetch(units[7], lambda: iter(units[7:]))[0].tolist() == [7]
        assert batches._stream is not stream
    finally:
        batches.close()


class Deadly(Numbers):
    """Sample 9 kills the process that fetches it, so often."""

    def __init__(self, tmp_path: Path, times: int) -> None:
        super().__init__()
        self.tally, self.times = tmp_path / "deaths", times

    def __getitem__(self, index: int) -> tuple[int, float, float, float]:
        died = len(self.tally.read_text()) if self.tally.exists() else 0
        if index == 9 and died < self.times:
            self.tally.write_text("x" * (died + 1))
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pytest.mark.process
def test_a_fetching_process_that_is_killed_costs_nothing_but_a_moment(tmp_path: Path) -> None:
    loader = DataLoader(Deadly(tmp_path, 1), batch_size=8, shuffle=True, num_workers=2)
    assert flat(fetched(loader)) == flat(fetched(DataLoader(Numbers(), batch_size=8, shuffle=True)))
    assert (tmp_path / "deaths").read_text() == "x"


@pytest.mark.process
def test_a_unit_that_kills_whoever_fetches_it_is_told(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"DataLoader"):
        fetched(DataLoader(Deadly(tmp_path, 9), batch_size=8, num_workers=1))
    assert (tmp_path / "deaths").read_text() == "xx", "it is tried twice"


@pytest.mark.process
def test_a_kill_between_two_units_does_not_strike_the_script() -> None:
    batches = Batches(DataLoader(Numbers(), batch_size=4, num_workers=1, prefetch_factor=2), num_lanes=4, seed=0)
    units = list(requests(batches, 4))
    try:
        assert batches.fetch(units[0], lambda: iter(units))[0].tolist() == [0]
        assert batches._stream is not None
        (process,) = batches._stream._processes
        os.kill(process.pid, signal.SIGKILL)
        until = time.monotonic() + 0.2
        while time.monotonic() < until:
            pass  # the script computes; torch's signal handler would raise here
        began = time.monotonic()
        assert [batches.fetch(u, lambda at=at: iter(units[at:]))[0].tolist() for at, u in enumerate(units[1:4], 1)] == [
            [1], [2], [3],
        ]
        assert time.monotonic() - began < 4, "nobody waits for torch to notice"
    finally:
        batches.close()


class Spoiled(Numbers):
    def __getitem__(self, index: int) -> tuple[int, float, float, float]:
        if index == 9:
            raise KeyError("sample 9 is spoiled")
        return super().__getitem__(index)


@pytest.mark.process
def test_what_a_data_set_raises_in_a_fetching_process_is_raised() -> None:
    started = []
    batches = Batches(DataLoader(Spoiled(), batch_size=8, num_workers=1), num_lanes=4, seed=0)
    units = list(requests(batches, 4))
    try:
        with pytest.raises(KeyError, match="sample 9 is spoiled"):
            for at, unit in enumerate(units):
                batches.fetch(unit, lambda at=at: (started.append(at), iter(units[at:]))[1])
    finally:
        batches.close()
    assert started == [0], "and not tried again"


# ---------------------------------------------------------------- refused


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


class Backwards(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(19, -1, -1))

    def __len__(self) -> int:
        return 20


class Sly(SequentialSampler):
    """Looks like the sequential sampler and is another."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(19, -1, -1))


class Lengthless(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


PART = r"the sampler draws with replacement or a part only. Use shuffle=True or shuffle=False"
ORDER = "has an order of its own, which would be lost with a worker. Use shuffle=True or shuffle=False"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: DataLoader(Endless(), batch_size=4), "the data set is iterable, so its samples have no numbers"),
        (
            lambda: DataLoader(Numbers(), batch_sampler=BatchSampler(SequentialSampler(Numbers()), 4, False)),
            "the DataLoader has a batch_sampler",
        ),
        (lambda: DataLoader(Numbers(), batch_size=None), r"or no batching\), which decides batches by itself"),
        (lambda: DataLoader(Numbers(), 4, sampler=WeightedRandomSampler([1.0] * 20, 20)), f"RandomSampler {ORDER}"),
        (lambda: DataLoader(Numbers(), 4, sampler=RandomSampler(Numbers(), replacement=True)), PART),
        (lambda: DataLoader(Numbers(), 4, sampler=RandomSampler(Numbers(), num_samples=7)), PART),
        (lambda: DataLoader(Numbers(), 4, sampler=RandomSampler(range(7))), PART),
        (lambda: DataLoader(Numbers(), 4, sampler=SequentialSampler(range(7))), PART),
        (lambda: DataLoader(Numbers(), 4, sampler=Backwards()), f"Backwards {ORDER}"),
        (lambda: DataLoader(Numbers(), 4, sampler=Sly(Numbers())), f"Sly {ORDER}"),
        (lambda: DataLoader(Lengthless(), 4, sampler=Backwards()), "the data set has no length. Give it a __len__"),
    ],
)
def test_what_has_an_order_of_its_own_is_refused(make: Any, text: str) -> None:
    with pytest.raises(NotExact, match=text):
        Batches(make(), num_lanes=2, seed=0)


@pytest.mark.parametrize(
    ("n", "batch", "drop", "text"),
    [
        (20, 3, False, r"batch_size = 3: smaller than lanes = 4, so some lanes would never have a sample \(set by the"),
        (0, 4, False, r"dataset = 0: has no samples \(set by the DataLoader\)"),
        (5, 8, True, r"batch_size = 8: larger than the data set \(5 samples\), and drop_last leaves nothing"),
    ],
)
def test_sizes_that_cannot_be(n: int, batch: int, drop: bool, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Batches(DataLoader(Numbers(n), batch_size=batch, drop_last=drop), num_lanes=4, seed=0)


def test_a_data_set_whose_length_changes_is_refused() -> None:
    data = Numbers()
    batches = Batches(DataLoader(data, batch_size=4), num_lanes=1, seed=0)
    data.n = 21
    with pytest.raises(NotExact, match=r"the data set had 20 samples when it was prepared and has 21 now\. Keep its"):
        batches.fetch(batches.request(0, 0, 0, 0), lambda: iter(()))


def test_labels_are_called_as_the_data_set_calls_them_also_in_a_part_of_it():
    data = torch.utils.data.TensorDataset(torch.zeros(8, 2))
    assert Batches(DataLoader(data, batch_size=4), num_lanes=2, seed=0).classes == ()
    data.classes = ["cat", "dog"]
    part = torch.utils.data.Subset(data, range(6))
    assert Batches(DataLoader(part, batch_size=2), num_lanes=2, seed=0).classes == ("cat", "dog")
    data.classes = 2
    assert Batches(DataLoader(data, batch_size=4), num_lanes=2, seed=0).classes == ()
