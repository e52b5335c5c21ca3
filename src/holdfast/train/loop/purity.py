"""Purity: looks whether a unit follows from parameters, samples and seed, and from nothing else.

Of a chosen unit (`core.verify`) all that it gave is hashed when the script asks for its next batch, before its gradient
is used. Then it is computed once more: by a forked copy of this process (`forked`), which gives the script's loop the
same unit again, fetched again, and ends when the loop asks for the next one. The script has gone on by one unit then,
so whatever it carries from batch to batch is another than before. This worker waits for the copy's report.

A mismatch is tried twice more, from one and the same state. If these differ, an operation is not deterministic; if not,
it is state that is kept.

In the steps that have such a unit, each worker also looks whether parameters are written to by hand, and compares with
all others what must be the same in them: parameters, settings, and what `run.keep` holds. So it does in a plain loop,
where a unit is a share, and not computed twice. Numbers that schedulers were stepped with are compared at the next turn
in any case: one that only this worker knows moves them here alone.

Where a fork is not safe (torch has threads of its own, or a device other than the CPU), the unit is computed twice in
this process, which the script sees, and in the run's first steps only.
"""

from __future__ import annotations

import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy
import torch

from holdfast.config.limits import WORKER
from holdfast.core import verify
from holdfast.dataplane.reduce.work import StepWork
from holdfast.errors import Impure, listed
from holdfast.train.loop.forked import Forked, Report

if TYPE_CHECKING:
    from holdfast.train.training import Training

__all__ = ["Purity", "digest", "few"]

Digests = dict[str, int]

BATCH = "the batch"
NUMBER = "the number that "
PARAMETERS, SETTINGS = "what the parameters are", "what optimizer and schedulers are set to"


