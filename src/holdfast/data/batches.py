"""The batch of a unit, from the user's `DataLoader`: which samples, in what order, and how they are fetched.

A unit's batch is a pure function of (seed, epoch, step, lane), so there is no iterator that could be
lost: this module asks for the samples of a unit by number, as often as it likes. What the user's loader
says is kept: batch size (as the global batch), shuffle or not, `drop_last`, `collate_fn`, `num_workers`,
`worker_init_fn`. What cannot be kept (samplers with an order of their own, iterable datasets) is refused.

With `num_workers` the units ahead are fetched by torch's own worker processes. A worker that is given
other lanes drops what was fetched for the old ones; the random state is set before each unit's fetch,
so who fetches changes nothing. For the same reason a fetching process that was killed costs a moment and
nothing else: others are started, and asked for the same units.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing.connection
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy
from torch._C import _remove_worker_pids, _set_worker_pids
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
)

from holdfast.config.limits import PROCESS
from holdfast.core.lanes import shares
from holdfast.core.order import Order
from holdfast.data.randomness import seed_everything
from holdfast.errors import ConfigError, NotExact

__all__ = ["Batches", "UnitRequest"]

_AHEAD = 64  # steps whose sample numbers are computed at once


class UnitRequest(list[int]):
    """The sample numbers of one unit, with the key of its data randomness. A list, as torch's fetcher wants."""

    def __init__(self, ids: Sequence[int], seed: int, step: int, lane: int) -> None:
        super().__init__(ids)
        self.seed, self.step, self.lane = seed, step, lane

    def __reduce__(self) -> tuple[Any, ...]:
        return UnitRequest, (list(self), self.seed, self.step, self.lane)


