"""An owner's part in relaxed modes: take slices from one version to the next, by a commit set.

Which pushes that takes is written down already (`core.sync.modes.commit_set`), and what they count follows from it
(`core.sync.weights`). So whoever applies a commit set, or takes over from one who died in it, comes to the same: slice
by slice, with the undo record of an exact step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from holdfast.core.slices import Slice
from holdfast.core.sync.modes import Mode, TakenPush
from holdfast.core.sync.staleness import Staleness
from holdfast.core.sync.weights import Given, VersionShare, share_of
from holdfast.dataplane.memory import board as cells
from holdfast.dataplane.memory.board import StepFacts
from holdfast.dataplane.reduce.finite import finite
from holdfast.dataplane.reduce.member import Member, clip_scale, norm_of
from holdfast.dataplane.reduce.partial_step import scaled
from holdfast.dataplane.relaxed import ages
from holdfast.dataplane.relaxed.push_gradients import Drift, PushGradients
from holdfast.dataplane.relaxed.pushes import Pushes, PushRecord
from holdfast.errors import NonFinite, NotExact

__all__ = ["RelaxedOwner"]


class RelaxedOwner(Member):
    """A member that applies commit sets to its slices. Lanes and passes are `RelaxedMember`'s."""

    mode: Mode
    staleness: Staleness
    pushes: Pushes
    push_gradients: PushGradients
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
        taken = self.pushes.commit_set(version)
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
                total = self.gradients.sum_of(piece)
                self._total(work, piece, total)
                self.board.publish_norm(index, work.version + 1, norm_of(total))
                self._count_time()
                self._controls.ring()
        return all(at > work.version for at in self.board.summed())

    def _total(self, work: _Work, piece: Slice, out: Tensor) -> None:
        """The gradient of a commit set over one slice of mine, which is still at the version that the set is for."""
        drift = None
        share = work.share
        if self.staleness.compensates and share.stale:
            drift = Drift(share.stale, self.staleness.compensation, self.optimizer.parameters)
        self.push_gradients.total(piece, share.pushes, share.load, out, drift)

    def _one(
        self, work: _Work, index: int, norm: float, hyper: list[dict[str, Any]], records: dict[TakenPush, PushRecord]
    ) -> None:
        optimizer = self.optimizer
        piece = self.space.layout.slices[index]
        gradient = optimizer.scratch(piece)
        if work.pushes:
            if work.clip[0] > 0.0:
                torch.mul(self.gradients.sum_of(piece), clip_scale(work.clip[0], norm), out=gradient)
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
            optimizer.apply(index, hyper[piece.group], self.push_gradients.absent(work.pushes))
        self._end_change(index, work.version)

    def _note(self, work: _Work, norm: float, records: dict[TakenPush, PushRecord]) -> None:
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
        """The settings of the commit set: its learning rate is the step's, times its share of the step."""
        return scaled(self._applied(self.pushes.base + work.newest), work.share.part)

    def _clipping_of(self, records: dict[TakenPush, PushRecord]) -> tuple[float, float]:
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
        lanes = {push: range(lane, lane + self.pushes.record(lane).lanes) for lane, push in work.pushes.items()}
        whose = [TakenPush(lane, push.step) for push in lanes for lane in lanes[push]]
        units = [unit for push in whose for unit in self.units_of(push)]
        return NonFinite.in_units(f"{name} is not finite, though each push of it was{moved}", units, self.samples_of)

    def units_of(self, push: TakenPush) -> list[tuple[int, int]]:
        """The units (step of the run, lane) that a push is of, the newest first."""
        return [(self.pushes.base + push.step, push.lane)]


@dataclass(frozen=True, slots=True)
class _Work:
    """A commit set, ready to be applied."""

    version: int
    share: VersionShare
    newest: int  #: step of the pass
    clip: tuple[float, float]

    @property
    def pushes(self) -> dict[int, TakenPush]:
        """Lane -> push, of those that have samples."""
        return self.share.pushes
