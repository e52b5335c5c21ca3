"""Training: the prepared model, optimizer and loaders, bound to the arena, and where the script stands.

The script drives; this module follows it. Its collective *operations* are the loops over a prepared
loader (passes) and the evaluations. They are numbered in the order in which the script makes them, and
the board shows the newest one that was begun, so a worker that joins late runs the script from its top
and skips what is already done: a finished pass yields nothing, a finished evaluation returns what it
returned then. With `run.epochs`, whole epochs are skipped.

A unit begins when the loop asks for a batch. Until it ends the parameters do not change, so what it does is a pure
function of (parameters, seed, step, lane). How units make up a step is the loops' business: `loop.steps` and
`loop.plain.share_turns`, in relaxed modes `loop.plain.passes`.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.data import DataLoader

from holdfast.data.batches import Batches, UnitRequest
from holdfast.data.randomness import after_key, compute_key, seed_everything
from holdfast.dataplane.memory import board as cells
from holdfast.dataplane.memory.board import StepFacts
from holdfast.dataplane.memory.results import NESTED
from holdfast.dataplane.memory.space import Space
from holdfast.dataplane.reduce import early
from holdfast.dataplane.reduce.finite import unclean
from holdfast.dataplane.reduce.schema import pin
from holdfast.dataplane.reduce.several_optimizers import each, owner
from holdfast.dataplane.reduce.work import StepWork, UnitResult
from holdfast.errors import NonFinite, NotExact, NotKept, UsageError
from holdfast.train.binding import Binding, CrewSettings, check_parts
from holdfast.train.control_link import ControlLink
from holdfast.train.loop.kept_modules import KeptModules
from holdfast.train.loop.optimizer_settings import Settings, find_schedulers
from holdfast.train.loop.plain.alone import AloneTurns, OwnOptimizer
from holdfast.train.loop.plain.passes import Pass
from holdfast.train.loop.plain.scheduler_steps import SchedulerSteps
from holdfast.train.loop.plain.share_turns import Alongside, ShareTurns
from holdfast.train.loop.script_position import FINISHED, NONE, STEPS, ScriptPosition, ordinal
from holdfast.train.loop.turns import Turns
from holdfast.train.loop.variables.script_values import script_line
from holdfast.train.patches import LossTap, take_optimizer
from holdfast.train.stray_optimizers import refuse_stray_optimizers

__all__ = ["Training"]


class Training:
    """The prepared models, optimizers (several as one) and loaders."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        optimizer: torch.optim.Optimizer,
        schedulers: Sequence[Any],
        crewing: CrewSettings,
    ) -> None:
        self._models, self.optimizer, self._given = models, optimizer, schedulers
        self._crewing, self.num_lanes = crewing, crewing.lanes
        self.own = OwnOptimizer(optimizer)
        for one in each(optimizer):
            pin(one)
        check_parts(optimizer, crewing)
        self.space = Space(models, optimizer)
        self.turns = Turns(self)
        self.turns.keeping.add_modules(KeptModules(self.space.kept))
        self.tap = LossTap(self.turns.guard_backward, self._look_at_loss)
        self.loaders: list[Batches] = []
        self.undo = [self.tap.close, refuse_stray_optimizers(self._place)]
        for number, one in enumerate(each(optimizer)):
            end, zeroed = partial(self.end_unit, number), partial(self.turns.gradient.zero, number)
            taken = take_optimizer(one, end, self._own_step, zeroed, self.fill_state, self._refuse_load)
            self.undo.append(taken)
        self.tap.open()
        self._bound: Binding | None = None
        self.op = NONE  #: the script's newest collective operation
        self.step = 0  #: committed steps
        self.epoch = -1
        self.order = 0  #: which order of the data the newest loop uses
        self._passes: dict[int, int] = {}
        self._open: weakref.ref[Pass] | None = None
        self._held: Pass | None = None  # a loop that an exception has left: kept until the script goes on
        self._left: BaseException | None = None  # a loop was left where it must not be; said at the next occasion
        self._said = False
        self.epochs_asked = 0  #: of `run.epochs`, in all
        self.unit: tuple[StepWork, int, UnitRequest] | None = None
        self._unit_started = 0
        self._filled = False
        self._versions: list[int] = []
        self.clip_norm = self.clip_value = 0.0
        self.facts = StepFacts(math.nan, 0, 0.0)  #: of the newest committed step
        self.grad_norm = math.nan
        self.first_step = 0  #: at which the newest operation began
        self.idle = False  #: the newest loop is over, and gave this worker no batch
        self.samples_of: Callable[[int, int], Sequence[int]] = lambda step, lane: ()  #: of a unit of the newest loop
        self.shares: ShareTurns | None = None  #: the plain loop that is open, or has just been left, in mode `exact`
        #: May shares follow the measured speeds? Statistics of a batch would hang on how large it is.
        self.unequal = not any(isinstance(module, _NormBase) for model in models for module in model.modules())

    # ------------------------------------------------------------ binding

    def add_loader(self, loader: DataLoader[Any]) -> Batches:
        """Take a loader over."""
        batches = Batches(loader, num_lanes=self._crewing.lanes, seed=self._crewing.seed)
        self.loaders.append(batches)
        return batches

    def bind(self) -> Binding:
        """Move parameters and state into the arena: at the first collective operation, not before.

        So whatever the script still does between `prepare` and its first step (loading a checkpoint,
        making a scheduler) counts for the first worker, and is not forced upon a crew that is under way.
        """
        if self._bound is None:
            self.space.check_dtypes()
            settings = Settings(self.optimizer, find_schedulers(self.optimizer, self._given))
            self.turns.keeping.find(self._crewing.scalers.made())
            facts = [(f"loader {number}", batches.described()) for number, batches in enumerate(self.loaders)]
            facts += self.turns.keeping.described()
            self._bound = Binding(
                self._crewing, self._models, self.optimizer, self.space, settings, self.turns.keeping, facts
            )
            self._tempo, self._together = SchedulerSteps(settings), ScriptPosition(self._bound)
            self._bound.enter()
            self.turns.keeping.modules.settle(self._bound.renew_kept)
            self._watch_gradients()
            self._bound.rebound = self._attach
            self._attach()
            self.turns.attach(self._bound)
            self.step = self.committed()
            self.facts = self._bound.board.step_facts(self._bound.version) if self._bound.version else self.facts
        return self._bound

    def _attach(self) -> None:
        """The binding has a new member: have it ask us what only we know."""
        member = self.bound.member
        member.before_wait = lambda: self.check_together(member.changed)
        member.suspect = self.check_gradients
        member.scaled = self.turns.keeping.any_of(torch.amp.GradScaler)
        member.samples_of = lambda step, lane: self.samples_of(step, lane)
        self.note_written()

    def note_written(self) -> None:
        """What was written to parameters until now was rightly written."""
        self._versions = [p._version for p in self.space.still]

    @property
    def steered(self) -> ControlLink | None:
        """What steers this worker; None in a run of one process."""
        return self._crewing.steered

    @property
    def seed(self) -> int:
        """Of the run."""
        return self._crewing.seed

    @property
    def begun(self) -> bool:
        """Has the script made its first operation?"""
        return self._bound is not None

    @property
    def in_plain_loop(self) -> bool:
        """Is the script in a loop over a loader itself?"""
        if self.bound.relaxed is not None:
            return self.unit is not None
        return self.shares is not None and not self.shares.left

    def committed(self) -> int:
        """Steps that are committed: of which the parameters hold all lanes."""
        relaxed = self.bound.relaxed
        return self.bound.version - self.bound.ahead if relaxed is None else relaxed.committed()

    def _watch_gradients(self) -> None:
        """Tell the exchange of every gradient that backward has made. Worth it only where there are several slices."""
        if self._crewing.steered is None or not self._crewing.mode.exact:
            return
        if len(self.space.layout.slices) <= early.LEAST:
            return
        for index, parameter in enumerate(self.space.trainable):
            came = partial(self._came, index)
            self.undo.append(parameter.register_post_accumulate_grad_hook(came).remove)

    def _came(self, index: int, _: object) -> None:
        if self.unit is not None and not self._filled:
            self.bound.member.came(index)

    @property
    def bound(self) -> Binding:
        """The binding; an error of ours if nothing was bound yet."""
        assert self._bound is not None
        return self._bound

    def _own_step(self) -> Callable[..., Any] | None:
        return self.shares.step if isinstance(self.shares, AloneTurns) else None

    def set_threads(self, *, own: bool) -> None:
        """Compute with the script's `own` number of threads, or with that of the run's configuration."""
        self._crewing.set_threads(own=own)

    def fill_state(self) -> None:
        """Let the script's optimizer show the state that is in the arena, where that steps."""
        if self._bound is not None and not self.own.used:
            for index, parameter in enumerate(self.space.trainable):
                state = self._bound.optimizer.state_of(index)
                if state:
                    owner(self.optimizer, self.space.groups[index])[0].state[parameter] = state

    def _place(self) -> str:
        """In which step the script is; nothing outside of its loops."""
        if self.own.used and not self.turns.going:
            return ""  # the script's own business
        plain = self.shares is not None and not self.shares.left
        return f"step {self.step}" if self.unit is not None or self.turns.going or plain else ""

    def _refuse_load(self) -> None:
        if self._bound is not None and not self.own.used:
            raise NotExact(
                "optimizer.load_state_dict was called after training had begun, when the state is the whole crew's",
                "Load it before the first loop over the loader.",
            )

    def _check_parameters(self) -> None:
        """Refuse what became trainable, or of another dtype, after `prepare`: it has no place in the arena."""
        self.space.check_dtypes()
        known = {id(p) for p in self.space.trainable}
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad and id(parameter) not in known:
                    raise NotExact(
                        f"a parameter of shape {tuple(parameter.shape)} was unfrozen, or added to the optimizer, after "
                        "run.prepare(...)",
                        "Let all that is ever trained require a gradient, and be in the optimizer, before that call; "
                        "to hold a part still for some epochs, give it a group with lr=0.",
                    )

    def reload_buffers(self) -> None:
        """Undo what the model's last run outside of a unit did to its buffers."""
        self.bound.buffers.distrust()
        self.bound.buffers.load(self.bound.version)
        if self.turns.whole:
            self.bound.member.show_buffers()

    # ------------------------------------------------------------ operations

    def epochs(self, number: int) -> Iterator[int]:
        """The epochs from the crew's current one on."""
        board = self.bind().board
        before = self.epochs_asked  # a script may call this several times; the crew's count goes on
        self.epochs_asked += number
        if not self.bound.late or self.epochs_asked > board.epochs_planned():
            steps = sum(b.steps for b in self.loaders[:1])
            board.put_plan(steps, self.epochs_asked, self.loaders[0].batch if self.loaders else 0)
        for epoch in range(before, before + number):
            now, first_op = board.epoch()
            if epoch < now:
                continue
            if epoch == now:
                self.op = max(self.op, first_op - NESTED)
                if self.bound.late:
                    self.bound.settings.restore(self.committed(), ordinal(first_op))
                    self.turns.enter_epoch_late()
            else:
                if self.bound.stopping(self.step):
                    return
                tag = self.bound.settings.enter_epoch(self.step, ordinal(self._next_op()))
                self.turns.begin_epoch(tag)
                board.begin_epoch(epoch, self._next_op())
            self.epoch = epoch
            self._passes = {}
            board.put(cells.R_EPOCH, epoch)
            yield epoch - before
        self.leave_pass()

    def begin_op(self, kind: int) -> bool:
        """Number the script's next operation. False: the crew has done it already.

        `kind` is 0 for a loop over a loader, STEPS for one by steps, else the number of parts that the crew shares.
        """
        binding = self.bind()
        if self.own.used:  # what evaluations begin with, and go back to
            self.bound.buffers.seed()
        if kind > 0 and (self.turns.going or (self.shares is not None and not self.shares.left)):
            return self._begin_nested(kind)
        self.leave_pass()
        self._check_parameters()
        binding.settings.check_newcomer()
        binding.buffers.distrust()
        self.op = self._next_op()
        newest, first = binding.board.op()
        inside = kind <= 0 and ordinal(newest) == ordinal(self.op) and newest > self.op
        if inside:
            newest = self.op
        if self.op < newest or (kind != STEPS and binding.board.op_closed(self.op)):
            return False
        binding.count_extra()
        self.step = self.committed()
        while binding.relaxed is not None and not binding.relaxed.pull():
            binding.controls.rest(self.step)
        if self.op == newest:
            self._together.check_kind(self.op, kind, kind if inside else binding.board.op_kind())
            self.first_step = first
            if binding.late or binding.relaxed is not None:  # there others may have gone on without this worker
                binding.settings.restore(self.step, ordinal(self.op) if self.step == first else None)
        else:
            self._refuse_beyond()
            self.first_step = self.step
            binding.settings.enter(self.step, ordinal(self.op))
            binding.board.begin_op(self.op, self.step, kind)
        binding.board.put(cells.R_LINE, script_line())
        binding.board.put(cells.R_OP, self.op)
        return True

    def _next_op(self) -> int:
        return (self.op // NESTED + 1) * NESTED

    def _begin_nested(self, kind: int) -> bool:
        """An evaluation in a turn of a loop by steps: numbered inside of that loop."""
        if self.shares is not None:
            self.shares.refuse_inside("run.evaluate or run.agree")
        if self.turns.in_units:
            raise UsageError(
                f"run.evaluate or run.agree was called inside of the loop over the units of step {self.step}, where "
                "workers are apart. Call it before that loop or after it."
            )
        board = self.bound.board
        self.bound.buffers.distrust()
        self.op += 1
        newest, _ = board.op()
        if self.op < newest:
            return False
        if self.op == newest:
            self._together.check_kind(self.op, kind, board.op_kind())
        else:
            board.begin_op(self.op, self.first_step, kind)
        board.put(cells.R_LINE, script_line())
        board.put(cells.R_OP, self.op)
        return True

    def _refuse_beyond(self) -> None:
        """Refuse an operation that a training which is over has not had."""
        if (past := self._crewing.past) is not None:
            what = f"the script makes one loop or evaluation more than it did, at line {script_line()}"
            raise NotKept.apart(past.number, what)

    def reseed(self) -> None:
        """After an operation: what the script draws next follows from where it is, not from who did which part."""
        seed_everything(after_key(self.seed, self.op))

    def reseed_after_loop(self) -> None:
        """The same after a loop, whatever was evaluated inside of it, and also for who has not been in it."""
        seed_everything(after_key(self.seed, ordinal(self.op) * NESTED))

    def new_pass(self, batches: Batches) -> Pass:
        """The script is about to loop over a prepared loader."""
        return Pass(self, batches)

    def start_pass(self, begun: Pass, batches: Batches) -> Alongside | None:
        """A loop over a prepared loader begins: goes along with the one that is at a turn, or is one of its own."""
        at_hand = self._open() if self._open is not None and self._held is None else None  # else it was left
        if at_hand is not None and self.shares is not None and self.shares.takes_along(batches):
            return self.shares.accompany(batches)
        if len(several := each(self.optimizer)) > 1:
            raise NotExact(
                f"a plain loop over a prepared loader was begun, with {len(several)} optimizers",
                "Use the loop by steps, `for step in run.steps(loader)`, where each makes steps of its own.",
            )
        began = ordinal(self.bind().board.op()[0])
        going = self.begin_op(0)
        order, at = self.next_order(batches), 0
        if not going:
            self.step = self.committed()
        if self.bound.relaxed is None and self.bound.late and ordinal(self.op) <= began:
            going, place = self.turns.enter_late(going=going)
            at = max(place.at, 0) if going and place.step >= 0 else self.step - self.first_step
        elif not going:
            self.bound.settings.restore(self.step)
        elif self.bound.relaxed is None:
            at = self.step - self.first_step
        self.idle = not going
        self.bound.board.note_units(cells.UNIT_LANE if self.bound.mode.rounds else cells.UNIT_WORKER)
        self._tempo.begin_pass()
        begun.begin(order, going, at)
        if not going and self.bound.late:
            begun.rehearse_later(self.step)
        self._open = weakref.ref(begun)
        return None

    def next_order(self, batches: Batches) -> int:
        """In which order the next loop over a loader uses its data."""
        count = self._passes.get(id(batches), 0)
        self._passes[id(batches)] = count + 1
        self.order = count if self.epoch < 0 else self.epoch + (count << 24)
        return self.order

    def leave_pass(self, *, look: bool = False) -> None:
        """The script is at another place now: end the loop it left early, if it still holds one.

        If it only has a `look`, a turn that it is in goes on.
        """
        if not (look and self.turns.going):
            self.turns.leave()
        going = self.shares is not None and not self.shares.left
        if self._open is not None and (held := self._open()) is not None and not (look and going):
            held.leave(displaced=True)
        if not (look and going):
            self.shares = None
        if self._left is not None:
            self._said = True
            raise self._left

    def finish(self) -> None:
        """The script has come to its end: nobody need wait for this worker any more."""
        self.leave_pass()
        if self._bound is not None:
            self._bound.board.put(cells.R_OP, FINISHED)

    def check_together(self, come: Callable[[], bool]) -> None:
        """Raise where a member that this worker waits for has gone on to another place of the script."""
        self._together.check(self.op, self.step, come)

    def audit(self, order: int, step: int, lane: int, ids: Sequence[int]) -> None:
        """Note which samples a unit used."""
        self._crewing.audit(order, step, lane, ids)

    def audit_came(self, step: int, lanes: Sequence[int]) -> None:
        """Note of which shares a step of a plain loop consists."""
        self._crewing.audit_came(step, lanes)

    def left_out(self) -> int:
        """How many samples of lost workers were not made up for."""
        parts = self.bound.board.backlog(self.bound.version)
        return sum(self.loaders[part.loader].counts(part.at)[part.lane] for part in parts)

    # ------------------------------------------------------------ units

    def _look_at_loss(self, loss: torch.Tensor) -> None:
        if self.unit is not None and not self.own.used:  # there are no parts that could be added up in another way
            work, lane, request = self.unit
            self._crewing.losses.look(loss, (work.step, lane), len(request), sum(work.counts))

    def check_written(self, where: str) -> None:
        """Refuse what was written to parameters by hand: each worker would do it once more."""
        if [parameter._version for parameter in self.space.still] == self._versions:
            return
        for parameter, version in zip(self.space.still, self._versions, strict=True):
            if parameter._version != version:
                name = self.space.name_of(parameter)
                raise NotExact(
                    f"parameter {name} was written to {where}",
                    "Parameters belong to the whole crew: change them through the optimizer only.",
                )

    def open_unit(self, work: StepWork, lane: int, request: UnitRequest) -> None:
        """A unit begins, with the fetching of its data: show it, so that a death in it can be told."""
        board = self.bound.board
        self.unit = (work, lane, request)
        self._filled = False
        self._unit_started = time.perf_counter_ns()
        board.put_samples(request)
        board.put(cells.R_UNIT_LANE, lane)
        board.put(cells.R_UNIT_STEP, work.step)

    def begin_unit(self, work: StepWork, lane: int, *, parts: int = 1) -> None:
        """Set the stage for a unit, which comes in so many parts: buffers, gradients, randomness as they must be."""
        binding = self.bound
        if binding.relaxed is None:
            binding.buffers.load(work.version)
        elif binding.relaxed.fresh:
            binding.buffers.load(binding.relaxed.read)
        for parameter in self.space.trainable:
            parameter.grad = None
        self.clip_norm = self.clip_value = 0.0
        self.tap.reset()
        binding.settings.begin_unit(turn=work.turn)
        if parts == 1:  # else gradients that come are not the unit's
            binding.member.begin(lane)
        seed_everything(compute_key(self._crewing.seed, work.step, lane))

    def end_unit(self, optimizer: int = 0) -> None:
        """`optimizer.step()` of this one: end a turn, or a phase of it; in relaxed modes, take the unit's gradient."""
        if self.turns.turn is not None:
            self.turns.turn.end("optimizer.step()", optimizer)
            return
        if self.shares is not None:
            self.shares.end()
            return
        if self.unit is None:
            raise NotExact(
                "optimizer.step() was called outside of a loop over the prepared loader",
                "Iterate over the loader that run.prepare(...) returned.",
            )
        if self.turns.keeping.asked:  # a glance at a batch is no matter
            raise NotExact(
                f"run.keep was called, and with sync = {self.bound.mode.name} lanes are at different steps",
                "Use --sync exact, or keep nothing.",
            )
        work, lane, _ = self.unit
        if self._filled:
            raise NotExact(
                f"optimizer.step() was called twice in unit (step {work.step}, lane {lane})",
                "Call it once per batch; for several steps or optimizers, use the loop by steps (run.steps).",
            )
        self.bound.member.hyper = self._tempo.hyper(work.step, self.step)
        self._fill()
        self.bound.settings.filled()

    def _fill(self) -> None:
        """Take the unit's gradient, if it is one that can be taken."""
        assert self.unit is not None
        work, lane, _ = self.unit
        self.check_written(f"before the end of unit (step {work.step}, lane {lane})")
        self.turns.keeping.modules.check(f"unit (step {work.step}, lane {lane})")
        member = self.bound.member
        gradients, loss = [parameter.grad for parameter in self.space.trainable], self.tap.value()
        if member.finite and not (work.turn and member.scaled):
            self.check_loss(loss)
        member.fill(lane, gradients, UnitResult(loss, self.clip_norm, self.clip_value))
        self._filled = True

    def check_loss(self, loss: float) -> None:
        """Refuse a unit whose loss is not finite."""
        if self.unit is None:  # the script has left the loop before the step that ends it
            return
        work, lane, request = self.unit
        if not math.isfinite(loss):
            raise NonFinite.in_unit(work.step, lane, f"the loss is {loss}", request)

    def check_gradients(self, *, whole: bool = True) -> None:
        """Refuse a unit whose gradient is not finite; without `whole`, as far as a glance shows."""
        if self.unit is None:
            return
        work, lane, request = self.unit
        if bad := unclean([parameter.grad for parameter in self.space.trainable], whole=whole):
            loss = self.tap.value()
            what = f"the gradient of {self.space.few(bad)} is not finite, with a loss of {loss:.6g}"
            raise NonFinite.in_unit(work.step, lane, what, request)

    def close_unit(self) -> None:
        """The loop asks for the next batch: the unit's user code is through, so show what it gave."""
        if self.unit is None:
            return
        work, lane, _ = self.unit
        if not self._filled:
            what = "backward() but not" if self.tap.backwards else "neither backward() nor"
            raise NotExact(
                f"unit (step {work.step}, lane {lane}) called {what} optimizer.step()",
                "Call optimizer.step() once per batch (for gradient accumulation, use a larger batch and more lanes); "
                "for a loop that only looks, use run.evaluate or a loader that was not prepared.",
            )
        if self._tempo.reached(work.step):
            self.bound.settings.write(work.step, self.bound.member.hyper, self.step)
        relaxed = self.bound.relaxed
        assert relaxed is not None
        share = relaxed.share
        for one in range(share.first, share.last):  # lane by lane: another worker's share may be of other lanes
            if ids := self.samples_of(work.step, one):
                self._crewing.audit(self.order, work.step, one, ids)
        self._show_unit(share.last - share.first, paced=self.unequal or self.bound.mode.rounds)

    def _show_unit(self, lanes: int = 1, *, paced: bool = True) -> None:
        """Let the others use what the unit gave, which was of so many lanes. `paced`: lanes follow how long it took."""
        assert self.unit is not None
        _, lane, request = self.unit
        board = self.bound.board
        self.bound.member.show(lane)
        spent = time.perf_counter_ns() - self._unit_started
        board.put(cells.R_UNIT_STEP, -1)
        board.put(cells.R_UNIT_LANE, -1)
        board.add(cells.R_UNITS, 1)
        board.add(cells.R_BUSY_NS, spent)
        board.add(cells.R_SAMPLES, 0 if self.tap.muted else len(request))
        self.unit = None
        if paced:
            self.show_pace(spent, lanes)

    def show_pace(self, spent: int, lanes: int) -> None:
        """So many lanes took so many nanoseconds: show how long one takes, by which lanes are shared out."""
        board, lane = self.bound.board, spent // lanes
        before = board.cell(board.row, cells.R_UNIT_NS)
        board.put(cells.R_UNIT_NS, lane if before == 0 else (7 * before + lane) // 8)

    def end_part(self, weight: float) -> None:
        """In a turn: a part of the unit is through, which counts so much in its mean."""
        assert self.unit is not None
        work, lane, _ = self.unit
        if not self.tap.backwards:
            raise NotExact(
                f"unit (step {work.step}, lane {lane}) called no backward()",
                "Call it for every batch of the inner loop: `for x, y in step: loss_of(model(x), y).backward()`.",
            )
        self.tap.end_part(weight)

    def take_unit(self) -> None:
        """In a turn: the unit's user code is through, so take its gradient and show it."""
        assert self.unit is not None
        work, lane, request = self.unit
        self._fill()
        self._crewing.audit(self.order, work.step, lane, request)
        self._show_unit()
        self.bound.settings.leave_units()

    def turn_to(self, step: int) -> None:
        """In relaxed modes: the next unit of this worker is of this step."""
        self._tempo.turn_to(step, self.step)
        self.step = self.committed()

    def settle(self, done: int) -> None:
        """In relaxed modes: all have made `done` steps of the pass."""
        self.step = self.committed()
        self._tempo.settle(self.step, None if done else self.op)

    def complete_pass(self, end: int) -> None:
        """In relaxed modes: all units of the loop, before step `end`, were pushed and applied."""
        self._tempo.complete_pass(end)
        self.note_facts()
        self.step = self.committed()

    def note_facts(self) -> None:
        """A step is complete: what it gave besides parameters."""
        self.facts = self.bound.member.facts
        if self.facts.grad_norm > 0.0:
            self.grad_norm = self.facts.grad_norm
        self.bound.board.put_loss(self.facts.loss)

    def close(self) -> None:
        """Put the user's objects back and end what was started."""
        if self._open is not None and (held := self._open()) is not None:
            held.abandon()
        for batches in self.loaders:
            batches.close()
        self.fill_state()
        if self._bound is not None:
            self._bound.settings.close()
        for undo in self.undo:
            undo()
        if self._left is not None and not self._said:
            raise self._left
