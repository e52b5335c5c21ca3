"""Binding: a worker's model and optimizer moved into the arena, and its place in the crew.

Built once per process, at the script's first collective operation. The first worker of a run fills the
arena from its own weights; every other one drops its weights and looks at the arena's. How lanes keep step may change
while the run is going (see `boundary`); then the worker gets another member, over the same memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from torch import nn

from holdfast.checkpoint.capture import restore
from holdfast.checkpoint.ended_trainings import EndedTraining
from holdfast.config.run_config import board_rows
from holdfast.control.membership import blueprint
from holdfast.control.membership.blueprint import Part
from holdfast.control.protocol import messages as say
from holdfast.core.placement import bundled
from holdfast.core.roles import Assignment
from holdfast.core.sync.modes import Mode, parse
from holdfast.core.sync.staleness import Staleness
from holdfast.core.sync.weights import parted
from holdfast.dataplane.memory import board as cells
from holdfast.dataplane.memory import manifest
from holdfast.dataplane.memory.arena import Arena, PrivateSection, Sections
from holdfast.dataplane.memory.arena_view import ArenaView
from holdfast.dataplane.memory.board import Board, ModeRecord
from holdfast.dataplane.memory.sections import lay_out, lay_out_mode, measure, passing
from holdfast.dataplane.memory.space import Space, dtype_name, typed
from holdfast.dataplane.reduce import optimizer
from holdfast.dataplane.reduce.buffers import Buffers
from holdfast.dataplane.reduce.gradients import LaneGradients
from holdfast.dataplane.reduce.member import Member
from holdfast.dataplane.reduce.optimizer import SliceOptimizer
from holdfast.dataplane.reduce.partial_step import wholly
from holdfast.dataplane.reduce.schema import Schemas, optimizer_parts, probe
from holdfast.dataplane.reduce.step_gradient import StepGradient
from holdfast.dataplane.relaxed.inner_state import InnerState, state_bytes
from holdfast.dataplane.relaxed.local_sgd import LocalMember, outer_optimizer
from holdfast.dataplane.relaxed.push_gradients import PushGradients
from holdfast.dataplane.relaxed.pushes import Pushes
from holdfast.dataplane.relaxed.relaxed_member import RelaxedMember
from holdfast.errors import ConfigError
from holdfast.train import evaluation
from holdfast.train.control_link import Alone, ControlLink
from holdfast.train.loop.keeping import Keeping
from holdfast.train.loop.optimizer_settings import Settings
from holdfast.train.loop.scalers import Scalers
from holdfast.train.loss_reduction import SUM, LossCheck
from holdfast.train.numerics import golden, numerics

__all__ = ["Binding", "CrewSettings", "check_parts"]


class CrewSettings(Protocol):
    """What a binding needs to know of its run."""

    lanes: int
    seed: int
    finite: bool
    reduction: str  #: of losses and lanes' gradients (`loss_reduction`)
    verify: float | None  #: in which share of the steps a unit is computed twice
    worker: int
    row: int
    steered: ControlLink | None  #: None in a run of one process
    past: EndedTraining | None  #: a training that is over, and was made by others
    mode: Mode  #: with which the run was started
    scalers: Scalers
    outer: tuple[float, float]  #: learning rate and momentum of the step after local ones

    @property
    def losses(self) -> LossCheck:
        """Looks at the losses of units."""

    def staleness(self, mode: Mode) -> Staleness:
        """What becomes of stale pushes in this mode."""

    def audit(self, order: int, step: int, lane: int, ids: Sequence[int]) -> None:
        """Note which samples a unit used."""

    def audit_came(self, step: int, lanes: Sequence[int]) -> None:
        """Note of which shares a step of a plain loop consists."""

    def set_threads(self, *, own: bool) -> None:
        """Compute with the script's `own` number of threads, or with that of the run's configuration."""


class Binding:
    """The arena as this worker uses it."""

    def __init__(
        self, crewing: CrewSettings, models: Sequence[nn.Module], user: torch.optim.Optimizer, space: Space,
        settings: Settings, keeping: Keeping, facts: Sequence[Part],
    ) -> None:  # fmt: skip
        self._crewing, self._space, self.settings, self.keeping = crewing, space, settings, keeping
        self._steered = crewing.steered
        rows = board_rows(crewing.lanes)
        mode = crewing.mode
        schemas = _schemas(space, user)
        check_parts(user, crewing)  # again: what it is made with may be another thing since
        self._user, self._schemas = user, schemas
        self._outer = outer_optimizer(user, *crewing.outer)  # what owners run with local steps
        self._outer_schemas = _alike(space, self._outer, schemas)
        self._sizes = optimizer.state_sizes(space, schemas)
        outer = optimizer.state_sizes(space, self._outer_schemas)
        outer["undo"] = optimizer.undo_bytes(space, self._outer_schemas) * rows
        reads = crewing.staleness(parse("async")).compensates
        self._room = space.room(crewing.lanes, reads=reads)._replace(state=state_bytes(self._sizes), outer=outer)
        self._fixed_tensors = [*space.fixed, *(buffer for _, buffer in space.kept_buffers)]
        self._own: dict[int, PrivateSection] = {}  # of the fixed tensors that the script may change, as it sees them
        fixed = [tensor.numel() * tensor.element_size() for tensor in self._fixed_tensors]
        undo = optimizer.undo_bytes(space, schemas)
        sizes = measure(space, self._room, rows, state=self._sizes, undo=undo, fixed=fixed, kept=keeping.nbytes())
        sections = lay_out(sizes, mode)
        kinds = optimizer.state_kinds(space, schemas)
        self._manifest = manifest.add_section(sections, space, self._room, rows, relaxed=not mode.exact, kinds=kinds)
        self.late = False
        self._stop_at: int | None = None
        self._wanted, self._turn_at = mode.name, 0
        self._fd = -1
        welcome, arena = self._arena(sections, user, schemas, facts)
        self.arena = self._mode_sections = arena
        self.pace = ModeRecord(0, mode.name)  #: how this worker keeps step
        self.mode = mode
        self.extra = 0  #: versions so far beyond one a step (`StepFacts.extra`)
        self.rebound: Callable[[], None] = lambda: None  #: called when there is another member
        self.board = Board(arena.section("board"), crewing.lanes, rows, len(space.layout.slices))
        self._script = SliceOptimizer(user, space, schemas, arena.section, rows)
        self.optimizer = self._owners()  #: what the owners of slices run
        self.buffers = Buffers(models, space, arena, crewing.lanes)
        self.evaluation = evaluation.Table(arena)
        controls = self._steered or Alone()
        self.controls: Alone | ControlLink = controls
        self._gradients = LaneGradients(space, arena, self.board)
        self.member = self._new_member()
        self._seeds = welcome is None or welcome.seed

    def enter(self) -> None:
        """Fill the arena or look at it; then take a place in the crew."""
        if self._seeds:
            self._seed()
        manifest.write_manifest(self.arena, self.board, self._manifest)
        self.board.claim(self._crewing.row, self._crewing.worker, os.getpid())
        if self._crewing.past is not None:
            found = manifest.read_manifest(self.arena.memory)
            assert found is not None
            restore(self._crewing.past.checkpoint, ArenaView(self.arena.memory, found))
        if not self.catch_up():
            self._look()
        self.settings.attach(self.arena, self._crewing.row)
        self.keeping.attach(self.arena)
        if self._steered is None:
            lanes = self._crewing.lanes
            self.member.guarded = False
            self.member.install(0, Assignment([0], [self._crewing.row], [0] * lanes))
            if self._crewing.past is not None:
                self._come_late()
            return
        if self._seeds:
            self._steered.seeded()
        if self._crewing.reduction == SUM:
            why = "the script adds up lanes (reduction = sum), and in other modes a push counts by its samples"
            self._steered.send(say.StaysExact(self._crewing.worker, why))
        self._steered.installed = self._installed
        self._steered.cluster_hosts(self._ready)
        self._come_late()

    def _come_late(self) -> None:
        """Take over what others have made, if they have."""
        self.late = self.board.op()[0] >= 0 or self.board.epoch()[0] >= 0
        self.buffers.load(min(self.board.versions()), everything=True)

    @property
    def steered(self) -> ControlLink:
        """What steers this worker; an error of ours in a run of one process."""
        assert self._steered is not None
        return self._steered

    @property
    def version(self) -> int:
        """The version that is published as a whole."""
        return self.member.version

    @property
    def ahead(self) -> int:
        """How many more versions than steps there are, where lanes keep step exactly."""
        return self.pace.version - self.pace.step + (self.extra if self.mode.exact else 0)

    @property
    def relaxed(self) -> RelaxedMember | None:
        """The member in relaxed modes; None in exact training."""
        return self.member if isinstance(self.member, RelaxedMember) else None

    def stopping(self, step: int) -> bool:
        """Has the run been asked to end before this step? Where lanes are at several, as soon as may be."""
        return self._stop_at is not None and (self.relaxed is not None or step + self.ahead >= self._stop_at)

    # ------------------------------------------------------------ ways of keeping step

    @property
    def mode_changing(self) -> bool:
        """Is the mode to change at the next step boundary?"""
        return self._wanted != self.mode.name

    def due(self, step: int) -> bool:
        """Do lanes that keep step exactly change the mode before this step?"""
        return self.mode_changing and step + self.ahead >= self._turn_at

    def catch_up(self) -> bool:
        """Take up the mode that counts. False: it is the one that I have."""
        pace = self.board.pace()
        if pace is None or pace.serial == self.pace.serial:
            return False
        before = self.member
        self.pace, self.mode = pace, parse(pace.sync)
        sections = lay_out_mode(self._room, self.mode)
        self._mode_sections = Arena(sections, fd=self._fd, begin=pace.begin) if pace.size else self.arena
        self.optimizer = self._owners()
        self.member = self._new_member()
        self.member.at, self.member.guarded = before.at, before.guarded
        self.member.facts, self.extra = self.board.step_facts(pace.version), 0
        self._look()
        self.rebound()
        return True

    def _owners(self) -> SliceOptimizer:
        """The script's optimizer; with local steps lanes run that by themselves, and the owners another one."""
        if not self.mode.rounds:
            return self._script
        outer = self._mode_sections.section

        def section(name: str) -> memoryview:
            return self.arena.section(name) if name.startswith("parameters/") else outer(f"outer/{name}")

        return SliceOptimizer(self._outer, self._space, self._outer_schemas, section, self.board.num_rows)

    def _lanes_state(self) -> InnerState:
        """What lanes' optimizers keep, with local steps."""
        annexed = self._mode_sections.section
        return InnerState(
            lambda name: (annexed if passing(name) else self.arena.section)(name), self._sizes
        )

    def _new_member(self) -> Member:
        kind = Member if self.mode.exact else LocalMember if self.mode.rounds else RelaxedMember
        member = kind(self._space, self.board, self._gradients, self.optimizer, self.buffers, self.controls)
        member.finite, member.sums = self._crewing.finite, self._crewing.reduction == SUM
        return member

    def isolate(self) -> None:
        """From now on nobody sees what this process writes: for a forked copy of a worker."""
        for arena in {id(arena): arena for arena in (self.arena, self._mode_sections)}.values():
            arena.isolate()

    def count_extra(self) -> None:
        """Note how many versions the run has made beyond one a step. Valid while nobody makes the next one."""
        if self.mode.exact:
            self.extra = self.board.step_facts(self.version).extra

    def seed_again(self) -> None:
        """Take over what the script's own optimizer has come to, in a run of one process."""
        self._script.seed()
        self.buffers.seed()
        self._show(self._space.views(self.optimizer.parameters))
    def steps_of(self, version: int) -> int:
        """How many steps led to this version, the newest one or the one before it, where lanes keep step exactly."""
        return version - (self.pace.version - self.pace.step) - self.board.step_facts(version).extra

    def by_steps(self) -> StepGradient:
        """The script takes its turns by steps from now on. Returns its view of their gradients."""
        if self.member.whole is None:
            self.member.whole = StepGradient(self._space, self.arena)
        return self.member.whole

    def ops(self) -> Iterator[tuple[int, int]]:
        """(member, newest operation it entered)."""
        for member, row in self.member.rows():
            yield member, self.board.cell(row, cells.R_OP)

    def line(self, worker: int) -> int:
        """The line of the script at which a member has begun its newest operation, or ended its newest step."""
        return self.board.cell(self.member.at.rows[worker], cells.R_LINE)

    def _arena(
        self, sections: Sections, user: torch.optim.Optimizer, schemas: Schemas, facts: Sequence[Part]
    ) -> tuple[say.Welcome | None, Arena]:
        if self._steered is None:
            return None, Arena(sections)
        crewing = self._crewing
        parts = [*facts, *_parts(crewing), *optimizer_parts(user, schemas), *self._space.parts()]
        push = sum(self._room.flats.values())
        sizes = bundled([piece.nbytes for piece in self._space.layout.slices])
        self._ready = say.Ready(
            crewing.worker, numerics(), golden(), blueprint.fingerprint(parts), sections.size, crewing.lanes, push,
            sizes, blueprint.pack(parts), len(parts), self._room.state, wholly(user),
        )  # fmt: skip
        welcome, fd = self._steered.enlist(self._ready)
        self._fd = fd  # kept: another mode may need more of it
        return welcome, Arena(sections, fd=fd)

    def _installed(self, install: say.Install) -> None:
        assert self._steered is not None
        here = install.hosts[install.members.index(self._crewing.worker)]
        # The state may be on its way from another host. Who is asked to pause meanwhile says so, and waits again.
        fetches = here in install.sources or install.donor >= 0
        if fetches and not self._steered.attend(lambda: self.board.current() >= install.generation):
            return
        self.catch_up()
        self._wanted, self._turn_at = install.sync, install.turn
        if self.relaxed is not None:
            self.relaxed.settle(self.mode_changing, install.turn)
            if install.stop:
                self.relaxed.stop()
        self.member.install(self._crewing.worker, install.assignment(len(self._space.layout.slices)))
        if install.stop and self._stop_at is None:
            self._stop_at = install.stop

    def _seed(self) -> None:
        self.board.format()
        self._script.seed()
        self.buffers.seed()
        for index, tensor in enumerate(self._fixed_tensors):
            self._fixed(index, tensor).copy_(tensor.detach())

    def _look(self) -> None:
        """Let the model's parameters be windows into the arena, or into a copy of it where others may change it."""
        mode = self.mode
        if self.relaxed is not None:
            lanes = self._crewing.lanes
            self.relaxed.set_pace(
                mode, self._crewing.staleness(mode), Pushes(self._mode_sections.section("pushes"), lanes),
                PushGradients(self._space, self._mode_sections, lanes), self.settings.applied,
            )
            if self._stop_at is not None:
                self.relaxed.stop()
        if isinstance(self.member, LocalMember):
            self.member.set_inner(self._user, self._schemas, self._lanes_state(), self._outer, self._show)
        self._show(self._space.views(self.optimizer.parameters if self.relaxed is None else self.relaxed.parameters))
        still = {id(parameter) for parameter in self._space.still}
        for index, tensor in enumerate(self._fixed_tensors):
            if id(tensor) in still:
                tensor.data = self._fixed(index, tensor)
            elif index not in self._own:
                self._own[index] = self.arena.copied_on_write(f"fixed/{index}")
                tensor.data = self._fixed(index, tensor, self._own[index].memory)

    def _show(self, views: Sequence[torch.Tensor]) -> None:
        for parameter, window in zip(self._space.trainable, views, strict=True):
            parameter.data = window
            parameter.grad = None

    def renew_kept(self) -> None:
        """Let what is prepared and not trained be what the first worker began with."""
        for index, section in self._own.items():
            section.renew()
            self._fixed_tensors[index].data = self._fixed(index, self._fixed_tensors[index], section.memory)

    def _fixed(self, index: int, tensor: torch.Tensor, memory: memoryview | None = None) -> torch.Tensor:
        if tensor.numel() == 0:
            return tensor.detach()
        flat = typed(self.arena.section(f"fixed/{index}") if memory is None else memory, tensor.dtype)
        return flat[: tensor.numel()].view(tensor.shape)


