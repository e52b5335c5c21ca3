"""A host elsewhere, as the coordinator sees it: orders go out, reports come in (see `orders`).

A host that dies is seen by its closed connection, at once; one that is cut off without a word by its silence. Either
way it is lost, with all its workers: nobody need be certain that they are dead, because nobody here reads their memory,
and what they send belongs to a generation that is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from holdfast.checkpoint.capture import State
from holdfast.config.limits import AGENT
from holdfast.control.membership.liveness import Silence
from holdfast.control.protocol import events, messages
from holdfast.control.protocol.commands import EndRun, FailRun, ReleaseHost
from holdfast.control.protocol.events import Event, HostLost
from holdfast.control.protocol.messages import ToWorker
from holdfast.control.protocol.ports import HostListener, WatchOrder
from holdfast.core.routes import Offer
from holdfast.dataplane.memory.board_snapshot import BoardPlan, BoardRow
from holdfast.errors import FrameError, HoldfastError
from holdfast.hosts import orders
from holdfast.hosts.log_shipper import log_place
from holdfast.hosts.script_files import ScriptFiles
from holdfast.hosts.state_parts import cut_state, send_parts
from holdfast.hosts.state_source import RemoteState
from holdfast.transport.channel import Channel
from holdfast.transport.frames import Frame
from holdfast.transport.stream import Stream

__all__ = ["RemoteHost", "RemoteHostCallbacks"]

#: What may happen on a host. Whatever else an agent says is not its to say.
_OF_WORKERS = (
    events.WorkerStarted, events.WorkerLost, events.WorkerFrozen, events.WorkerHung, messages.Ready, messages.Seeded,
    messages.Paused, messages.AtBoundary, messages.Leaving, messages.Finished, messages.Failed, messages.StoreWanted,
)  # fmt: skip
_OF_HOSTS = (
    events.HostLevel, events.HostLeaving, events.HostUnreached, events.LinkBroken, events.CatchUpEnded,
)  # fmt: skip


class RemoteHostCallbacks(Protocol):
    """What the launcher does with what comes from a host. All of it is called in the loop's thread."""

    def settled(self, host: RemoteHost, offer: Offer, ways: list[str]) -> None:
        """The host can take workers, and can be reached by others as it offers."""

    def left(self, host: RemoteHost, reason: str) -> None:
        """The host has gone before it was settled."""

    def closed(self, host: int) -> None:
        """The host has no part in the run any more."""

    def showed(self, host: int, rows: list[BoardRow], plan: BoardPlan) -> None:
        """What its board shows."""

    def keep(self, name: str, data: bytes) -> None:
        """Add to a file in the run's directory."""


