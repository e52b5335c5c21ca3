"""One machine's visits to a run: it joins, and joins again when it was cut off, for as long as there is a run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import secrets
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.cli.launch.notice import Notice
from holdfast.config.limits import AGENT, CrewConfig
from holdfast.config.worker_spec import WorkerSpec
from holdfast.control.protocol.ports import Monitor, Spawner
from holdfast.dataplane.memory.board_snapshot import BoardPlan, BoardRow
from holdfast.errors import HoldfastError, NetworkError, Refused
from holdfast.hosts.agent import Agent, AgentEnd
from holdfast.hosts.fork_spawner import ForkSpawner
from holdfast.hosts.forkserver import DEFAULT_ENTRY
from holdfast.observe import agent_directory
from holdfast.observe.agent_directory import AgentDirectory
from holdfast.observe.directory import host
from holdfast.observe.monitor import BoardMonitor
from holdfast.transport.auth.credentials import Credentials
from holdfast.transport.auth.dial import connect
from holdfast.transport.auth.handshake import Hello
from holdfast.transport.doorbell import ordered_stores
from holdfast.transport.stream import Stream, name_of

__all__ = ["Patience", "Rejoin"]


@dataclass(slots=True)
class Patience:
    """How long to wait before the next try, and when to give up. Pure: seconds come in as arguments.

    >>> patience = Patience(limit=3.0)
    >>> [patience.failed(now) for now in (0.0, 0.3, 1.0, 3.5)]
    [0.25, 0.5, 1.0, None]
    """

    limit: float
    _tries: int = 0
    _since: float | None = None

    def failed(self, now: float) -> float | None:
        """A try failed: seconds until the next, or None: no more."""
        self._since = now if self._since is None else self._since
        if now - self._since >= self.limit:
            return None
        self._tries += 1
        return float(min(0.25 * 2 ** (self._tries - 1), 5.0))

    def met(self) -> None:
        """The run was reached: it is there. Should it be lost again at once, the next try still comes later."""
        self._since = None

    def succeeded(self) -> None:
        """It went well for a while."""
        self._tries, self._since = 0, None


class _JoinSite:
    """See `agent.AgentSite`: this machine's agent directory, its spawner and monitor."""

    def __init__(self, agent_directory: AgentDirectory, entry: str) -> None:
        self._agent_directory, self._entry = agent_directory, entry
        self.path: Path = agent_directory.path

    def equip(
        self, spec: WorkerSpec, crew: CrewConfig, show: Callable[[Sequence[BoardRow], BoardPlan, float], object]
    ) -> tuple[Spawner, Monitor]:
        """A spawner and monitor."""
        spawner = ForkSpawner(spec, logs=self._agent_directory.logs, entry=self._entry)
        return spawner, BoardMonitor(crew, self._agent_directory, spawner.signal, show)


class Rejoin:
    """Joins a run for as long as it goes.

    Args:
        place: where the run listens.
        slots: workers that this machine has room for; 0 means: one per CPU.
        bind: where to listen for other hosts; an empty host means: where the coordinator says.
        patience: seconds to try to reach the run; None means: once at first, and a minute when it was lost.
        notice: what tells that this machine is about to be taken away (`notice`); empty means: nothing does.
    """

    def __init__(
        self, place: tuple[str, int], credentials: Credentials, *, slots: int, bind: tuple[str, int],
        patience: float | None, entry: str = DEFAULT_ENTRY, notice: str = "",
    ) -> None:  # fmt: skip
        self._notice = notice
        self._place, self._credentials, self._bind, self._entry = place, credentials, bind, entry
        most = slots or len(os.sched_getaffinity(0))
        self._slots = most if ordered_stores(platform.machine()) else 1
        self._first, self._after = patience or 0.0, AGENT.look_for if patience is None else patience
        self._agent: Agent | None = None
        self._signal = 0
        self._asked = asyncio.Event()

    def run(self) -> int:
        """All of them; the exit code."""
        agent_directory.sweep()
        try:
            return asyncio.run(self._run())
        except HoldfastError as error:
            self._say(f"holdfast: {error}")
            return error.exit_code

    async def _run(self) -> int:
        taken = self._listen()
        notice = Notice(self._notice, self._say) if self._notice else None
        try:
            return await self._visit_until_the_end()
        finally:
            if notice is not None:
                notice.close()
            for number in taken:
                asyncio.get_running_loop().remove_signal_handler(number)

    async def _visit_until_the_end(self) -> int:
        patience = Patience(self._first)
        while not self._signal:
            began = time.monotonic()
            try:
                agent_end = await self._stay()
            except NetworkError as error:
                problem: HoldfastError = error
            else:
                if agent_end.kind in ("over", "released"):
                    self._say(
                        agent_end.sentence if agent_end.kind == "over" else f"left the run ({agent_end.sentence})"
                    )
                    return agent_end.code
                if agent_end.kind == "refused":
                    raise Refused(agent_end.sentence)
                if agent_end.kind == "broken" and agent_end.code != NetworkError.exit_code:
                    self._say(f"holdfast: {agent_end.sentence}")
                    return agent_end.code
                problem = NetworkError(agent_end.sentence)
                patience.limit = self._after
                if agent_end.settled:
                    patience.met()
                if agent_end.settled and time.monotonic() - began > AGENT.good_visit:
                    patience.succeeded()
            wait = patience.failed(time.monotonic())
            if wait is None:
                raise problem
            self._say(f"{str(problem).rstrip('.')}; trying again in {wait:g} s")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._asked.wait(), wait)
        return 128 + self._signal

    async def _stay(self) -> AgentEnd:
        hello = Hello("join", facts={"name": host(), "slots": self._slots, "id": secrets.token_hex(8)})
        stream: Stream = await asyncio.to_thread(connect, self._place, hello, self._credentials, AGENT.dial)
        with AgentDirectory() as place:
            self._agent = Agent(
                stream, name=host(), slots=self._slots, credentials=self._credentials, bind=self._bind,
                site=_JoinSite(place, self._entry), say=self._say,
            )  # fmt: skip
            try:
                return await self._agent.serve()
            finally:
                self._agent = None

    # ------------------------------------------------------------ people

    def _listen(self) -> list[int]:
        """First signal: leave in order. Second: leave at once."""
        loop, taken = asyncio.get_running_loop(), []
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                loop.add_signal_handler(number, self._asked_to_leave, number)
                taken.append(int(number))
        return taken

    def _asked_to_leave(self, number: signal.Signals) -> None:
        name = "Ctrl-C" if number == signal.SIGINT else number.name
        again, self._signal = bool(self._signal), int(number)
        self._asked.set()
        if self._agent is None:
            self._say(f"{name}: not joining {name_of(self._place)} any more")
        elif again:
            self._say(f"{name} again: leaving at once")
            self._agent.abort(name)
        else:
            self._say(f"{name}: leaving the run when others have taken over; once more leaves at once")
            self._agent.leave(name)

    def _say(self, sentence: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            print(sentence, file=sys.stderr, flush=True)