class Batches:
    """The batches of one prepared loader."""

    def __init__(self, loader: DataLoader[Any], *, num_lanes: int, seed: int) -> None:
        self._loader, self._num_lanes, self._seed = loader, num_lanes, seed
        self._subset = _check(loader)
        self.size = len(self._subset) if self._subset is not None else len(loader.dataset)  # type: ignore[arg-type]
        self.batch = int(loader.batch_size or 0)
        if self.batch < num_lanes:
            raise ConfigError(
                "batch_size", self.batch, f"smaller than lanes = {num_lanes}, so some lanes would never have a sample",
                source="the DataLoader", fix=f"Use a batch of at least {num_lanes}, or hf.join(lanes={self.batch}).",
            )  # fmt: skip
        if self.size == 0:
            raise ConfigError("dataset", 0, "has no samples", source="the DataLoader")
        self.steps = self.size // self.batch if loader.drop_last else -(-self.size // self.batch)
        if self.steps == 0:
            raise ConfigError(
                "batch_size", self.batch,
                f"larger than the data set ({self.size} samples), and drop_last leaves nothing",
                source="the DataLoader", fix="Use a smaller batch or drop_last=False.",
            )  # fmt: skip
        shuffled = not isinstance(loader.sampler, SequentialSampler)
        self._shuffled = shuffled
        self._collate: Callable[[Any], Any] = loader.collate_fn
        self._dataset = _UnitDataset(loader.dataset)
        self._ids: dict[int, numpy.ndarray[Any, numpy.dtype[numpy.int64]]] = {}
        self._ids_of = (-1, -1)
        self._shares: dict[int, tuple[range, ...]] = {}  # of a batch of so many; asked for several times a step
        self._counts: dict[int, tuple[int, ...]] = {}
        self._stream: _Stream | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        """What its data set calls the labels, if it says so, as torchvision's data sets do."""
        data: Any = self._loader.dataset
        while not hasattr(data, "classes") and hasattr(data, "dataset"):  # a part of one: Subset
            data = data.dataset
        names = getattr(data, "classes", ())
        known = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
        return tuple(names) if known else ()

    def described(self) -> str:
        """What all workers must agree on."""
        order = "shuffled" if self._shuffled else "in order"
        return f"{self.size} samples, {order}, {self.steps} batches of {self.batch}"

    def counts(self, step: int) -> tuple[int, ...]:
        """How many samples each lane has in a step of the epoch."""
        size = min(self.batch, self.size - step * self.batch)
        known = self._counts.get(size)
        if known is None:
            known = self._counts[size] = tuple(map(len, self._shares_of(size)))
        return known

    def _shares_of(self, size: int) -> tuple[range, ...]:
        known = self._shares.get(size)
        if known is None:
            known = self._shares[size] = shares(size, self._num_lanes)
        return known

    def ids(self, epoch: int, step: int, lane: int) -> list[int]:
        """The samples of a lane."""
        return self.run(epoch, step, lane, lane + 1)

    def run(self, epoch: int, step: int, first: int, last: int) -> list[int]:
        """The samples of lanes [first, last)."""
        block = step // _AHEAD
        if self._ids_of != (epoch, block):
            start = block * _AHEAD * self.batch
            stop = min(start + _AHEAD * self.batch, self.size)
            order = Order(n=self.size, seed=self._seed, epoch=epoch, shuffle=self._shuffled)
            numbers = order.ids(start, stop)
            if self._subset is not None:
                numbers = self._subset[numbers]
            self._ids = {
                block * _AHEAD + i: numbers[i * self.batch : (i + 1) * self.batch]
                for i in range(-(-(stop - start) // self.batch))
            }
            self._ids_of = (epoch, block)
        batch = self._ids[step]
        lanes = self._shares_of(len(batch))
        ids: list[int] = batch[lanes[first].start : lanes[last - 1].stop].tolist()
        return ids

    def request(self, key: int, epoch: int, step: int, lane: int) -> UnitRequest:
        """What has to be fetched for a unit."""
        return UnitRequest(self.ids(epoch, step, lane), key, step, lane)

    def fetch(self, request: UnitRequest, ahead: Callable[[], Iterator[UnitRequest]]) -> Any:
        """The batch of a unit. `ahead` gives this unit and those that this worker expects to need after it."""
        if len(self._loader.dataset) != len(self._dataset):  # type: ignore[arg-type]
            raise NotExact(
                f"the data set had {len(self._dataset)} samples when it was prepared and has "
                f"{len(self._loader.dataset)} now",  # type: ignore[arg-type]
                "Keep its length fixed during a run.",
            )
        if self._loader.num_workers == 0:
            return self._collate(self._dataset.__getitems__(request))
        try:
            return self._streamed(request, ahead)
        except Exception:
            # What the data set raised is the user's to see. But bad luck of a fetching process (the kernel was short
            # of memory, somebody sent a signal) is no fault of the unit; it is one when it happens twice.
            # A dying process breaks its connections before it is dead, hence the moment.
            if self._stream is None or self._stream.intact(PROCESS.fetcher_death):
                raise
        self.close()
        return self._streamed(request, ahead)

    def fetch_again(self, request: UnitRequest) -> Any:
        """The same batch once more, fetched in this process whoever fetches them otherwise."""
        return self._collate(self._dataset.__getitems__(request))

    def _streamed(self, request: UnitRequest, ahead: Callable[[], Iterator[UnitRequest]]) -> Any:
        if self._stream is None or not self._stream.serves(request):
            self.close()
            seed_everything(request.seed)  # torch draws a number for its processes
            self._stream = _Stream(self._loader, self._dataset, self._collate, ahead())
        return self._stream.take()

    def close(self) -> None:
        """End the fetching processes, if there are any."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None


class _UnitDataset(Dataset[Any]):
    """The user's data set behind requests: sets the random state, then fetches. Travels to fetching processes."""

    def __init__(self, dataset: Any) -> None:
        self._dataset, self._length = dataset, len(dataset)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]

    def __getitems__(self, request: UnitRequest) -> Any:
        seed_everything(request.seed)
        many = getattr(self._dataset, "__getitems__", None)
        if many is not None:
            return many(list(request))
        return [self._dataset[index] for index in request]


class _Stream:
    """Units fetched ahead by torch's worker processes, in the order they were asked for.

    torch raises in a signal handler when one of them dies: in the middle of a forward pass, if that is what the
    script is at. So torch knows of them only while a batch is awaited.
    """

    def __init__(
        self, loader: DataLoader[Any], dataset: _UnitDataset, collate: Callable[[Any], Any],
        requests: Iterator[UnitRequest],
    ) -> None:  # fmt: skip
        self._expected: list[UnitRequest] = []
        self._requests = requests
        inner: DataLoader[Any] = DataLoader(
            dataset,
            batch_sampler=_Asked(self),
            num_workers=loader.num_workers,
            collate_fn=collate,
            prefetch_factor=loader.prefetch_factor,
            timeout=loader.timeout,
            worker_init_fn=_Init(loader.worker_init_fn),
            multiprocessing_context=loader.multiprocessing_context,
        )
        iterator: Any = iter(inner)
        self._iterator, self._processes = iterator, tuple(iterator._workers)
        self._unwatch()

    def serves(self, request: UnitRequest) -> bool:
        """Is this unit the next one to come?"""
        if not self._expected:
            return False
        next_ = self._expected[0]
        return (next_.step, next_.lane) == (request.step, request.lane) and next_ == request

    def take(self) -> Any:
        """The next unit's batch. Raises RuntimeError, as torch does, when a process has died."""
        with self._watched():
            if not self.intact():  # while nobody watched; torch would wait for it for seconds
                raise RuntimeError("A process of the DataLoader's num_workers died while it fetched data.")
            batch = next(self._iterator)
        self._expected.pop(0)
        return batch

    def intact(self, seconds: float = 0.0) -> bool:
        """Are all fetching processes alive, and stay so for this long?"""
        ended = multiprocessing.connection.wait([process.sentinel for process in self._processes], seconds)
        return not ended and all(process.is_alive() for process in self._processes)

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        _set_worker_pids(id(self._iterator), tuple(process.pid for process in self._processes))
        self._iterator._worker_pids_set = True
        try:
            yield
        finally:
            self._unwatch()

    def _unwatch(self) -> None:
        if self._iterator._worker_pids_set:
            self._iterator._worker_pids_set = False
            _remove_worker_pids(id(self._iterator))

    def asked(self) -> Iterator[UnitRequest]:
        """Pass requests on to torch, remembering what was asked."""
        for request in self._requests:
            self._expected.append(request)
            yield request

    def close(self) -> None:
        """End the processes."""
        if not self.intact():  # who was killed may have held a lock that the others would wait for
            for process in self._processes:
                process.kill()
        self._iterator._shutdown_workers()


class _Asked:
    """A batch sampler that yields what the stream asks for."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[UnitRequest]:
        return self._stream.asked()


class _Init:
    """What a fetching process does first: die with its parent, then the user's own."""

    def __init__(self, theirs: Callable[[int], None] | None) -> None:
        self._theirs, self._parent = theirs, os.getpid()

    def __call__(self, worker: int) -> None:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != self._parent:
            os._exit(1)
        if self._theirs is not None:
            self._theirs(worker)


def _check(loader: DataLoader[Any]) -> numpy.ndarray[Any, numpy.dtype[numpy.int64]] | None:
    """Refuse what has no order of its own we could keep. Returns the chosen samples of a subset sampler."""
    if isinstance(loader.dataset, IterableDataset):
        raise NotExact(
            "the data set is iterable, so its samples have no numbers that a unit could ask for",
            "Use a map-style data set (with __len__ and __getitem__).",
        )
    if not hasattr(loader.dataset, "__len__"):
        raise NotExact("the data set has no length", "Give it a __len__.")
    if loader.batch_size is None:
        raise NotExact(
            "the DataLoader has a batch_sampler (or no batching), which decides batches by itself",
            "Give it batch_size and shuffle instead.",
        )
    sampler = loader.sampler
    if type(sampler) is SubsetRandomSampler:  # by type: a subclass may have an order of its own
        return numpy.asarray(list(sampler.indices), dtype=numpy.int64)
    if type(sampler) is RandomSampler or type(sampler) is SequentialSampler:
        if getattr(sampler, "replacement", False) or len(sampler) != len(loader.dataset):
            raise NotExact(
                "the sampler draws with replacement or a part only",
                "Use shuffle=True or shuffle=False; choose samples with torch.utils.data.Subset.",
            )
        return None
    raise NotExact(
        f"the sampler {type(sampler).__name__} has an order of its own, which would be lost with a worker",
        "Use shuffle=True or shuffle=False; choose samples with torch.utils.data.Subset.",
    )