class RemoteHost:
    """See `control.protocol.ports.Host`. Made when a machine was let in; it speaks at once, inside a running loop.

    Resources: owns the stream; `close` ends the connection, in the background.
    """

    def __init__(
        self, number: int, stream: Stream, *, name: str, slots: int, refills: bool, brief: orders.Brief,
        script_files: ScriptFiles, callbacks: RemoteHostCallbacks, first_state: Callable[[], State] | None = None,
    ) -> None:  # fmt: skip
        self.number, self.name, self.slots, self.refills = number, name, slots, refills
        self._script_files, self._callbacks = script_files, callbacks
        self._loop = asyncio.get_running_loop()
        self._ear: HostListener | None = None
        self._workers: set[int] = set()
        self._pulse, self._looked, self._heard = Silence(), 0.0, 0.0
        self._lost = self._closed = False
        self._gone = threading.Event()  #: the connection has ended
        self._first_state = first_state
        self.state = RemoteState(self._ask)  #: for checkpoints
        self._channel = Channel(stream, self._frame, self._ended)
        self._order(brief)

    @property
    def peer(self) -> str:
        """Its address, as this machine sees it."""
        return self._channel.peer

    # ------------------------------------------------------------ orders

    def open(self, ear: HostListener) -> None:
        """From now on it has a part in the run."""
        self._ear = ear

    def start(self, worker: int, row: int) -> None:
        """Have a worker started."""
        self._workers.add(worker)
        self._order(orders.Start(worker, row))

    def kill(self, worker: int) -> None:
        """Have a worker killed."""
        self._order(orders.Kill(worker))

    def make_arena(self, size: int) -> None:
        """Have the arena made."""
        self._order(orders.Reserve(size))

    def send(self, worker: int, message: ToWorker) -> None:
        """Have a message passed on."""
        self._order(orders.PassOn(worker, message))

    def meet(self, offers: Mapping[int, Offer]) -> None:
        """Say how others can be reached."""
        self._order(orders.LearnPeers(dict(offers)))

    def forget(self, host: int) -> None:
        """Say that another host has no part in the run any more."""
        self._order(orders.Forget(host))

    async def look(self, sight: WatchOrder, now: float) -> None:
        """Say what to watch, and judge how long nothing was heard."""
        self._order(orders.WatchWorkers(sight))
        elapsed, self._looked = now - self._looked if self._looked else 0.0, now
        if self._channel.heard != self._heard:
            self._heard = self._channel.heard
            self._pulse.beat()
        elif self._pulse.listened(elapsed) > sight.limit:
            self._lose(f"no sign of life for {self._pulse.silent:.1f} s, limit {sight.limit:.1f} s")

    def close(self, end: EndRun | FailRun | ReleaseHost | None = None) -> None:
        """Let it go. Its processes end with the connection, or before, if it hears why."""
        if self._closed:
            return
        self._closed = True
        self.state.lost()
        self._callbacks.closed(self.number)
        if isinstance(end, ReleaseHost):
            self._channel.send(orders.encode(orders.Dismiss(end.reason, end.kind)))
        elif end is not None:
            self._channel.send(orders.encode(orders.RunOver(*_told(end))))
        patience = 0.0 if self._lost or end is None else AGENT.leave
        # Not in the loop, which has other hosts to attend to; and not as a daemon, so that the last words get out.
        threading.Thread(target=self._hang_up, args=(patience,), name=f"holdfast-farewell-{self.number}").start()

    def _hang_up(self, patience: float) -> None:
        self._gone.wait(patience)
        self._channel.close()

    def _order(self, order: orders.Order) -> None:
        if not self._closed and not self._channel.send(orders.encode(order)) and not self._lost:
            # The end of a connection is noticed here and by its reader, in either order, and has one reason.
            self._loop.call_soon(self._lose, self._channel.ended or "it takes no more orders")

    def _ask(self, order: orders.Order) -> bool:
        """The same, from any thread."""
        return not self._closed and self._channel.send(orders.encode(order))

    def _send_state(self) -> None:
        """Send the state that the run goes on with. In a thread."""
        try:
            if self._first_state is None:
                raise HoldfastError("A host asked for the state of a run that began anew.")
            send_parts(cut_state(self._first_state()), self._ask, lambda: self._channel.backlog, self._gone.is_set)
        except Exception as error:
            if self._ear is not None:
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    self._loop.call_soon_threadsafe(self._ear.broke, self.number, error)

    def _lose(self, reason: str) -> None:
        if self._lost or self._closed:
            return
        self._lost = True
        self.state.lost()
        if self._ear is not None:
            self._ear.heard(self.number, HostLost(self.number, reason))
        else:
            self._callbacks.left(self, reason)

    # ------------------------------------------------------------ reports

    def _frame(self, frame: Frame) -> None:
        """In the channel's thread: what does not make sense ends the connection there."""
        report = orders.decode_report(frame.body)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._guarded, self._take, report)

    def _ended(self, reason: str) -> None:
        self._gone.set()
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._guarded, self._lose, reason)

    def _guarded(self, act: Callable[..., None], *args: object) -> None:
        try:
            act(*args)
        except Exception as error:
            if self._ear is None:
                raise
            self._ear.broke(self.number, error)

    def _take(self, report: orders.Report) -> None:
        if self._closed or self._lost:
            if isinstance(report, orders.FileData):  # last words are kept, also those that come after the end
                self._keep(report)
            return
        match report:
            case orders.Happened(event):
                self._happened(event)
            case orders.Showed(rows, plan):
                self.state.showed(max((row.step for row in rows), default=-1))
                self._callbacks.showed(self.number, rows, plan)
            case orders.FileData():
                self._keep(report)
            case orders.Said(sentence):
                if self._ear is not None:
                    self._ear.told(self.number, sentence)
            case orders.Wanting():
                for name, data, last in self._script_files.pieces():
                    self._order(orders.Deliver(name, data, last))
            case orders.Settled(offer, ways):
                if self._ear is None:
                    self._callbacks.settled(self, offer, ways)
            case orders.Broke(reason):
                self._lose(reason)
            case orders.WantState():
                threading.Thread(target=self._send_state, name=f"holdfast-state-{self.number}", daemon=True).start()
            case orders.StateHead() | orders.StatePart() | orders.StateEnd():
                try:
                    self.state.came(report)
                except FrameError as error:
                    self._lose(f"a message could not be handled: {error}")
            case orders.Alive() | orders.Leave():
                pass

    def _happened(self, event: Event) -> None:
        if self._ear is None:
            return
        if isinstance(event, _OF_WORKERS):
            if event.worker not in self._workers:
                return
        elif isinstance(event, _OF_HOSTS):
            event = msgspec.structs.replace(event, host=self.number)
        elif not isinstance(event, events.Measured):
            return
        self._ear.heard(self.number, event)

    def _keep(self, report: orders.FileData) -> None:
        place = log_place(report.name, self.number)
        if place is not None and (place[1] is None or place[1] in self._workers):
            self._callbacks.keep(place[0], report.data)


def _told(end: EndRun | FailRun) -> tuple[str, int]:
    """How the run ended, for the people at the other machine, and the exit code."""
    if isinstance(end, EndRun):
        return f"the run has ended ({end.reason})", 128 + end.signal if end.signal else 0
    code = 128 + end.signal if end.signal else end.exit_code
    first = end.message.strip().splitlines()[0] if end.message.strip() else end.kind
    return f"the run has failed ({end.kind}: {first})", code
