"""Turns: how a worker makes the steps of a loop by steps, and what it leaves for a worker that comes late.

`steps` is what the script holds; here is what it stands for. At the top of a turn the optimizer's settings, the changed
variables of the loop's frame and what the script keeps are written down. After the units `.grad` shows the whole
gradient. At the end the version is completed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from holdfast.control.protocol.messages import StaysExact
from holdfast.core import endings
from holdfast.data.batches import Batches
from holdfast.data.randomness import seed_everything, turn_key
from holdfast.dataplane.memory import board as cells
from holdfast.dataplane.reduce.work import StepWork
from holdfast.errors import NotExact, OutOfSync, UsageError
from holdfast.train.loop.gone_gradient import check_none_is_gone, show_as_gone
from holdfast.train.loop.gradient_use import GradientUse
from holdfast.train.loop.keeping import Keeping
from holdfast.train.loop.optimizer_settings import LatePlace
from holdfast.train.loop.rehearsal import Rehearsal, uncounted
from holdfast.train.loop.script_position import STEPS, ordinal
from holdfast.train.loop.step_batches import StepBatches
from holdfast.train.loop.steps import Step, Steps
from holdfast.train.loop.variables.differences import Left
from holdfast.train.loop.variables.late_variables import LateVariables
from holdfast.train.loop.variables.script_values import script_line
from holdfast.train.loop.verifying.purity import Purity
from holdfast.train.numerics import static_shapes

if TYPE_CHECKING:
    from holdfast.train.binding import Binding
    from holdfast.train.loop.plain.passes import Pass
    from holdfast.train.training import Training

__all__ = ["Turns"]


class Turns:
    """The loops by steps of one worker."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.purity = Purity(training, training._crewing.verify)  #: looks whether units are pure
        self.keeping = Keeping()  #: what the script keeps besides
        self.turn: Step | Rehearsal | None = None  #: the newest turn, until the script goes on after its loop
        self._steps: weakref.ref[Steps | Pass] | None = None  # that loop
        self._past = False  # the crew has made it without this worker
        self._past_end = 0  # before which step it ended
        self._steps_past = 0  # of such loops
        self.gradient = GradientUse(training.space, training.optimizer)  #: what becomes of what `.grad` shows
        self.phases = 1  #: how often the newest turn that is over went through its units
        self._came_late = False  # what is kept was taken over, and not written since
        self._gave = False  # the newest loop has given this worker a batch that counts
        self._given: set[int] = set()  # phases of its turns whose inner loop has given this worker any batch
        self._rehearses = self._rehearsed = False  # a batch that does not count is at hand; the turn has had one
        self._said = False  # that this script loops by steps
        self._static = False  # compiled code is made for each shape
        # Of the turn at hand: what was left there.
        self._top: tuple[int, int, int, dict[str, Left], dict[str, str]] = (0, 0, 0, {}, {})
        self._late_place: LatePlace | None = None  # in a later phase of the turn that was entered
        self._gone = False  # the gradient of the phase at hand is not there any more

    def attach(self, bound: Binding) -> None:
        """Training has begun."""
        self._variables = LateVariables(bound.settings, late=bound.late)

    @property
    def going(self) -> bool:
        """Is the script in a turn, and has not left its loop?"""
        return self.turn is not None and self.open_steps() is not None

    @property
    def enters_phase(self) -> bool:
        """Has this worker come late, to a later phase of the turn at hand?"""
        return self._late_place is not None

    @property
    def in_units(self) -> bool:
        """Is the script going through the units of a turn?"""
        return self.turn is not None and self.turn.in_units

    @property
    def whole(self) -> bool:
        """Are the units of a turn through, and its step not over?"""
        return self.turn is not None and self.turn.whole

    # ------------------------------------------------------------ loops

    def begin(self, loaders: Sequence[Batches], accumulate: int) -> Steps:
        """The script begins a loop by steps over prepared loaders, so many batches of each to a step."""
        training = self.training
        batches = StepBatches(loaders, accumulate, training.seed)
        bound = training.bind()
        if bound.relaxed is not None:
            raise NotExact(
                f"run.steps(loader) was called with sync = {bound.mode.name}, where lanes are at different steps",
                "Use the plain loop, `for x, y in loader`, or --sync exact.",
            )
        training.own.give_back(training)
        self._say(bound)
        began = ordinal(bound.board.op()[0])
        going = training.begin_op(STEPS)
        batches.number([training.next_order(loader) for loader in reversed(loaders)][::-1])
        training.idle = entered = False
        if not going:
            training.step = training.committed()
        if bound.late and ordinal(training.op) <= began:
            going, place = self.enter_late(going=going)
            entered = place.step >= 0
            if going and not entered and training.step > training.first_step:
                raise OutOfSync(
                    f"Nothing is left of the turns before step {training.step}, where this worker comes to a loop that "
                    f"began at step {training.first_step}: it would go on with other settings than the others. Start "
                    "the run again."
                )
        if not bound.late and training.epoch >= 0:
            bound.board.put_plan(batches.steps, training.epochs_asked, batches.batch)
        bound.board.note_units(cells.UNIT_LANE)
        begun = Steps(self, batches, entered=entered, going=going)
        self._steps, self._past = weakref.ref(begun), False
        training.idle, self._gave, self._given = not going, False, set()
        if not going:
            begun.rehearsal = self.past(begun, batches, training.step)
        return begun

    def past(self, loop: Steps | Pass, batches: StepBatches, end: int) -> Rehearsal:
        """The crew has made this loop, up to step `end`, without this worker: the one turn that it takes of it."""
        self._steps, self._past, self._past_end = weakref.ref(loop), True, end
        self.training.bound.settings.others_stepped()
        rehearsal = Rehearsal(self.training, batches, self._steps_past)
        self._steps_past += batches.steps
        return rehearsal

    @property
    def rehearsal(self) -> Rehearsal | None:
        """The turn at hand, if nothing of it counts."""
        return self.turn if isinstance(self.turn, Rehearsal) and self.open_steps() is not None else None

    @property
    def rehearses(self) -> bool:
        """Does nothing count of what the script does now?"""
        return self._rehearses or self.rehearsal is not None

    def rehearse(self, rehearsal: Rehearsal) -> None:
        """A turn begins of which nothing counts."""
        self.turn = rehearsal
        self._variables.rehearse()

    def end_rehearsal(self) -> None:
        """It is over: take up again what the loop has ended with, if the crew is still there."""
        if self.turn is not None:
            self.turn.leave()
        self.turn = self._steps = None
        self._variables.rehearsed()
        if self.training.bound.relaxed is None:
            self._take_over(going=False)
        else:
            self.training.bound.settings.restore(self._past_end)
        self.training.reseed_after_loop()

    def _say(self, bound: Binding) -> None:
        """The mode has to stay while a script loops by steps."""
        steered = self.training.steered
        if steered is not None and not self._said:
            why = "the script loops by steps (run.steps), and in other modes lanes are at different ones"
            steered.send(StaysExact(steered.worker, why))
        self._said = True
        bound.by_steps()

    def open_steps(self) -> Steps | Pass | None:
        """The loop that is open, if the script still holds it."""
        return self._steps() if self._steps is not None else None

    def end(self) -> None:
        """The loop has come to its end."""
        training = self.training
        training.idle = not self._gave
        self.write_exit(training.bound.version)
        for batches in training.loaders:
            batches.close()
        self.purity.end()
        self.turn = self._steps = None
        training.reseed_after_loop()

    def leave(self) -> None:
        """The script is at another place now: end the loop that it has left, if it was in one."""
        if self._steps is None:
            return
        if self._past:  # what is there now is no place for those who come later
            self.end_rehearsal()
            return
        if self.turn is not None:
            self.turn.leave()
            for parameter in self.training.space.trainable if self.turn.dropped else ():
                parameter.grad = None  # it goes with the step
        self.end()

    # ------------------------------------------------------------ turns

    def begin_turn(self, work: StepWork, at: int = -1, samples: int = 0) -> None:
        """A step of a loop begins, in a plain one with turn `at`: leave what a worker needs that comes late.

        This worker had so many `samples` in the one before.
        """
        training, settings = self.training, self.training.bound.settings
        if work.turn and not self._static and (undo := static_shapes()):  # a plain loop alone has the script's own bits
            self._static = True
            training.undo.append(undo)
        training.check_written(f"before the turn of step {work.step}")
        if self._rehearsed:
            self._variables.rehearsed_units()
        self._rehearsed, plain = False, not work.turn
        moved = self._variables.look(work.step, ordinal(training.op), plain=plain, samples=samples)
        self._top = work.step, training.op, work.version, moved, self.purity.begin_turn(work)
        self._keep(settings.enter_turn(*self._top, at=at), work.version)
        if work.turn:  # in a plain loop no code of the script is between this and its batch
            seed_everything(turn_key(training.seed, work.version, 0))

    def begin_units(self, work: StepWork, phase: int) -> None:
        """The script goes through the units of the turn, in this phase: gradients begin with nothing."""
        if phase:
            self._begin_phase(phase, work.version)
        self._gone = self._late_place is not None and phase < self._late_place.phase
        self.gradient.begin(work.step)
        self.keeping.modules.note()
        self._variables.begin_units()

    def _begin_phase(self, phase: int, version: int) -> None:
        """Leave what a worker needs that comes late: its own code had no gradient of the phases before to look at."""
        settings, late = self.training.bound.settings, self._late_place
        if late is not None and phase <= late.phase:
            if phase < late.phase:
                return
            settings.enter_phase_late()
            if self.keeping and not self.keeping.load(late.tag):
                raise _lost(late.step)
        self._late_place = None
        self._keep(settings.enter_turn(*self._top, phase=phase), version)

    def give(self, phase: int) -> None:
        """This worker is given batches of a unit, in this phase of a turn."""
        self._gave = True
        self._given.add(phase)

    def lacks_batch(self, phase: int) -> bool:
        """Has no inner loop of this phase bound yet what its code binds? In a function, each has names of its own."""
        return phase not in self._given or not self._variables.in_frame

    def rehearse_units(self, work: StepWork, phase: int, batches: StepBatches, at: int) -> Iterator[Any]:
        """One batch in an inner loop that has none for this worker: of what it does, nothing counts."""
        training = self.training
        self._given.add(phase)
        for parameter in training.space.trainable:
            parameter.grad = None
        training.reload_buffers()
        self._rehearses = self._rehearsed = True
        try:
            yield from uncounted(training, batches, at, work.step)
        finally:
            self._rehearses = False
        training.tap.reset()
        training.clip_norm = training.clip_value = 0.0
        training.reload_buffers()

    def end_units(self, work: StepWork) -> float:
        """The gradient of the whole step is here: show it. Returns the step's loss."""
        training = self.training
        binding, member = training.bound, training.bound.member
        self._variables.end_units()
        member.show_buffers()
        binding.by_steps().show(member.absent())
        for parameter in training.space.fixed:  # it may require a gradient, and then has that of its own lanes
            parameter.grad = None
        if self._gone:
            show_as_gone(training.space.trainable, training.space.names, work.step)
        self.gradient.shown()
        seed_everything(turn_key(training.seed, work.version, 1))
        return member.turn_loss

    def end_turn(self, work: StepWork, *, optimizer: int | None, drop: bool, left: bool, extra: bool) -> None:
        """Complete a version that a turn makes: an update by an optimizer, or none; a step, or none.

        An optimizer may also `drop` the gradient at hand. Without one, the loop may have been `left`.
        """
        training, binding = self.training, self.training.bound
        if optimizer is not None:
            self.gradient.use(optimizer, work.step)
        training.check_written(f"in the turn of step {work.step}")
        self.purity.end_turn(work)
        binding.member.hyper = binding.settings.hyper()
        moves = optimizer is not None and not drop
        absent: frozenset[int] = frozenset()
        if moves and not self._gone:
            check_none_is_gone(training.space.trainable, training.space.names, work.step)
            absent = binding.by_steps().take()
        groups = self.gradient.groups[optimizer] if optimizer is not None and moves else ()
        binding.board.put(cells.R_LINE, script_line())
        how = endings.LEFT if left else endings.SKIPPED
        if optimizer is not None:
            how = endings.LEFT_OUT if drop else endings.STEPPED + optimizer
        binding.member.finish(work, how=how, groups=groups, absent=absent, extra=extra)
        training.note_facts()
        binding.extra += extra
        training.step += not extra
        self.purity.over(work)
        seed_everything(turn_key(training.seed, work.version, 2))

    def guard_backward(self) -> Callable[[], None] | None:
        """Refuse a backward outside of units that reaches what is trained here."""
        if self.turn is None or self.training.unit is not None or self.rehearsal is not None:
            return None
        step, space = self.turn.number, self.training.space

        def refuse(parameter: torch.Tensor) -> None:
            name = space.name_of(cast("nn.Parameter", parameter))
            raise UsageError(
                f"backward() was called outside of the loop over the units of step {step}, and reached {name}. What it "
                "computes would be no unit's: call it inside, `for x, y in step`."
            )

        hooks = [parameter.register_post_accumulate_grad_hook(refuse) for parameter in space.trainable]

        def undo() -> None:
            for hook in hooks:
                hook.remove()

        return undo

    # ------------------------------------------------------------ late workers

    def enter_late(self, *, going: bool) -> tuple[bool, LatePlace]:
        """Go to the newest turn of this loop, or to its end. Returns whether the loop goes on, and the place."""
        training = self.training
        place = self._take_over(going=going)
        going = going and not place.left
        if going and place.step >= 0:
            training.step, training.op = place.step, place.op
            training.bound.extra += place.version - place.step - training.bound.ahead
            training.bound.board.put(cells.R_OP, training.op)
        return going, place

    def _take_over(self, *, going: bool) -> LatePlace:
        """Find the newest turn of this loop, or its end, with all that was left there, and take that over."""
        training, keeping = self.training, self.keeping
        while True:  # others may begin a turn meanwhile, and write over the place that was found
            version = training.bound.version
            among = keeping.tags(version) if keeping else None
            place = training.bound.settings.enter_late(ordinal(training.op), version, among)
            if place.step < 0 or not keeping or keeping.load(place.tag):
                break
        if place.step >= 0 and keeping:
            if not place.left and (place.step < training.bound.steps_of(version) - 1 or not going):
                raise _lost(place.step)
            self._came_late = True
        self._late_place = place if place.phase else None
        return place

    def begin_epoch(self, tag: int) -> None:
        """Others may find the epoch begun from now on: leave what the script keeps."""
        if self.keeping and self.keeping.newest() < tag:
            self.keeping.write(tag, self.training.bound.version)

    def differ(self) -> None:
        """Lanes need not keep step: workers' frames differ rightly from now on."""
        self._variables.differ()

    def enter_epoch_late(self) -> None:
        """Take over what the script keeps, where it enters an epoch that others have begun."""
        while (newest := self.keeping.newest()) and not self.keeping.load(newest):
            pass  # others have written a newer one over it
        self._came_late = True

    def write_exit(self, version: int) -> None:
        """Leave what a worker needs that comes after the loop by steps; it counts from this version on."""
        training = self.training
        self._keep(training.bound.settings.leave_turns(training.step, training.op, version), version)

    def _keep(self, tag: int, version: int) -> None:
        """Have what the script keeps written down: one worker of each host does it, and who comes late once more."""
        keeping, at = self.keeping, self.training.bound.member.at
        if not keeping or keeping.newest() >= tag:
            return
        if self._came_late or at.worker == min(at.on_host):
            keeping.write(tag, version)
        self._came_late = False  # whoever was to write this one may have been lost while it did


def _lost(step: int) -> OutOfSync:
    return OutOfSync(
        f"What run.keep holds is lost: its newest copy is from the top of step {step}, and the crew went on from "
        "there. The worker that was to write the next one was lost while it did, and then all others were. Start the "
        "run again."
    )
