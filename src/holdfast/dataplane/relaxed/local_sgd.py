"""Local steps: each lane trains by itself for some steps, then all lanes exchange what they have learned (DiLoCo).

A *round* of a lane begins with the published parameters. Each of its units takes a step of the script's own optimizer
on the lane's own parameters, with state that belongs to the lane. At the round's end the lane pushes how far it has
gone, as if that were a gradient, and the owners take one outer step with it: SGD with Nesterov momentum on the mean of
all lanes.

A round is a pure function of the published parameters and the lane's state as the round began, which lies in shared
memory, in two places that take turns (`inner_state`). So whoever takes a lane over in the middle of a round begins it
again, and the result is the same, as in exact training.

When the mode is to change, the round at hand is made to its end, by all lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from holdfast.core.roles import Assignment
from holdfast.core.shares import Share
from holdfast.core.sync.modes import Clocks, HeldBack, TakenPush, held_back
from holdfast.dataplane.memory.arena import Arena, Sections
from holdfast.dataplane.memory.space import Space
from holdfast.dataplane.reduce import optimizer as slices
from holdfast.dataplane.reduce.finite import unclean
from holdfast.dataplane.reduce.member import clip_scale
from holdfast.dataplane.reduce.optimizer import SliceOptimizer
from holdfast.dataplane.reduce.schema import Schema
from holdfast.dataplane.reduce.work import UnitResult
from holdfast.dataplane.relaxed.inner_state import InnerState
from holdfast.dataplane.relaxed.pushes import PushRecord
from holdfast.dataplane.relaxed.relaxed_member import RelaxedMember
from holdfast.errors import NonFinite

__all__ = ["LocalMember", "outer_optimizer"]


def outer_optimizer(user: torch.optim.Optimizer, lr: float, momentum: float) -> torch.optim.Optimizer:
    """What the owners run, over the same groups of parameters."""
    groups = [{"params": group["params"]} for group in user.param_groups]
    return torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=momentum > 0.0)


class _Lane:
    """A lane's own parameters and optimizer, while it is in a round here."""

    def __init__(self, user: torch.optim.Optimizer, space: Space, schemas: dict[tuple[int, str], Schema]) -> None:
        sections = Sections()
        sizes = {f"parameters/{name}": size for name, size in space.room(1).flats.items()}
        sizes |= {**slices.state_sizes(space, schemas), "undo": slices.undo_bytes(space, schemas)}
        for name, size in sizes.items():
            sections.add(name, size)
        self._space, self._arena = space, Arena(sections)
        self.optimizer = SliceOptimizer(user, space, schemas, self._arena.section, 1)
        self.views = space.views(self.optimizer.parameters)
        self.unit = -1  #: of the round, the next one; -1: it is in none
        self.loss, self.samples = 0.0, 0
        self.buffers: list[Tensor] = []  #: as its last unit left them

    def begin(self, published: dict[str, Tensor], state: Mapping[str, memoryview]) -> None:
        """A round begins, with these parameters and this state."""
        for name, flat in self.optimizer.parameters.items():
            flat.copy_(published[name])
        for name, data in state.items():
            self._arena.section(name)[:] = data
        self.optimizer.forget()
        self.unit, self.loss, self.samples, self.buffers = 0, 0.0, 0, []

    def step(self, gradients: Sequence[Tensor | None], hyper: list[dict[str, Any]]) -> None:
        """One step of the script's optimizer."""
        absent = frozenset(index for index, gradient in enumerate(gradients) if gradient is None)
        for piece in self._space.layout.slices:
            scratch = self.optimizer.scratch(piece)
            scratch.zero_()
            for part in piece.pieces:
                gradient = gradients[part.entry]
                if gradient is not None:
                    flat = gradient.detach().reshape(-1)[part.offset : part.offset + part.stop - part.start]
                    scratch[part.start - piece.start : part.stop - piece.start] = flat
            if any(part.entry not in absent for part in piece.pieces):
                self.optimizer.apply(piece.index, hyper[piece.group], absent)

    def save(self, state: Mapping[str, memoryview]) -> None:
        """Leave the state for the next round, whoever makes it."""
        for name, place in state.items():
            place[:] = self._arena.section(name)


