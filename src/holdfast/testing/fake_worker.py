"""A simulated worker: the worker's side of the protocol in miniature, around the real `core.sync.exact`.

What a real worker has to do is what this one does:

* it says Ready again and again until a generation is installed, and Paused again and again until it is
  answered (and Ready as well, while it was not welcomed); with its first Welcome it resets its row of the board;
* it goes quiet when it is asked to, but only between two actions, and then never acts again before an
  Install of at least the generation it was asked to be quiet for;
* an Install that is not newer than what it has, or older than its quiet, means nothing to it;
* while the state is on its way to its host, it does nothing but go quiet when it is asked to;
* told to stop, it ends before the step that it was told;
* told that lanes are to keep step in another way, it stands before the step that it was told, and says so again and
  again, until it is asked to be quiet;
* having finished, it says Finished again and again until it is told to end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.control.protocol import messages
from holdfast.control.protocol.messages import (
    AtBoundary,
    Failed,
    Finished,
    FromWorker,
    Install,
    Leaving,
    Pause,
    Paused,
    Ready,
    Refuse,
    Seeded,
    Stop,
    ToWorker,
    Welcome,
)
from holdfast.core import tree
from holdfast.core.sync.exact import (
    Advance,
    Arrive,
    BoardView,
    Close,
    Compute,
    Finish,
    Gather,
    Leave,
    Quiesce,
    StepView,
    Sum,
    Wait,
)
from holdfast.core.tree import Node
from holdfast.testing.fake_process import FakeProcess
from holdfast.testing.fake_view import FakeView
from holdfast.testing.faults import At

if TYPE_CHECKING:
    from holdfast.testing.cluster import SimCluster
    from holdfast.testing.fake_host import FakeHost

__all__ = ["FakeWorker"]


class FakeWorker(FakeProcess):
    """One worker. `cluster` gives it its clock, its link and its fate."""

    def __init__(self, cluster: SimCluster, host: FakeHost, number: int, row: int, faults: list[At]) -> None:
        super().__init__(cluster, number, faults)
        self.host, self.arena, self.row = host, host.arena, row
        self.hung_since: float | None = None
        self.unit: tuple[int, int] | None = None  #: what it computes now
        self.measured = False
        self.applied = (0, 0.0)  #: bytes of slices that it updated, and seconds that it took
        self.generation = 0
        self.awaits: frozenset[int] = frozenset()  #: while it waits: whose deeds wake it
        self.ended = False  #: its script has come to its end
        self.fetching: Install | None = None  #: a generation that begins here when the state has come
        self._welcomed = self._filled = self._busy = False
        self._closing = False  # the script's code between the units of the step at hand and its end is through
        self._stop = self._turn = 0
        self._sync = "exact"
        self._leave: str | None = None
        self._pausing = 0
        self._pending: Install | None = None
        threads = "2" if number in cluster.schedule.misfits else "1"
        sizes = [_SLICE_BYTES] * host.arena.model.slices
        self._ready = Ready(number, {"threads": threads}, "golden", "model", 1024, sizes=sizes)
        self._level: FromWorker | None = None
        self._epoch = 0  # of the level that is repeated
        self._woken = False
        self._finishing: tuple[int, ...] = ()
        self._stack: Sequence[Node] = ()
        self._board_view: FakeView | None = None

    # ------------------------------------------------------------ faults

    def start(self) -> None:
        """The script has come to its first step."""
        if self.struck("start"):
            self.later(0.0, self.start)
        else:
            self._state(self._ready)

    def torn(self, part: float) -> None:
        if self.unit is not None and part > 0.8 and self.hung_since is None:
            step, lane = self.unit
            if part > 0.9:
                self.arena.withdraw(step, tree.push(self._stack, Node(lane, 1), self.arena.model.lanes)[0])
            else:
                self.arena.publish(step, lane, ())  # the gradient is there, but was not merged yet
        elif done := self._finishing[: int(part * len(self._finishing))]:
            self.arena.finish(self.step, done, carried=self._carries())
        self.cluster.wake(self.number)

    def asked_to_leave(self) -> None:
        self.say(Leaving(self.number, "SIGTERM"))
        self.later(self.cluster.repeat, self.asked_to_leave)

    # ------------------------------------------------------------ messages

    def say(self, message: FromWorker) -> None:
        """Say something to the coordinator, once."""
        self.cluster.from_worker(message)

    def _state(self, message: FromWorker | None) -> None:
        """Say something until something else is true."""
        self._level = message
        self._epoch += 1
        if message is not None:
            self._again(self._epoch)

    def _again(self, epoch: int) -> None:
        if epoch == self._epoch and self._level is not None:
            self.say(self._level)
            if self._level is not self._ready and not self._welcomed:
                self.say(self._ready)  # quiet it may be, but it has no arena yet
            self.later(self.cluster.repeat, self._again, epoch)

    def receive(self, message: ToWorker) -> None:
        """A message has arrived."""
        if isinstance(message, Pause):
            if self.ended:
                self._again(self._epoch)
            elif message.generation > max(self.generation, self._pausing):
                self._pausing = message.generation
                self.resume()
        elif isinstance(message, Install):
            newest = self._pending.generation if self._pending else self.generation
            if self._welcomed and message.generation > newest and not self.ended:
                self._pending = message
                self.resume()
        elif isinstance(message, Welcome):
            if not self._welcomed:
                self._welcomed = True
                self.arena.arrived[self.row] = self.arena.closed[self.row] = -1  # a predecessor's are not mine
                if message.seed:
                    self.later(self.cluster.jitter(0.02), self._seed)
            elif message.seed and self._filled:
                self.say(Seeded(self.number))
        elif isinstance(message, messages.Leave | Refuse | Stop):
            self._leave = message.reason
            self.resume()

    def _seed(self) -> None:
        self.arena.seed()
        self._filled = True
        self.say(Seeded(self.number))

    # ------------------------------------------------------------ acting

    def resume(self) -> None:
        """Something changed; look again unless in the middle of an action."""
        if not self._busy:
            self.look()

    def wake(self) -> None:
        """Somebody this worker waits for has done something."""
        if not self._woken:
            self._woken = True
            self.later(self.cluster.jitter(self.cluster.nap), self._wake)

    def _wake(self) -> None:
        self._woken = False
        if not self._busy:
            self.look()

    def look(self) -> None:
        """Do what is to be done now, until it takes time or there is nothing."""
        self.awaits = frozenset()
        while self.alive and self.frozen_since is None and not self._busy:
            if self._leave is not None:
                self.cluster.died(self.number, "exit", 0)
                return
            if self._pending is not None and not self._take(self._pending):
                return
            if self._pausing and not self.ended and self.cluster.decide(_NOWHERE, _PAUSING) == Quiesce():
                self._go_quiet()
                return
            if self.fetching is not None:
                if self.arena.current < self.fetching.generation:
                    return
                if not self._install(self.fetching):
                    return
            elif self.ended or not self.generation or not self._act():
                return

    def _go_quiet(self) -> None:
        if not (isinstance(self._level, Paused) and self._level.generation == self._pausing):
            self._state(Paused(self.number, self._pausing, max(self.step, 0)))
            self.struck("quiet")

    def _take(self, install: Install) -> bool:
        """A generation is here; it begins now, or when the state has come."""
        self._pending = None
        if install.generation < self._pausing:
            return True
        if install.rows[install.members.index(self.number)] != self.row:
            raise AssertionError(f"worker {self.number} is given somebody else's row")
        self.generation, self._pausing, self._stop = install.generation, 0, install.stop
        self._state(None)
        self.fetching = None
        if self.host.number in install.sources or install.donor >= 0:
            self.fetching = install
            return not self.struck("fetch")
        return self._install(install)

    def _install(self, install: Install) -> bool:
        self.fetching = None
        arena = self.arena
        shown = arena.nodes(self.step)  # what was let go while this worker missed a generation is computed again
        self._stack = [node for node in tree.keep(self._stack, install.drivers, self.number) if node in shown]
        joins = self.step < 0
        if joins or arena.step() < self.step:  # what a mirror showed may never have been where the state is
            self.step, self._stack, self._closing = arena.step(), (), False
            arena.forget_gradient(self.number)
        self._board_view = self._stand_in(install)
        for marks in (arena.arrived, arena.closed):
            marks[self.row] = min(marks[self.row], self.step - 1)  # there may be more for me to compute
        arena.installed(self.number, install.generation)
        self._sync, self._turn = install.sync, install.turn
        if joins:
            self._read()
        return not self.struck("install") and not self._busy

    def _stand_in(self, install: Install) -> FakeView:
        """My place in a generation."""
        return FakeView(self.arena, self.number, install)

    def _act(self) -> bool:
        """Take the next action; False when it takes time or there is none."""
        arena, step = self.arena, self.step
        if step >= arena.model.steps or (self._stop and step >= self._stop):
            return self._end()
        assert self._board_view is not None
        if self._sync != arena.pace.reached.sync and step >= self._turn:
            return self._stand()
        closing = self._closing or not arena.model.by_steps
        action = self.cluster.decide(*self._board_view.view(step, closing=closing))
        if isinstance(action, Wait):
            self.awaits = frozenset(action.workers)
            return False
        if isinstance(action, Compute):
            return self._compute(action.lanes[0])
        if isinstance(action, Advance):
            self.step, self._stack, self._closing = step + 1, (), False
            if self.cluster.jitter(1.0) < 0.2:
                self._read()
            return True
        if isinstance(action, Gather | Sum | Finish):
            return self._slices(action)
        if isinstance(action, Leave):
            return self._between()
        if isinstance(action, Close):
            return not self.struck("close") and self._close()
        if isinstance(action, Arrive) and not self.struck("arrive"):
            arena.forget_gradient(self.number)  # of the step before: the script is in this one
            arena.arrived[self.row] = step
            self.cluster.wake(self.number)
            return True
        return False

    def _between(self) -> bool:
        """The script's code between a step's units and its end: it reads the whole gradient, and parameters."""
        duration = self.cluster.jitter(self.cluster.unit_seconds) * self.pace()
        self.arena.read_gradient(self.number, self.step)
        self.arena.read(self.number, self.step)
        self._busy = True
        self.struck("whole", duration)
        self.later(duration, self._through)
        return False

    def _through(self) -> None:
        self._closing = True
        self._acted()

    def _close(self) -> bool:
        self.arena.closed[self.row] = self.step
        self.cluster.wake(self.number)
        return True

    def _stand(self) -> bool:
        """Stand before a step, and say so, until this generation is over."""
        if self._level is None and not self.struck("stand"):
            self._state(AtBoundary(self.number, self.generation, self.step, self.step))
        return False

    def _carries(self) -> bool:
        return self._board_view is not None and self._board_view.carries(self.step)

    def pace(self) -> float:
        """How many times slower than usual it is, its host included."""
        return self.factor * self.host.factor

    def _read(self) -> None:
        """The script does something with the parameters between two units: prints, saves, evaluates."""
        self._busy = True
        self.arena.read(self.number, self.step)
        self.later(self.cluster.jitter(2 * self.cluster.unit_seconds), self._acted)

    def _compute(self, lane: int, others: Sequence[int] = ()) -> bool:
        """Begin the unit of a lane, which may be of `others` too."""
        duration = self.cluster.unit_seconds * self.pace() * (0.8 + self.cluster.jitter(0.4))
        places = (lane, *others, *(n.lane for n in self._stack))
        self.arena.begin(self.number, self.generation, self.step, "compute", places)
        self._busy, self.unit = True, (self.step, lane)
        self.struck("compute", duration)
        what = self.cluster.unit_faults.get(self.unit)
        if what == "hang":
            self.hung_since = self.cluster.clock.now
        elif what == "crash":
            self.later(duration / 2, self.cluster.died, self.number, "signal", 11)
        elif what == "raise":
            self.later(duration / 2, self._raise)
        else:
            self.later(duration, self._computed, lane)
        return False

    def _computed(self, lane: int) -> None:
        merges, self._stack = tree.push(self._stack, Node(lane, 1), self.arena.model.lanes)
        self.arena.publish(self.step, lane, merges)
        self.measured = True
        self._acted()

    def _raise(self) -> None:
        assert self.unit is not None
        self._state(Failed(
            self.number, self.generation, "ValueError", "bad sample", "data.py:7", "Traceback ...", self.unit,
            [self.unit[0] * 100 + self.unit[1]], self.unit[0],
        ))
        self.later(0.3, self.cluster.died, self.number, "exit", 1)

    def _slices(self, action: Gather | Sum | Finish) -> bool:
        duration = self.cluster.unit_seconds * _SLICE_PART * len(action.slices) * self.pace()
        what = type(action).__name__.lower()
        self.arena.begin(self.number, self.generation, self.step, what, action.slices)
        self._busy = True
        if isinstance(action, Finish):
            self._finishing = action.slices
        self.struck(what, duration)
        self.later(duration, self._sliced, action, duration)
        return False

    def _sliced(self, action: Gather | Sum | Finish, duration: float) -> None:
        self._finishing = ()
        done = len(action.slices) * _SLICE_BYTES if isinstance(action, Finish) else 0
        self.applied = self.applied[0] + done, self.applied[1] + duration
        if isinstance(action, Gather):
            self.arena.gather(self.step, action.slices)
        elif isinstance(action, Sum):
            self.arena.sum(self.step, action.slices, carried=self._carries())
        else:
            self.arena.finish(self.step, action.slices, carried=self._carries())
        self._acted()

    def _acted(self) -> None:
        self._busy, self.unit = False, None
        self.arena.end(self.number)
        self.cluster.wake(self.number)
        self.look()

    def _end(self) -> bool:
        self.ended = True
        result: dict[str, str | int | float | bool | list[int] | None] = {"steps": self.step}
        self._state(Finished(self.number, self.generation, result))
        return False


#: Of every slice, and what it takes to sum or update one, as a part of what a unit takes.
_SLICE_BYTES, _SLICE_PART = 1 << 20, 0.05
_NOWHERE = StepView(-1, -1, (), (), ())
_PAUSING = BoardView((), (), {}, (), None, True)