class Purity:
    """Verifies units of one worker's loops by steps."""

    def __init__(self, training: Training, share: float | None) -> None:
        self._training, self._share = training, verify.SHARE if share is None else share
        self._thrifty = share is None  # to spend no more than a part of the time
        self._began, self._spent = time.monotonic(), 0.0  # when that began; what second computations have taken
        self._here = not _may_fork()  # whether units are computed twice in this process
        self._parameters: tuple[int, Digests] | None = None  # (version, what they were when it was there)
        self._lane: int | None = None  # whose unit of the turn at hand is computed twice; None: nothing is looked at
        self._plain = False  # the turn at hand is one of a plain loop
        self._told = False  # others are told at the top of the turn at hand what must be the same
        self._past = False  # this worker has begun a turn, and misses nothing of the code between two
        self._batch: Digests = {}  # of that unit
        self._copy: Forked | None = None  # the newest, if it may not be gone yet
        self._said: set[str] = set()
        self._given_up = ""  # why no unit can be computed twice

    def _chosen(self, step: int, work: StepWork) -> int | None:
        """Whose unit of this step is to be looked at; `work` is of the same loop."""
        if not work.turn:  # a share has no lane of its own, and is not computed twice
            found = verify.chosen(self._training.seed, step, (0,), self._share)
            return found if found is None or self._affordable(step) else None
        if self._here and step not in verify.FIRST:
            return None
        return verify.chosen(self._training.seed, step, work.lanes, self._share)

    # ------------------------------------------------------------ turns

    def begin_turn(self, work: StepWork) -> dict[str, str]:
        """A turn begins. Returns what must be the same in all workers, where that is to be compared."""
        training, settings = self._training, self._training.bound.settings
        self._plain, self._lane = not work.turn, self._chosen(work.step, work)
        numbers = settings.take_measured()
        told = {f"{NUMBER}{name} was stepped with": found for name, found in numbers.items()}
        if self._share <= 0.0 or not self._past:
            told = {}
        self._past = True
        if self._lane is None:
            self._parameters = None
        else:
            self._look(work, f"before step {work.step}")
            told |= {SETTINGS: settings.digest(), **training.turns.keeping.digests()}
            if self._stands(work.version):
                self._parameters = work.version, self._of_parameters()
                told[PARAMETERS] = _all(self._parameters[1])
        self._told = bool(told)
        return {name: f"{value:08x}" for name, value in told.items()}

    def end_turn(self, work: StepWork) -> None:
        """The script's code of a turn is through, and the step is not committed."""
        if self._lane is not None:
            self._reap()
            self._look(work, f"{'after the units' if work.turn else 'in the turn'} of step {work.step}")
        if work.turn:  # in a plain loop others may not have come to this turn
            self._compare(work)

    def over(self, work: StepWork) -> None:
        """The step is committed."""
        if not work.turn:
            self._compare(work)
        version = self._training.bound.version
        following = self._chosen(work.step + 1, work) is not None
        self._parameters = (version, self._of_parameters()) if following and self._stands(version) else None

    def _look(self, work: StepWork, where: str) -> None:
        """Raise where parameters are not what they were when this version was there."""
        if self._parameters is None or self._parameters[0] != work.version or not self._stands(work.version):
            return
        if names := differing(self._parameters[1], self._of_parameters()):
            raise Impure.written(self._worker, where, few(names), plain=not work.turn)

    def _stands(self, version: int) -> bool:
        """Is this version published, and no slice further on? A worker that comes late to a step may be behind."""
        return set(self._training.bound.board.versions()) == {version}

    def _compare(self, work: StepWork) -> None:
        if not self._told:
            return
        at = self._training.bound.member.at
        every = self._training.bound.settings.told(work.step, {at.rows[worker] for worker in at.on_host})
        told = {worker: every[row] for worker, row in at.rows.items() if row in every}
        for name in told.get(self._worker, {}):
            groups: dict[str, list[int]] = {}
            for worker, values in told.items():
                if name in values:
                    groups.setdefault(values[name], []).append(worker)
            if len(groups) > 1:
                apart = sorted(map(sorted, groups.values()), key=lambda group: (-len(group), group))
                raise Impure.apart(work.step, name, apart, plain=not work.turn, measured=name.startswith(NUMBER))

    # ------------------------------------------------------------ units

    def begin_unit(self) -> None:
        """A unit begins."""
        self._batch = {}

    def see(self, lane: int, batch: Any) -> None:
        """A batch of a unit is about to be given to the script."""
        if self._lane == lane:
            self._batch = {BATCH: _of_batch(batch, self._batch.get(BATCH, 0))}

    def chose(self, step: int, lane: int) -> bool:
        """Is the unit of this lane to be computed twice?"""
        return self._lane == lane and not self._given_up and self._affordable(step)

    def again(self, work: StepWork, lane: int, give: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """The script is through with a unit: see whether it gives the same once more. Raises Impure.

        In the copy, and in this process where it cannot be forked, its batches are given to the script again: `give`
        fetches them, and makes of the script's gradients what makes up the unit.
        """
        training = self._training
        began = time.perf_counter_ns()
        took = (began - training._unit_started) / 1e9
        self._look(work, f"in unit (step {work.step}, lane {lane})")
        first = self._outcome()
        if self._here:
            self._say(
                f"torch has {torch.get_num_threads()} threads in this process, or a device other than the CPU, so it "
                f"cannot be forked. In steps {listed(verify.FIRST)} a unit is computed twice in this process, and the "
                "loop over the units goes through it twice; units of later steps are not verified."
            )
            self._anew()
            yield from give()
            second = self._outcome()
            if names := differing(first, second):
                raise Impure.twice(self._worker, (work.step, lane), few(names), again=None)
        else:
            reports: list[Report] = []
            for _ in range(3):
                self._reap()
                try:
                    copy = self._copy = Forked(training.bound.isolate)
                except OSError as error:  # short of memory or processes
                    reports.append(Report([], 0, f"no process could be forked ({error.strerror})"))
                    break
                if copy:
                    yield from self._in_copy(copy, first, give)
                reports.append(copy.await_report(WORKER.second + WORKER.second_factor * took))
                if reports[-1].failure or not reports[0].differs:
                    break
            self._judge((work.step, lane), reports)
        spent = time.perf_counter_ns() - began
        training._unit_started += spent  # it says nothing about how fast this worker is
        self._spent += spent / 1e9

    def _affordable(self, step: int) -> bool:
        if not self._thrifty or step in verify.FIRST:
            return True
        return self._spent <= WORKER.verifying * (time.monotonic() - self._began)

    def _reap(self) -> None:
        if self._copy is not None:
            self._copy.close()
        self._copy = None

    def _judge(self, unit: tuple[int, int], reports: Sequence[Report]) -> None:
        first, *others = reports
        if first.differs:
            tried = len(others) == 2 and not others[1].failure
            same = others[0].digest == others[1].digest if tried else None
            raise Impure.twice(self._worker, unit, few(first.differs), again=same)
        if first.failure:
            self._given_up = first.failure
            self._say(
                f"Unit (step {unit[0]}, lane {unit[1]}) could not be computed a second time: {first.failure}. Units of "
                f"worker {self._worker} are not verified any more."
            )

    def _in_copy(self, copy: Forked, first: Mapping[str, int], give: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """In the copy: have the script compute the unit, and report. Does not return."""
        try:
            self._anew()
            yield from give()
            second = self._outcome()
            copy.report(Report(differing(first, second)[:4], _all(second)))
        except Exception as error:  # what the script raises does not come here
            copy.report(Report([], 0, f"its samples could not be fetched ({type(error).__name__}: {str(error)[:200]})"))
        finally:  # the script has left its loop
            copy.report(Report([], 0, "the loop over the units was left, by an exception or otherwise"))

    def _anew(self) -> None:
        """The same unit is about to begin once more."""
        self._batch = {}
        self._training.bound.buffers.distrust()

    def _outcome(self) -> Digests:
        """All that the unit at hand has given."""
        training, space = self._training, self._training.space
        found = dict(self._batch)
        found["the loss"] = zlib.crc32(numpy.float64(training.tap.value()).tobytes())
        for name, parameter in zip(space.names, space.trainable, strict=True):
            found[f"the gradient of {name}"] = 0 if parameter.grad is None else digest(parameter.grad)
        for name, buffer in training.bound.buffers.live():
            found[f"buffer {name}"] = digest(buffer)
        return found

    def _of_parameters(self) -> Digests:
        space, began = self._training.space, time.perf_counter_ns()
        found = {space.name_of(parameter): digest(parameter) for parameter in space.still}
        if self._plain:  # by steps, second computations are what takes time
            self._spent += (time.perf_counter_ns() - began) / 1e9
        return found

    @property
    def _worker(self) -> int:
        return self._training.bound.member.at.worker

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            warnings.warn(text, stacklevel=2)


def differing(first: Mapping[str, int], second: Mapping[str, int]) -> list[str]:
    """The names of what is not the same in both."""
    return [name for name in {**first, **second} if first.get(name) != second.get(name)]


def few(names: Sequence[str]) -> str:
    """The first of these, for a sentence.

    >>> few(["the loss", "a", "b", "c"]), few(["a"])
    ('the loss, a, b, ...', 'a')
    """
    return ", ".join([*names[:3], *["..."] * (len(names) > 3)])


def digest(tensor: torch.Tensor) -> int:
    """Of what is in a tensor, bit for bit."""
    if tensor.layout != torch.strided:
        return 0  # such a gradient is refused where it is taken
    plain = tensor.detach().cpu().contiguous()
    return zlib.crc32(plain.reshape(-1).view(torch.uint8).numpy().data) if plain.numel() else 0


def _all(several: Mapping[str, int]) -> int:
    return zlib.crc32(msgspec.msgpack.encode(list(several.items())))


def _of_batch(batch: Any, found: int) -> int:
    """Of the tensors, arrays and plain values of a batch, after what was found; what else is in it is not looked at."""
    for leaf in _leaves(batch):
        if isinstance(leaf, torch.Tensor):
            found = zlib.crc32(digest(leaf).to_bytes(4, "little"), found)
        elif isinstance(leaf, numpy.ndarray) and leaf.dtype != object:
            found = zlib.crc32(leaf.tobytes(), found)
        elif isinstance(leaf, int | float | str | bytes):
            found = zlib.crc32(repr(leaf).encode(), found)
    return found


def _leaves(batch: Any) -> Iterator[Any]:
    if isinstance(batch, Mapping):
        for item in batch.values():
            yield from _leaves(item)
    elif isinstance(batch, list | tuple):
        for item in batch:
            yield from _leaves(item)
    else:
        yield batch


def _may_fork() -> bool:
    """Are there neither threads of torch nor a device whose threads and contexts a copy would lack?"""
    return torch.get_num_threads() == 1 and not torch.accelerator.is_available()
