"""Twice: a unit is computed once more, to see whether it gives the same.

A forked copy of this process (`forked`) gives the script's loop the same unit again, fetched again, and ends when the
loop asks for the next one. The script has gone on by one unit then, so whatever it carries from batch to batch is
another than before; what earlier phases of the turn have left behind is made another (`carried`). This worker waits for
the copy's report.

A mismatch is tried twice more, from one and the same state. If these differ, an operation is not deterministic; if not,
it is state that is kept. Where earlier phases have left something behind, it is first tried without a change to that,
and if that gives the same, with a change to one variable after the other.

Where a fork is not safe (torch has threads of its own, or a device other than the CPU), the unit is computed twice in
this process, which the script sees.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy
import torch

from holdfast.core import verify
from holdfast.errors import Impure, listed
from holdfast.train.loop.verifying.carried import Carried, Found, disturbed
from holdfast.train.loop.verifying.digests import Digests, differing, digest, few, of_all, of_batch
from holdfast.train.loop.verifying.forked import Forked, Report

if TYPE_CHECKING:
    from holdfast.train.training import Training

__all__ = ["Twice"]

BATCH = "the batch"
LEFT = "the loop over the units was left, by an exception or otherwise"
ALONE = 16  #: so many variables are tried one by one

Give = Callable[[], Iterator[Any]]
Copied = Callable[[Iterable[Any]], Generator[Any, None, Report]]


class Twice:
    """Units of one worker that are computed twice."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self.here = not _may_fork()  #: whether that is done in this process
        self.given_up = ""  #: why no unit can be computed twice
        self.carried = Carried(self._same_in_all)  #: what inner loops leave behind
        self._phase = 0
        self._batch: Digests = {}  # of the unit at hand
        self._taken = Found()  # what that could use of earlier phases
        self._copy: Forked | None = None  # the newest, if it may not be gone yet
        self._said: set[str] = set()

    def begin_unit(self, phase: int) -> None:
        """The unit begins."""
        self._batch, self._phase, self._taken = {}, phase, self.carried.found()

    def see(self, batch: Any) -> None:
        """A batch of it is about to be given to the script."""
        self._batch = {BATCH: of_batch(batch, self._batch.get(BATCH, 0))}

    def again(self, unit: tuple[int, int], give: Give, seconds: float) -> Iterator[Any]:
        """The script is through with unit (step, lane): see whether it gives the same once more. Raises Impure.

        In the copy, and in this process where it cannot be forked, its batches are given to the script again: `give`
        fetches them, and makes of the script's gradients what makes up the unit. A copy has so many `seconds`.
        """
        first = self._outcome()
        if self.here:
            yield from self._in_this_process(unit, first, give)
        else:
            yield from self._in_copies(unit, partial(self._copied, seconds, first, give))
        self._taken = Found()

    def reap(self, *, wait: bool = True) -> None:
        """See that the newest copy is gone."""
        if self._copy is not None and self._copy.close(wait=wait):
            self._copy = None

    # ------------------------------------------------------------ in this process

    def _in_this_process(self, unit: tuple[int, int], first: Digests, give: Give) -> Iterator[Any]:
        self._say(
            f"torch has {torch.get_num_threads()} threads in this process, or a device other than the CPU, so it "
            f"cannot be forked. In steps {listed(verify.FIRST)} a unit is computed twice in this process, and the "
            "loop over the units goes through it twice; units of later steps are not verified."
        )
        taken = self._taken.phases
        try:
            with disturbed(self._taken.all()):
                self._anew()
                yield from give()
        except GeneratorExit:
            if taken:
                self._say(
                    f"The loop over the units was left when unit (step {unit[0]}, lane {unit[1]}) was computed a "
                    f"second time, with other numbers in {', '.join(taken)}, which units of an earlier phase had set."
                )
            raise
        names = as_it_is = differing(first, self._outcome())
        if names and taken:
            self._anew()
            yield from give()
            as_it_is = differing(first, self._outcome())
        if as_it_is:
            raise Impure.twice(self._worker, unit, few(as_it_is), again=None)
        if names:
            raise Impure.carried(self._worker, unit, self._phase, few(names), taken, sure=len(taken) == 1)

    # ------------------------------------------------------------ in copies

    def _in_copies(self, unit: tuple[int, int], copied: Copied) -> Iterator[Any]:
        report = yield from copied(self._taken.all())
        if self._taken and _is_other(report):
            as_it_is = yield from copied(())
            if not (as_it_is.differs or as_it_is.failure):
                yield from self._name(unit, few(report.differs), copied)
            report = as_it_is
        reports = [report]
        while report.differs and len(reports) < 3 and not reports[-1].failure:
            reports.append((yield from copied(())))
        self._judge(unit, reports)

    def _name(self, unit: tuple[int, int], what: str, copied: Copied) -> Iterator[Any]:
        """With other numbers in what earlier phases have left behind `what` was other, or else there was an exception.

        Say which of it makes a difference. Raises Impure.
        """
        taken, names = self._taken, []
        for name, leaves in taken.leaves.items() if len(taken.leaves) <= ALONE else ():
            if _is_other((yield from copied(leaves))):
                names.append(name)
        if names or _is_other((yield from copied(taken.all()))):
            phases = {name: phase for name, phase in taken.phases.items() if name in (names or taken.phases)}
            sure = bool(names) or len(phases) == 1
            raise Impure.carried(self._worker, unit, self._phase, what or "an exception", phases, sure=sure)
        if what:  # an exception that does not come again had another cause
            raise Impure.twice(self._worker, unit, what, again=None)

    def _copied(
        self, seconds: float, first: Digests, give: Callable[[], Iterator[Any]], others: Iterable[Any]
    ) -> Generator[Any, None, Report]:
        """What a copy finds that computes the unit, with other numbers in these `others`."""
        self.reap()
        try:
            copy = self._copy = Forked(self._training.bound.isolate)
        except OSError as error:  # short of memory or processes
            return Report([], 0, f"no process could be forked ({error.strerror})")
        if copy:
            yield from self._in_copy(copy, first, give, others)
        return copy.await_report(seconds)

    def _judge(self, unit: tuple[int, int], reports: Sequence[Report]) -> None:
        first, *others = reports
        if first.differs:
            tried = len(others) == 2 and not others[1].failure
            same = others[0].digest == others[1].digest if tried else None
            raise Impure.twice(self._worker, unit, few(first.differs), again=same)
        if first.failure:
            self.given_up = first.failure
            self._say(
                f"Unit (step {unit[0]}, lane {unit[1]}) could not be computed a second time: {first.failure}. Units of "
                f"worker {self._worker} are not verified any more."
            )

    def _in_copy(
        self, copy: Forked, first: Digests, give: Callable[[], Iterator[Any]], others: Iterable[Any]
    ) -> Iterator[Any]:
        """In the copy: have the script compute the unit, and report. Does not return."""
        try:
            with disturbed(others):
                self._anew()
                yield from give()
                second = self._outcome()
            copy.report(Report(differing(first, second)[:4], of_all(second)))
        except Exception as error:  # what the script raises does not come here
            copy.report(Report([], 0, f"its samples could not be fetched ({type(error).__name__}: {str(error)[:200]})"))
        finally:  # the script has left its loop
            copy.report(Report([], 0, LEFT))

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

    def _same_in_all(self) -> Iterator[torch.Tensor]:
        """What is the same in every worker: parameters, gradients that are shown, buffers, kept modules."""
        for model in self._training._models:
            yield from model.parameters()
            yield from model.buffers()
        yield from (p.grad for p in self._training.space.trainable if p.grad is not None)

    @property
    def _worker(self) -> int:
        return self._training.bound.member.at.worker

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            warnings.warn(text, stacklevel=2)


def _is_other(report: Report) -> bool:
    """Has the unit come to something else, be it an exception?"""
    return bool(report.differs) or report.failure == LEFT


def _may_fork() -> bool:
    """Are there neither threads of torch nor a device whose threads and contexts a copy would lack?"""
    return torch.get_num_threads() == 1 and not torch.accelerator.is_available()
