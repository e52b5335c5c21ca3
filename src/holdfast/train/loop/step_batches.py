"""What the steps of one loop consist of: a number of batches each, of one loader or of several that go along.

A lane has its share of each batch of the step, of every loader. Each of these shares is a *part* of its unit: the inner
loop gives them one after the other, so a unit takes as much memory as one part. Their gradients and losses are means,
and so is what becomes of the unit: each part counts by its number of samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from holdfast.data.batches import Batches, UnitRequest
from holdfast.data.randomness import data_key
from holdfast.errors import ConfigError, NotExact, UsageError

__all__ = ["Ahead", "Part", "PartsMean", "StepBatches"]

Part = tuple[UnitRequest, ...]  #: of each loader
Ahead = Callable[[], Iterator[Part]]  #: this part, and those that will be needed after it
_LOADER = 48  #: bits that an order has: loaders that go along have others


class StepBatches:
    """The steps of one pass over loaders, `accumulate` batches of each to a step."""

    def __init__(self, loaders: Sequence[Batches], accumulate: int, seed: int) -> None:
        if not isinstance(accumulate, int) or accumulate < 1:
            raise ConfigError("accumulate", accumulate, "must be a whole number of at least 1", source="run.steps")
        if len(set(map(id, loaders))) < len(loaders):
            raise UsageError(
                "run.steps got the same loader twice. Prepare a second DataLoader over the same data and hand it over."
            )
        self._loaders, self._accumulate, self._seed = tuple(loaders), accumulate, seed
        self._batches = min(loader.steps for loader in loaders)
        self.orders: tuple[int, ...] = (0,) * len(loaders)  #: in which each loader uses its data
        self.steps = -(-self._batches // accumulate)
        self._check_lanes()

    def _check_lanes(self) -> None:
        """Every lane that takes part has samples of every loader; only the last batch of one may be too small."""
        for at in {0, self._batches - 1}:
            counts = [loader.counts(at) for loader in self._loaders]
            bare = [lane for lane, several in enumerate(zip(*counts, strict=True)) if any(several) and not all(several)]
            if bare:
                raise NotExact(
                    f"batch {at} has {', '.join(str(sum(count)) for count in counts)} samples of the loaders that go "
                    f"along, so lane {bare[0]} has samples of some of them only",
                    "Make the DataLoaders with drop_last=True.",
                )

    @property
    def batch(self) -> int:
        """How many samples a whole step has."""
        return sum(loader.batch for loader in self._loaders) * self._accumulate

    def number(self, orders: Sequence[int]) -> None:
        """The pass uses the data in these orders; loaders of one length go through it in different ones."""
        self.orders = tuple(order + (index << _LOADER) for index, order in enumerate(orders))

    def counts(self, at: int) -> tuple[int, ...]:
        """How many samples each lane has in a step of the pass, of all loaders."""
        counts = [loader.counts(batch) for batch in self._of(at) for loader in self._loaders]
        return tuple(map(sum, zip(*counts, strict=True)))

    def parts(self, at: int, lane: int) -> list[Part]:
        """The parts of a unit."""
        return [
            tuple([self._request(index, batch, lane) for index in range(len(self._loaders))])
            for batch in self._of(at) if self._loaders[0].counts(batch)[lane]
        ]  # fmt: skip

    def samples(self, first: int, step: int, lane: int) -> list[int]:
        """The samples of a unit of the run, where this pass begins with step `first`."""
        return [number for part in self.parts(step - first, lane) for request in part for number in request]

    def fetch(self, part: Part, ahead: Ahead) -> Any:
        """The batch of a part; of several loaders, a tuple of theirs."""
        several = tuple(
            loader.fetch(request, partial(_of_loader, ahead, index))
            for index, (loader, request) in enumerate(zip(self._loaders, part, strict=True))
        )
        return several if len(several) > 1 else several[0]

    def fetch_again(self, part: Part) -> Any:
        """The same once more, fetched in this process."""
        several = tuple(
            loader.fetch_again(request) for loader, request in zip(self._loaders, part, strict=True)
        )
        return several if len(several) > 1 else several[0]

    def _of(self, at: int) -> range:
        """The batches of a step."""
        return range(at * self._accumulate, min((at + 1) * self._accumulate, self._batches))

    def _request(self, index: int, batch: int, lane: int) -> UnitRequest:
        order = self.orders[index]
        ids = self._loaders[index].ids(order, batch, lane)
        return UnitRequest(ids, data_key(self._seed, order, batch, lane), batch, lane)


class PartsMean:
    """Makes the gradient of a unit out of those of its parts, in the place where backward adds them up.

    What lies there is, before each part, a multiple of what has come so far: such that the next part's gradient, added
    as it is, has its right weight in it.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], parts: Sequence[Part], *, sums: bool = False) -> None:
        """With `sums`, losses are sums, and the parts' gradients are added up as they are."""
        self._parameters, self._sums = parameters, sums
        self._counts = [sum(map(len, part)) for part in parts]

    def weight(self, number: int) -> float:
        """What a part counts in the unit."""
        return 1.0 if self._sums else self._counts[number] / sum(self._counts)

    def end_part(self, number: int) -> None:
        """The gradient of this part was added: make room for the next one, or make the mean."""
        if self._sums:
            return
        last = number == len(self._counts) - 1
        factor = self.weight(number) if last else self._counts[number] / self._counts[number + 1]
        if factor != 1.0:
            with torch.no_grad():
                for parameter in self._parameters:
                    if parameter.grad is not None:
                        parameter.grad.mul_(factor)


def _of_loader(ahead: Ahead, index: int) -> Iterator[UnitRequest]:
    return (part[index] for part in ahead())
