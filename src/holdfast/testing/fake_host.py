"""A simulated host: an arena, a peer session, workers, and the connection to the coordinator.

What a real host has to do is what this one does:

* before it passes on a Paused, Finished or the loss of a worker, it says how far its arena is; so after Seeded, and
  when a state that it was to fetch has come. Things come to the coordinator in the order in which they were said here;
* it closes its peer session, and follows no longer, with the first Pause of a newer generation; with the first Install
  it makes a new one, or begins to follow. Both before any worker hears of it;
* when it has not heard of the coordinator for too long it ends its workers, and joins again as a new host.

Host 0 shares the coordinator's process: nothing comes late between them, and it is never cut off.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.config.run_config import board_rows
from holdfast.control.protocol.events import Event, HostJoined, HostLeaving, HostLevel, HostLost, LinkBroken, WorkerLost
from holdfast.control.protocol.messages import Finished, FromWorker, Install, Pause, Paused, Seeded, ToWorker
from holdfast.core.sync.modes import parse
from holdfast.testing.fake_catch_up import FakeCatchUp
from holdfast.testing.model import Violation
from holdfast.testing.shares.share_arena import ShareArena
from holdfast.testing.shares.share_history import HostHistory

if TYPE_CHECKING:
    from holdfast.testing.cluster import SimCluster
    from holdfast.testing.fake_session import FakeSession
    from holdfast.testing.fake_worker import FakeWorker

__all__ = ["FakeHost"]


class FakeHost:
    """One host. `cluster` gives it its clock, its network and its fate."""

    def __init__(self, cluster: SimCluster, number: int, slots: int) -> None:
        self.cluster, self.number, self.slots = cluster, number, slots
        model = cluster.config.model
        self.arena = cluster.config.arena(model, board_rows(model.lanes), cluster.config.plan)
        if isinstance(self.arena, ShareArena):
            self.arena.history = HostHistory(cluster.history, self)
        self.session: FakeSession | None = None
        self.follower: FakeCatchUp | None = None
        self.workers: dict[int, FakeWorker] = {}
        self.up = True  #: it exists
        self.cut = False  #: nothing comes to it, nothing from it
        self.closed = False  #: the coordinator has given up this connection, or let the host go
        self.factor = 1.0  #: how many times slower than usual it is
        self._free = [0.0, 0.0]  # when the connection is free again, up and down
        self._held: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self._cuts = 0
        self._woken = False

    # ------------------------------------------------------------ the connection

    def join(self) -> None:
        """Become part of the run."""
        self.hear(HostJoined(self.number, f"host-{self.number}", self.slots))

    def hear(self, *events: Event) -> None:
        """Tell the coordinator, in order."""
        for event in events:
            self._line(0, self._tell, event)

    def order(self, do: Callable[..., object], *args: Any) -> None:
        """What the coordinator wants done here, in order."""
        self._line(1, self._obey, do, *args)

    def _line(self, way: int, do: Callable[..., object], *args: Any) -> None:
        if self.number == 0:
            do(*args)
            return
        now = self.cluster.clock.now
        self._free[way] = max(self._free[way], now + self.cluster.jitter(0.004))
        self.cluster.clock.after(self._free[way] - now, self._come, do, args)

    def _come(self, do: Callable[..., object], args: tuple[Any, ...]) -> None:
        if self.cut:
            self._held.append((do, args))
        else:
            do(*args)

    def _tell(self, event: Event) -> None:
        if not self.closed:
            self.closed = isinstance(event, HostLost)
            self.cluster.happened(event)

    def _obey(self, do: Callable[..., object], *args: Any) -> None:
        if self.up:
            do(*args)

    # ------------------------------------------------------------ messages

    def said(self, message: FromWorker) -> None:
        """A worker's message has come here."""
        if self.up:
            if isinstance(message, Paused | Finished):
                self._say_level()
            self.hear(message)
            if isinstance(message, Seeded):
                self._say_level()

    def lost(self, event: WorkerLost) -> None:
        """A worker's process is gone, for certain."""
        if self.up:
            self._say_level()
            self.hear(event)

    def _say_level(self) -> None:
        arena = self.arena
        self.hear(HostLevel(self.number, arena.level(), arena.of(), arena.given(), arena.model.shares))

    def send(self, worker: int, message: ToWorker) -> None:
        """Pass a message of the coordinator on to a worker."""
        if isinstance(message, Pause):
            for one in (self.session, self.follower):
                if one is not None and one.generation < message.generation:
                    one.close()
        elif isinstance(message, Install):
            self._installed(message)
        self.cluster.carry(self._pass_on, worker, message)

    def _installed(self, install: Install) -> None:
        newest = max(self.session.generation if self.session else 0, self.follower.generation if self.follower else 0)
        if install.generation <= newest:
            return
        if self.session is not None:
            self.session.close()
        if self.follower is not None:
            self.follower.close()
        if isinstance(self.arena, ShareArena):
            stays = self.session is not None and self.session.generation == install.generation - 1
            self.arena.stayed = stays and self.number not in install.sources
        if len(homes := set(install.hosts) - set(install.sources)) > 1 and not parse(install.reached.sync).exact:
            raise Violation(f"hosts {sorted(homes)} are all to hold the state in {install.reached.sync}")
        self.arena.turn(install.reached, fetches=install.donor >= 0 or self.number in install.sources)
        if install.donor >= 0:
            self.follower = FakeCatchUp(self, install.donor, install.generation)
        else:
            self.session = self.cluster.config.session(self, install)
            self.session.look()

    def tick(self) -> None:
        """Say how far this host is while it follows."""
        if self.up and self.follower is not None and not self.follower.closed:
            self._say_level()

    def _pass_on(self, number: int, message: ToWorker) -> None:
        worker = self.workers.get(number)
        if worker is not None:
            worker.later(0.0, worker.receive, message)

    # ------------------------------------------------------------ the arena

    def moved(self) -> None:
        """Something came from another host: whoever waits here looks again."""
        for worker in self.workers.values():
            if worker.alive and (worker.awaits or worker.fetching):
                worker.wake()

    def stirred(self) -> None:
        """A worker here did something that other hosts may wait for; some here wait for others, and look, too."""
        if self.session is not None and not self._woken:
            self._woken = True
            self.moved()
            self.cluster.clock.after(self.cluster.jitter(self.cluster.nap), self._look)

    def _look(self) -> None:
        self._woken = False
        if self.up and self.session is not None:
            self.session.look()

    def fetched(self) -> None:
        """The state has come from another host."""
        self._say_level()
        self.moved()
        self.stirred()

    def takes(self, session: FakeSession) -> bool:
        """Whether a connection of that session is served yet; else it waits: the generation may be unknown here."""
        mine = self.session
        if not session.fenced or (mine is not None and mine.generation > session.generation):
            return True
        return mine is not None and mine.generation == session.generation and (mine.closed or mine.current())

    # ------------------------------------------------------------ faults

    def end(self) -> None:
        """The machine and all that runs on it is gone; the coordinator sees its connection closed."""
        if self.up and self.number:
            self._stop()
            self.hear(HostLost(self.number, "its connection was closed"))

    def leave(self) -> None:
        """Ask to be let go."""
        self.hear(HostLeaving(self.number, "SIGTERM"))

    def cut_off(self, seconds: float) -> None:
        """Nothing comes through any more, and nobody is told."""
        if not self.up or not self.number or self.cut:
            return
        self.cut = True
        self._cuts += 1
        clock, limit = self.cluster.clock, self.cluster.silence
        clock.after(limit, self._given_up, self._cuts)
        clock.after(limit * (0.7 + self.cluster.jitter(0.6)), self._deserted, self._cuts)
        if seconds < float("inf"):
            clock.after(seconds, self._heal, self._cuts)

    def unlink(self) -> None:
        """The connections to other hosts break; all ends notice, and say so."""
        if self.session is not None and not self.session.closed:
            for number in self.session.unlink():
                self.cluster.hosts[number].hear(LinkBroken(number, "reset by peer"))

    def _given_up(self, cut: int) -> None:
        if self.cut and cut == self._cuts and not self.closed:
            limit = f"{self.cluster.silence:.1f} s"
            self.closed = True
            self.cluster.happened(HostLost(self.number, f"no sign of life for {limit}, limit {limit}"))

    def _deserted(self, cut: int) -> None:
        if self.cut and cut == self._cuts and self.up:
            self._stop()

    def _heal(self, cut: int) -> None:
        if cut != self._cuts:
            return
        self.cut = False
        held, self._held = self._held, []
        for do, args in held:
            self._come(do, args)
        if self.closed or not self.up:
            if not self.closed:
                self.closed = True
                self.cluster.happened(HostLost(self.number, "its connection was closed"))
            self._stop()
            self.cluster.clock.after(self.cluster.jitter(0.1), self.cluster.add_host, self.slots)

    def _stop(self) -> None:
        self.up = False
        if self.session is not None:
            self.session.close()
        if self.follower is not None:
            self.follower.close()
        for worker in self.workers.values():
            worker.alive = False

    def release(self) -> None:
        """The coordinator lets this host go."""
        self.closed = True
        self._stop()
