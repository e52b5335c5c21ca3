"""The agent: this machine's part in a run that is coordinated elsewhere. Orders come in, reports go out.

    coordinator ══ one connection ══ agent ── forkserver ── workers
                                       └───── the arena of this machine, and its peer session

One `Agent` is one visit: it begins when the run has let this machine in, and ends with the connection. Whatever ends
it, every process it started is gone before `serve` returns. When the coordinator is not heard any more, there is
nobody who could use what the workers do, so they are killed; whether to try again is for the caller to say.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import traceback
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from holdfast.config.limits import AGENT, CrewConfig
from holdfast.config.worker_spec import WorkerSpec
from holdfast.control.membership.liveness import Silence
from holdfast.control.protocol.events import Event, HostLeaving, HostUnreached, WorkerHung, WorkerLost
from holdfast.control.protocol.messages import Failed, Finished, Refuse, StoreAt
from holdfast.control.protocol.ports import Monitor, Spawner, WatchOrder
from holdfast.core.routes import NoRoute, Offer
from holdfast.dataplane.memory.board_snapshot import BoardPlan, BoardRow
from holdfast.errors import HoldfastError, Refused, brief
from holdfast.hosts import orders
from holdfast.hosts.local_host import LocalHost, Restoration
from holdfast.hosts.log_shipper import LogShipper
from holdfast.hosts.peer_listener import PeerListener
from holdfast.hosts.peers import Peers
from holdfast.hosts.script_files import has_same, safe_name
from holdfast.hosts.state_source import LocalState
from holdfast.hosts.state_transfers import StateTransfers
from holdfast.transport.auth.credentials import Credentials
from holdfast.transport.channel import Channel
from holdfast.transport.stream import Stream

__all__ = ["Agent", "AgentEnd", "AgentSite"]


class AgentEnd(NamedTuple):
    """How a visit ended: `over` (the run has), `released` or `refused` (we have no part in it), `lost`, `broken`."""

    kind: str
    sentence: str
    code: int = 0
    settled: bool = False  #: this machine had become a host of the run


class AgentSite(Protocol):
    """What this machine provides for a visit: a place for files, and what starts and watches workers."""

    path: Path  #: nobody else's

    def equip(
        self, spec: WorkerSpec, crew: CrewConfig, show: Callable[[Sequence[BoardRow], BoardPlan, float], object]
    ) -> tuple[Spawner, Monitor]:
        """A spawner for workers like `spec`, and monitor for them."""


class Agent:
    """One visit.

    Args:
        stream: the connection, after the greeting.
        bind: where to listen for the other hosts; the coordinator says whether beyond loopback where it is empty.
        say: told, in sentences, what people at this machine may want to know.

    Resources: owns the stream; `serve` closes it, and ends every process, before it returns.
    """

    def __init__(
        self, stream: Stream, *, name: str, slots: int, credentials: Credentials, site: AgentSite,
        bind: tuple[str, int] = ("", 0), say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._stream, self._name, self._slots, self._credentials = stream, name, slots, credentials
        self._site, self._bind, self._say = site, bind, say
        self._log_shipper = LogShipper(site.path, lambda name, data: self._report(orders.FileData(name, data)))
        self._state_transfers = StateTransfers(
            lambda report: self._channel is not None and self._channel.send(orders.encode(report)),
            lambda: self._channel.backlog if self._channel is not None else 0,
        )
        self._began = time.monotonic()
        self._pulse, self._sight = Silence(), WatchOrder(limit=AGENT.first_silence)
        self._offers: dict[int, Offer] = {}
        self._delivered: asyncio.Event = asyncio.Event()
        self._number = -1
        self._leaving = ""
        self._joined: list[str] = []  #: what is to be said when the run has let us in for good
        self._refusals: set[str] = set()
        self._host: LocalHost | None = None
        self._peer_listener: PeerListener | None = None
        self._channel: Channel | None = None
        self._group: asyncio.TaskGroup | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._end: asyncio.Future[AgentEnd] | None = None

    @property
    def number(self) -> int:
        """This host's number in the run; -1 before it is known."""
        return self._number

    # ------------------------------------------------------------ the visit

    async def serve(self) -> AgentEnd:
        """Have a part in the run until it ends, we leave, or the connection does."""
        loop = asyncio.get_running_loop()
        self._end = loop.create_future()
        self._channel = Channel(
            self._stream, lambda frame: self._soon(loop, self._obey, orders.decode_order(frame.body)),
            lambda reason: self._soon(loop, self._finish, AgentEnd("lost", f"the coordinator is gone ({reason})")),
        )
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                self._spawn(self._beat(), "beat")
                self._spawn(self._attend(), "attend")
                agent_end = await self._end
                for task in self._tasks:
                    task.cancel()
        finally:
            try:
                self._close()
            except HoldfastError as error:  # processes that do not end: whatever else happened, that is worth knowing
                agent_end = _broken(error)
        if agent_end.kind == "broken":
            self._report(orders.Broke(agent_end.sentence))
        else:
            self._log_shipper.collect(1 << 62)
            self._report(orders.Leave())
        await asyncio.to_thread(self._channel.close)
        return agent_end._replace(settled=self._host is not None)

    def leave(self, reason: str) -> None:
        """Leave in order: the workers here hand over what they do first. Before there are any: at once."""
        if self._host is None:
            self._finish(AgentEnd("released", reason))
        self._leaving = reason
        self._report(orders.Happened(HostLeaving(self._number, reason)))

    def abort(self, reason: str) -> None:
        """Leave now."""
        self._finish(AgentEnd("released", reason))

    def _finish(self, agent_end: AgentEnd) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_result(agent_end)

    def _close(self) -> None:
        self._state_transfers.close()
        if self._host is not None:
            self._host.close()
        if self._peer_listener is not None:
            self._peer_listener.close()

    # ------------------------------------------------------------ signs of life

    async def _beat(self) -> None:
        """Say that we are here, and judge how long the coordinator has not been."""
        heard, looked = 0.0, time.monotonic()
        while True:
            await asyncio.sleep(AGENT.tick)
            assert self._channel is not None
            self._report(orders.Alive())
            if self._leaving:
                self._report(orders.Happened(HostLeaving(self._number, self._leaving)))
            self._fetch_logs()
            now = time.monotonic()
            elapsed, looked = now - looked, now
            if self._channel.heard != heard:
                heard = self._channel.heard
                self._pulse.beat()
            elif self._pulse.listened(elapsed) > self._sight.limit:
                self._finish(
                    AgentEnd(
                        "lost", f"nothing was heard of the coordinator for {self._pulse.silent:.1f} s "
                        f"(limit {self._sight.limit:.1f} s)",
                    )
                )  # fmt: skip

    async def _attend(self) -> None:
        """See how the workers here are."""
        while True:
            if self._host is not None:
                await self._host.look(self._sight, time.monotonic() - self._began)
            await asyncio.sleep(AGENT.tick)

    def _fetch_logs(self) -> None:
        if self._channel is not None and self._channel.backlog < AGENT.log_backlog:
            self._log_shipper.collect()

    def _show(self, rows: Sequence[BoardRow], plan: BoardPlan, now: float) -> None:
        self._report(orders.Showed(list(rows), plan))

    # ------------------------------------------------------------ orders

    def _obey(self, order: orders.Order) -> None:
        host = self._host
        match order:
            case orders.Brief():
                self._offers.update(order.offers)
                self._spawn(self._settle(order), "settle")
            case orders.Deliver(name, data, last):
                self._unpack(name, data)
                if last:
                    self._delivered.set()
            case orders.LearnPeers(offers):
                self._offers.update(offers)
                if self._peer_listener is not None:
                    self._peer_listener.peers.learn(offers)
                    self._spawn(self._meet(self._peer_listener.peers, sorted(offers)), "meet")
            case orders.Forget(gone):
                self._offers.pop(gone, None)
                if self._peer_listener is not None:
                    self._peer_listener.peers.forget(gone)
            case orders.WatchWorkers(sight):
                self._sight = sight
                for sentence in self._joined:  # only who has joined is asked to watch anything
                    self._say(sentence)
                self._joined = []
                if self._peer_listener is not None:
                    self._peer_listener.peers.patience = 2 * sight.limit + 3.0
            case orders.Dismiss(reason, kind):
                self._finish(self._released(reason, kind))
            case orders.RunOver(sentence, code):
                self._finish(AgentEnd("over", sentence, code))
            case orders.TakeState(number, still) if host is not None:
                self._state_transfers.give(number, LocalState(host.view, host.ring), still=still)
            case orders.StateHead() | orders.StatePart() | orders.StateEnd():
                self._state_transfers.came(order)
            case orders.Start(worker, row) if host is not None:
                host.start(worker, row)
            case orders.Kill(worker) if host is not None:
                host.kill(worker)
            case orders.Reserve(size) if host is not None:
                host.make_arena(size)
            case orders.PassOn(worker, message) if host is not None:
                if isinstance(message, Refuse):
                    self._refusals.add(message.reason)
                if isinstance(message, StoreAt) and message.far:
                    message = msgspec.structs.replace(message, credentials=self._credentials.text)
                host.send(worker, message)
            case _:
                raise HoldfastError(f"The coordinator ordered {type(order).__name__} before this machine was ready.")

    def _released(self, reason: str, kind: str) -> AgentEnd:
        if kind != "released":
            return AgentEnd(kind, reason, Refused.exit_code if kind == "refused" else 0)
        if self._refusals and not self._leaving:  # the machine does not fit: whoever started it wants to know
            return AgentEnd("refused", " ".join(sorted(self._refusals)), Refused.exit_code)
        return AgentEnd("released", reason)

    def _unpack(self, name: str, data: bytes) -> None:
        folder = self._site.path / "script"
        folder.mkdir(mode=0o700, exist_ok=True)
        with open(folder / safe_name(name), "ab") as file:
            file.write(data)

    async def _settle(self, brief: orders.Brief) -> None:
        """Become able to take workers: the script, a door for other hosts, ways to them."""
        self._number = brief.host
        script = brief.spec.script
        if not has_same(script, brief.digests):
            self._report(orders.Wanting())
            await self._delivered.wait()
            script = str(self._site.path / "script" / next(iter(brief.digests)))
            self._say(f"the script {brief.spec.script} was sent along: this machine has not the same")
        scratch = self._site.path / "tmp"
        scratch.mkdir(mode=0o700, exist_ok=True)
        spec = msgspec.structs.replace(brief.spec, script=script, dir=str(self._site.path), scratch=str(scratch))
        brief = msgspec.structs.replace(brief, offers=dict(self._offers))  # others may have come or gone meanwhile
        self._peer_listener = PeerListener(
            brief, bind=self._bind, peer=self._stream.peer, name=self._name, credentials=self._credentials,
            complain=self._say,
        )  # fmt: skip
        peers = self._peer_listener.peers
        ways = await asyncio.to_thread(peers.survey)
        spawner, monitor = self._site.equip(spec, brief.crew, self._show)
        slots, resumed = self._slots, brief.resumed
        self._host = LocalHost(
            brief.host, name=self._name, slots=slots, spawner=spawner, monitor=monitor, peers=peers,
            restoration=Restoration(self._state_transfers.fetch, resumed) if resumed is not None else None,
        )  # fmt: skip
        self._host.open(self)
        room = f"{slots} worker{'s' * (slots > 1)}"
        self._joined = [f"joined run {brief.run} as host {brief.host}, with room for {room}", *ways]
        self._report(orders.Settled(peers.offer, ways))

    async def _meet(self, peers: Peers, others: list[int]) -> None:
        """They have found a way to here. Should there be none back, that is better known before it is needed."""
        for other in others:
            try:
                await asyncio.to_thread(peers.knock, other)
            except NoRoute as error:
                self.heard(self._number, HostUnreached(self._number, other, brief(error)))

    # ------------------------------------------------------------ reports

    def heard(self, host: int, event: Event) -> None:
        """Something happened here: see `ports.Ear`. What a worker wrote goes before the news of its end."""
        if isinstance(event, WorkerLost | WorkerHung | Failed | Finished):
            self._fetch_logs()
        self._report(orders.Happened(event))

    def told(self, host: int, sentence: str) -> None:
        """A sentence for the run's story."""
        self._report(orders.Said(sentence))

    def broke(self, host: int, error: Exception) -> None:
        """This host cannot go on."""
        self._finish(_broken(error))

    def _report(self, report: orders.Report) -> bool:
        if self._channel is None:
            return False
        taken = self._channel.send(orders.encode(report))
        if not taken and not isinstance(report, orders.FileData | orders.Alive):
            self._finish(AgentEnd("lost", "the coordinator takes nothing any more"))
        return taken

    # ------------------------------------------------------------ the loop

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        async def guarded() -> None:
            try:
                await work
            except Exception as error:
                self.broke(self._number, error)

        assert self._group is not None
        self._tasks.append(self._group.create_task(guarded(), name=name))

    def _soon(self, loop: asyncio.AbstractEventLoop, act: Callable[..., None], *args: object) -> None:
        """Have something done in the loop; what it raises ends the visit."""

        def guarded() -> None:
            try:
                act(*args)
            except Exception as error:
                self.broke(self._number, error)

        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(guarded)


def _broken(error: Exception) -> AgentEnd:
    if isinstance(error, HoldfastError):
        return AgentEnd("broken", str(error), error.exit_code)
    if isinstance(error, OSError):
        return AgentEnd("broken", f"{error.strerror or error} ({error.filename or os.getcwd()})", 7)
    trace = "".join(traceback.format_exception(error))
    return AgentEnd("broken", f"holdfast itself failed ({type(error).__name__}: {error}). This is a bug.\n{trace}", 70)
