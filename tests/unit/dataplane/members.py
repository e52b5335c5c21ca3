"""Several workers over one arena in one process, stepped by hand: whoever would wait, says so instead."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.config.run_config import board_rows
from holdfast.core.placement import unbundled
from holdfast.core.roles import Assignment
from holdfast.core.sync.modes import EXACT
from holdfast.dataplane.memory import board as cells
from holdfast.dataplane.memory import manifest
from holdfast.dataplane.memory.arena import Arena
from holdfast.dataplane.memory.board import Board
from holdfast.dataplane.memory.sections import lay_out, measure
from holdfast.dataplane.memory.space import Space, dtype_name
from holdfast.dataplane.reduce import optimizer
from holdfast.dataplane.reduce.buffers import Buffers
from holdfast.dataplane.reduce.gradients import LaneGradients
from holdfast.dataplane.reduce.member import Member
from holdfast.dataplane.reduce.optimizer import SliceOptimizer
from holdfast.dataplane.reduce.schema import pin, probe
from holdfast.dataplane.reduce.work import StepWork, UnitResult
from holdfast.dataplane.relaxed.inner_state import state_bytes

LANES = 4
ROWS = board_rows(LANES)


class WouldWait(Exception):
    """This worker has nothing to do until another has done its part."""


class Killed(Exception):
    """This worker is gone, in the middle of what it did."""


class ByHand:
    """Controls of a worker that is stepped from outside."""

    pausing = False

    def look(self) -> None:
        """Nobody speaks."""

    def rest(self, step: int) -> None:
        raise AssertionError("nobody asked for rest")

    def wait(self, changed: Callable[[], bool]) -> None:
        raise WouldWait

    def ring(self) -> None:
        """The others are asked in turn anyway; who carries to other hosts is told."""
        self.rung()

    def rung(self) -> None:
        """Replaced where there are other hosts."""


def model_of() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(4)
        return nn.Sequential(nn.Linear(6, 20), nn.BatchNorm1d(20), nn.Tanh(), nn.Linear(20, 30), nn.Linear(30, 1))


def groups(model: nn.Module) -> list[dict[str, Any]]:
    """A parameter group, and so a slice, for each layer."""
    return [{"params": list(layer.parameters())} for layer in model.children() if any(True for _ in layer.parameters())]


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(groups(model), lr=0.01)


class Worker:
    """One worker's objects over an arena. The first one (no `arena`) makes and fills it.

    With `empty`, the arena is not filled: its host fetches the state.
    """

    def __init__(
        self, worker: int, row: int, arena: Arena | None = None, make: Callable[[nn.Module], Any] = adam,
        clip: float = 0.0, empty: bool = False,
    ) -> None:  # fmt: skip
        self.worker, self.clip = worker, clip
        self.model = model_of()
        self.user = make(self.model)
        pin(self.user)
        self.space = Space([self.model], self.user)
        schemas = {
            (group, dtype_name(p.dtype)): probe(self.user, group, p.dtype)
            for p, group in zip(self.space.trainable, self.space.groups, strict=True)
        }
        self.schemas = schemas
        count = len(self.space.layout.slices)
        kinds, state = optimizer.state_kinds(self.space, schemas), optimizer.state_sizes(self.space, schemas)
        self.room = self.space.room(LANES)._replace(state=state_bytes(state), outer={"ready": 8, "undo": 64})
        undo = optimizer.undo_bytes(self.space, schemas)
        sections = lay_out(measure(self.space, self.room, ROWS, state=state, undo=undo), EXACT)
        self.manifest = manifest.add_section(sections, self.space, self.room, ROWS, kinds=kinds)
        self.arena = arena or Arena(sections)
        self.board = Board(self.arena.section("board"), LANES, ROWS, count)
        self.slices = SliceOptimizer(self.user, self.space, schemas, self.arena.section, ROWS)
        self.buffers = Buffers([self.model], self.space, self.arena, LANES)
        self.gradients = LaneGradients(self.space, self.arena, self.board)
        self.controls = ByHand()
        self.member = Member(self.space, self.board, self.gradients, self.slices, self.buffers, self.controls)
        if arena is None and not empty:
            self.board.format()
            self.slices.seed()
            self.buffers.seed()
        manifest.write_manifest(self.arena, self.board, self.manifest)
        for parameter, window in zip(self.space.trainable, self.space.views(self.slices.parameters), strict=True):
            parameter.data = window
        self.board.claim(row, worker, 1000 + worker)
        self.buffers.load(min(self.board.versions()), everything=True)
        self.member.hyper = [{k: v for k, v in g.items() if k != "params"} for g in self.user.param_groups]
        self.units: list[tuple[int, int]] = []
        self.meddle: Callable[[Sequence[nn.Parameter]], None] = lambda _: None  #: what a script does after backward
        for index, parameter in enumerate(self.space.trainable):
            parameter.register_post_accumulate_grad_hook(lambda _, index=index: self.member.came(index))

    def turn(self, work: StepWork) -> str:
        """Act once: "computed" a unit, would "wait", or the step is "done"."""
        try:
            lane = self.member.next_lane(work)
        except WouldWait:
            return "wait"
        if lane is None:
            return "done"
        self.buffers.load(work.version)
        source = torch.Generator().manual_seed(100 * work.step + lane)
        x = torch.randn(work.counts[lane], 6, generator=source)
        self.model.zero_grad()
        self.member.begin(lane)
        loss = (self.model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        self.meddle(self.space.trainable)
        gradients: list[Tensor | None] = [p.grad for p in self.space.trainable]
        self.member.fill(lane, gradients, UnitResult(loss.item(), self.clip, 0.0))
        self.member.show(lane)
        self.units.append((work.step, lane))
        return "computed"

    def through(self, step: int) -> bool:
        """Has this worker gone on from a step? Its host may have, before it notices."""
        return self.board.cell(self.board.row, cells.R_STEP) > step

    def state(self) -> bytes:
        """All that was decided: parameters, optimizer state, buffers."""
        parts = [*self.slices.parameters.values(), *self.slices._arrays.values(), self.slices._ready]
        parts += [buffer for _, buffer in self.space.buffers]
        return b"".join(part.detach().reshape(-1).view(torch.uint8).numpy().tobytes() for part in parts)


def work_of(step: int, counts: tuple[int, ...] = (3, 3, 3, 3)) -> StepWork:
    return StepWork(step, tuple(lane for lane, count in enumerate(counts) if count), counts)


def install(
    workers: Sequence[Worker], driver: Sequence[int], servers: Sequence[int] = (), runs: Sequence[tuple[int, int]] = ()
) -> None:
    """A new generation of these workers."""
    for each in workers:
        members = [w.worker for w in workers]
        rows = [w.board.row for w in workers]
        given = unbundled(runs, len(each.member.space.layout.slices)) if runs else ()
        each.member.install(each.worker, Assignment(members, rows, driver, servers=servers, owners=given))


def step(workers: Sequence[Worker], work: StepWork, chance: random.Random | None = None) -> None:
    """Take all workers through one step, by turns or in a random order."""
    left = list(workers)
    for count in range(1000):
        one = chance.choice(left) if chance is not None else left[count % len(left)]
        if one.turn(work) == "done":
            left.remove(one)
        if not left:
            return
    raise AssertionError("the step does not come to its end")