def check_parts(optimizer: torch.optim.Optimizer, crewing: CrewSettings) -> None:
    """Refuse an optimizer that takes whole steps only, where the mode that the run was started with takes parts."""
    mode = crewing.mode
    what = parted(mode, crewing.lanes)
    why = wholly(optimizer) if what else ""
    if not why:
        return
    raise ConfigError(
        "sync", mode.name, f"{what}, which is a step with a smaller lr, and {why}", source="holdfast run",
        fix="Use --sync exact or local:16, or an optimizer that moves by its lr, as SGD and Adam do.",
    )  # fmt: skip


def _parts(crewing: CrewSettings) -> list[Part]:
    """What two workers must agree on besides what the script has built."""
    mode = crewing.mode
    stale = [] if mode.exact else [("stale pushes", str(crewing.staleness(mode)))]
    reduced = [("reduction", crewing.reduction)]
    return [("number of lanes", str(crewing.lanes)), ("seed", str(crewing.seed)), ("sync", mode.name), *reduced, *stale]


def _schemas(space: Space, optimizer: torch.optim.Optimizer) -> Schemas:
    kinds = dict.fromkeys((group, p.dtype) for p, group in zip(space.trainable, space.groups, strict=True))
    return {(group, dtype_name(dtype)): probe(optimizer, group, dtype) for group, dtype in kinds}


def _alike(space: Space, optimizer: torch.optim.Optimizer, schemas: Schemas) -> Schemas:
    """The same for one that treats all groups alike: it is tried once for each type of parameters."""
    first = {name: group for group, name in reversed(schemas)}
    kinds = {name: probe(optimizer, group, space.dtypes[name]) for name, group in first.items()}
    return {(group, name): kinds[name] for group, name in schemas}
