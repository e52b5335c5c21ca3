"""An owner's part where lanes need not keep step: take slices from one version to the next, by a docket.

Which pushes that takes is written down already (`core.clocks.docket`), and what they count follows from it
(`core.shares`). So whoever applies a docket, or takes over from one who died in it, comes to the same: slice by slice,
with the undo record of an exact step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from holdfast.core.clocks import Mode, Taken
from holdfast.core.shares import Given, Share, share_of
from holdfast.core.slices import Slice
from holdfast.core.staleness import Staleness
from holdfast.errors import NonFinite, NotExact
from holdfast.exchange import ages
from holdfast.exchange import board as cells
from holdfast.exchange.board import StepFacts
from holdfast.exchange.crew import Member, clip_scale, norm_of
from holdfast.exchange.finite import finite
from holdfast.exchange.partial import scaled
from holdfast.exchange.pushes import Pushes, Record
from holdfast.exchange.pushslots import Drift, PushSlots

__all__ = ["Applying"]


class Applying(Member):
    """A member that applies dockets to its slices. What it drives, and how far a pass has come, is `paced.Paced`'s."""

    mode: Mode
    staleness: Staleness
    pushes: Pushes
    push_slots: PushSlots
    _applied: Callable[[int], list[dict[str, Any]]]  # the settings that a step of the run was made with

    def committed(self) -> int:
        """Steps of the run of which every lane's push has been applied."""
        raise NotImplementedError

    def course_counts(self, step: int) -> Sequence[int]:
        """Samples of every lane in a step of the pass."""
        raise NotImplementedError

    def _apply(self, version: int, mine: Sequence[int]) -> bool:
        """Take my slices to the next version. False: others have to do something first, or I am asked for quiet."""
        self._begin_applying()
        taken = self.pushes.docket(version)
        records = {push: self.pushes.record(push.lane) for push in taken}
        given = {push: Given(record.samples, version - record.version) for push, record in records.items()}
        newest = max((push.step for push in taken), default=0)
        counts = self.course_counts(newest)
        share = share_of(self.mode, self.staleness, given, self.pushes.newest(version), counts)
        work = _Work(version, share, newest, self._clipping_of(records))
        clips = work.clip[0] > 0.0 and bool(share.pushes)
        if clips and not self._normed(work, mine):
            return False
        norm = self._grad_norm() if clips else 0.0
        hyper = self._hyper(work)
        for index in mine:
            if not self._undo_free():
                return False
            self._one(work, index, norm, hyper, records)
        self.board.put(cells.R_STEP, self.committed())
        return True

    def _normed(self, work: _Work, mine: Sequence[int]) -> bool:
        """Sum my slices for the norm of the whole; True once all are summed."""
        summed = self.board.summed()
        for index in mine:
            if summed[index] <= work.version:
                piece = self.space.layout.slices[index]
                total = self.slots.sum_of(piece)
                self._total(work, piece, total)
                self.board.publish_norm(index, work.version + 1, norm_of(total))
                self._count_time()
                self._controls.ring()
        return all(at > work.version for at in self.board.summed())

    def _total(self, work: _Work, piece: Slice, out: Tensor) -> None:
        """The gradient of a docket over one slice of mine, which is still at the version that the docket is for."""
        drift = None
        share = work.share
        if self.staleness.compensates and share.stale:
            drift = Drift(share.stale, self.staleness.compensation, self.optimizer.parameters)
        self.push_slots.total(piece, share.pushes, share.load, out, drift)

    def _one(
        self, work: _Work, index: int, norm: float, hyper: list[dict[str, Any]], records: dict[Taken, Record]
    ) -> None:
        optimizer = self.optimizer
        piece = self.space.layout.slices[index]
        gradient = optimizer.scratch(piece)
        if work.pushes:
            if work.clip[0] > 0.0:
                torch.mul(self.slots.sum_of(piece), clip_scale(work.clip[0], norm), out=gradient)
            else:
                self._total(work, piece, gradient)
            if work.clip[1] > 0.0:
                gradient.clamp_(-work.clip[1], work.clip[1])
            if self.finite and not finite(gradient):
                raise self._bad(work, index)
        self._begin_change(index, work.version)
        if index == 0:
            self._note(work, norm, records)
        if work.pushes:
            optimizer.apply(index, hyper[piece.group], self.push_slots.absent(work.pushes))
        self._end_change(index, work.version)

    def _note(self, work: _Work, norm: float, records: dict[Taken, Record]) -> None:
        """What a version gives besides parameters. By the owner of the first slice; doing it twice is harmless."""
        board, version = self.board, work.version
        counts = {push.lane: records[push].samples for push in work.pushes.values()}
        steps = {push.lane: push.step for push in work.pushes.values()}
        self.buffers.merge(version, sorted(counts), counts, steps)
        samples = board.step_facts(version).samples + sum(counts.values())
        loss = board.step_facts(version).loss
        if counts:
            heard = [records[push] for push in work.pushes.values()]
            loss = sum(record.loss * record.samples for record in heard) / sum(counts.values())
        board.put_step(version + 1, StepFacts(loss, samples, norm))
        ages.count(board.words, version, [records[push].version for push in work.pushes.values()])

    def _hyper(self, work: _Work) -> list[dict[str, Any]]:
        """The settings of the docket: its learning rate is the step's, times the share of the step that it takes."""
        return scaled(self._applied(self.pushes.base + work.newest), work.share.part)

    def _clipping_of(self, records: dict[Taken, Record]) -> tuple[float, float]:
        asked = {(record.clip_norm, record.clip_value) for record in records.values() if record.samples}
        if len(asked) > 1:
            raise NotExact(
                f"lanes that are summed together asked for clipping to (norm, value) = {sorted(asked)} (0: none)",
                "Clip with the same number in every unit.",
            )
        return next(iter(asked), (0.0, 0.0))

    def _bad(self, work: _Work, index: int) -> NonFinite:
        names = self.space.within(self.space.layout.slices[index])
        moved = ", before it was compensated" * (self.staleness.compensates and bool(work.share.stale))
        name = f"The gradient of {names} for version {work.version + 1}"
        units = [unit for push in work.pushes.values() for unit in self.units_of(push)]
        return NonFinite.in_units(f"{name} is not finite, though each push of it was{moved}", units, self.samples_of)

    def units_of(self, push: Taken) -> list[tuple[int, int]]:
        """The units (step of the run, lane) that a push is of, the newest first."""
        return [(self.pushes.base + push.step, push.lane)]


@dataclass(frozen=True, slots=True)
class _Work:
    """A docket, ready to be applied."""

    version: int
    share: Share
    newest: int  #: step of the pass
    clip: tuple[float, float]

    @property
    def pushes(self) -> dict[int, Taken]:
        """Lane -> push, of those that have samples."""
        return self.share.pushes