class LocalMember(RelaxedMember):
    """This worker as a member of a crew whose lanes train by themselves between exchanges."""

    def set_inner(
        self, user: torch.optim.Optimizer, schemas: dict[tuple[int, str], Schema], inner: InnerState,
        outer: torch.optim.Optimizer, show: Callable[[Sequence[Tensor]], None],
    ) -> None:  # fmt: skip
        """`user` is the script's optimizer; `show` lets the model look at other parameters."""
        self._user, self._schemas, self._inner, self._show_model = user, schemas, inner, show
        self._outer = [{k: v for k, v in group.items() if k != "params"} for group in outer.param_groups]
        self._lanes: dict[int, _Lane] = {}
        self._published = self.space.views(self.parameters)

    def install(self, worker: int, crew: Assignment) -> None:
        """Take my place in a new generation. Rounds of lanes that are not mine any more are forgotten."""
        super().install(worker, crew)
        self._lanes = {lane: one for lane, one in self._lanes.items() if self.drives(lane)}

    def settle(self, mode_changing: bool, turn: int) -> None:
        """The mode is to change before version `turn` at the latest: every round is a version. Or it is not to."""
        super().settle(mode_changing, turn)
        while mode_changing and not self._stopping:
            version = self.version
            self._limit = self.pushes.made(version) + max(0, turn - version)
            if self.version == version:  # else those who act already have gone on between the two looks
                return

    def steps_of(self, pushes: int) -> int:
        """Steps of the pass that a lane has made with so many pushes: it may have begun in another mode."""
        return min(self.pushes.resumed + pushes * self.mode.inner, self.pushes.total)

    def units_of(self, push: TakenPush) -> list[tuple[int, int]]:
        """The units of a round, the newest first: that is the most likely one to have gone too far."""
        steps = range(self.steps_of(push.step), self.steps_of(push.step + 1))
        return [(self.pushes.base + step, push.lane) for step in reversed(steps)]

    # ------------------------------------------------------------ units

    def _choose(self, clocks: Clocks) -> tuple[int, Share] | HeldBack | None:
        """My lanes take turns, unit by unit, so that they are at the same step and schedules mean what they mean.

        A unit is one lane's: it has parameters of its own.
        """
        found: list[tuple[int, int]] = []
        first: HeldBack | None = None
        for lane in self.driven():
            one, round_ = self._lanes.get(lane), clocks.pushed[lane]
            if round_ >= clocks.steps:
                continue
            if one is not None and one.unit >= 0:
                found.append((self.steps_of(round_) + one.unit, lane))
            else:
                held = held_back(self.mode, clocks, lane)
                first = first or held
                if held is None:
                    found.append((self.steps_of(round_), lane))
        if not found:
            return first
        step, lane = min(found)
        return step, Share(lane, lane + 1)

    def _lane(self, lane: int) -> _Lane | None:
        """The lane, in a round; None where that cannot begin yet, see `pull`."""
        one = self._lanes.get(lane)
        if one is None:
            one = self._lanes[lane] = _Lane(self._user, self.space, self._schemas)
        if one.unit < 0:
            if not self.pull():
                return None
            one.begin(self.parameters, self._inner.at(lane, self.version))
        return one

    def _open(self, step: int, share: Share) -> bool:
        one = self._lane(share.first)
        if one is None:
            return False
        if not self._samples(step, share):  # the lane goes on without
            self._end_unit(share.first, one)
            return False
        self._fresh = not one.buffers
        if self._fresh:
            self.buffers.distrust()  # what they are now is another lane's
        else:
            self.buffers.put(one.buffers)
        self._show_model(one.views)
        return True

    @property
    def fresh(self) -> bool:
        """Is the unit at hand the first of its round?"""
        return self._fresh

    def fill(self, lane: int, gradients: Sequence[Tensor | None], result: UnitResult) -> None:
        """Take the step of the lane's own optimizer."""
        if self.finite:
            self.suspect()
        one = self._lanes[lane]
        samples = self.course_counts(self.steps_of(self.pushes.pushed(lane)) + one.unit)[lane]
        if result.clip_norm > 0.0 or result.clip_value > 0.0:
            _clip(gradients, result)
        one.step(gradients, self.hyper)
        one.loss += result.loss * samples
        one.samples += samples
        self.buffers.settle()
        one.buffers = self.buffers.copies()

    def show(self, lane: int) -> None:
        """The unit's user code is through."""
        self._end_unit(lane, self._lanes[lane])

    def _end_unit(self, lane: int, one: _Lane) -> None:
        """Push what the round has led to, if this was its last unit."""
        one.unit += 1
        round_, version = self.pushes.pushed(lane), self.version
        if one.unit < self.mode.inner and self.steps_of(round_) + one.unit < self._course.steps:
            return
        if one.buffers:
            self.buffers.put(one.buffers)
        else:  # it had no samples in the whole round
            self.buffers.distrust()
            self.buffers.load(version)
        self.buffers.record(lane, round_, version)
        gone = [was - now for was, now in zip(self._published, one.views, strict=True)]
        if self.finite and (bad := unclean(gone, whole=True)):
            what = f"Lane {lane}: {self.space.few(bad)} is not finite at the end of a round"
            raise NonFinite.in_units(what, self.units_of(TakenPush(lane, round_)), self.samples_of)
        self.push_gradients.fill(lane, gone)
        one.save(self._inner.after(lane, version))
        loss = one.loss / max(1, one.samples)
        self.pushes.push(lane, PushRecord(round_, version, one.samples, loss, 0.0, 0.0))
        one.unit = -1
        self._controls.ring()

    def _complete(self) -> bool:
        if not super()._complete():
            return False
        self._show_model(self._published)
        return True

    def _hyper(self, work: Any) -> list[dict[str, Any]]:
        return self._outer


def _clip(gradients: Sequence[Tensor | None], result: UnitResult) -> None:
    """By norm and by value, as torch does it: here a lane is alone with its gradient."""
    there = [gradient for gradient in gradients if gradient is not None]
    if result.clip_norm > 0.0:
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(gradient) for gradient in there]))
        torch._foreach_mul_(there, clip_scale(result.clip_norm, float(norm)))
    if result.clip_value > 0.0:
        for gradient in there:
            gradient.clamp_(-result.clip_value, result.clip_value)
