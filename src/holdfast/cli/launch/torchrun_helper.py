"""The helper of a node whose workers are ranks of another launcher: see `train.torchrun.rank_worker`.

On the first node it is what `holdfast run` is elsewhere: it coordinates the run, and keeps its directory. On every
other node it is what `holdfast join` is: the agent of its machine. It lives as long as a rank of its node does, and no
longer than the run. Signals that end a whole job are heard by the ranks, which pass them on.

Run as `python -m holdfast.cli.launch.torchrun_helper`, by the first rank of a node only. Nothing here imports
torch.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.cli.launch import launcher
from holdfast.cli.launch.display import Display
from holdfast.cli.launch.ending import Ending
from holdfast.cli.launch.invitation import Invitation
from holdfast.cli.launch.rank_supervisor import RankSupervisor
from holdfast.config.limits import TORCHRUN, CrewConfig
from holdfast.config.run_config import RunConfig, check
from holdfast.config.worker_spec import WorkerSpec
from holdfast.control.protocol.commands import FailRun
from holdfast.control.protocol.ports import Monitor, Spawner
from holdfast.dataplane.memory.board_snapshot import BoardPlan, BoardRow
from holdfast.errors import CrewLost, HoldfastError, NetworkError
from holdfast.hosts.admission import Admission
from holdfast.hosts.agent import Agent, AgentEnd
from holdfast.hosts.torchrun import rank_messages as say
from holdfast.hosts.torchrun.rank_listener import RankListener
from holdfast.hosts.torchrun.rank_spawner import RankSpawner, SignalVerdict
from holdfast.observe import agent_directory
from holdfast.observe.agent_directory import AgentDirectory
from holdfast.observe.directory import RunDirectory, default_path, host, recover
from holdfast.observe.monitor import BoardMonitor
from holdfast.observe.screen import Screen
from holdfast.transport.auth.credentials import Credentials
from holdfast.transport.auth.dial import connect
from holdfast.transport.auth.handshake import Hello
from holdfast.transport.stream import Stream

__all__ = ["main"]

_DESERTED = (
    "All ranks of the first node are gone, and what coordinates the run goes with them. The output of the ranks, or of "
    "their launcher, says why."
)
#: What a rank that has no part in the run yet is told when a visit ends so.
_KINDS = {"refused": "Refused", "released": "Stopped"}


def main(argv: Sequence[str] | None = None) -> int:
    """Speak for a node until the run ends, or its last rank."""
    parser = argparse.ArgumentParser(prog="holdfast.cli.launch.torchrun_helper")
    parser.add_argument("--socket", type=int, required=True, help="descriptor of the socket that ranks come to")
    parser.add_argument("--leader", type=int, required=True, help="descriptor of the process that started this one")
    options = parser.parse_args(argv)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for fd in (options.socket, options.leader):
        os.set_inheritable(fd, False)
    rank_listener = RankListener(socket.socket(fileno=options.socket), options.leader)
    data = sys.stdin.buffer.read()
    if not data:
        return 1  # whoever wanted us is gone already
    task = say.decode_task(data)
    try:
        return _stay(task, rank_listener) if task.places else _coordinate(task, rank_listener)
    except HoldfastError as error:
        rank_listener.tell_all(_barred(error), ranks=len(task.ranks), seconds=TORCHRUN.late_ranks)
        return error.exit_code
    finally:
        rank_listener.close()


def _barred(error: Exception) -> say.Barred:
    return say.Barred(type(error).__name__, str(error)[:TORCHRUN.error_text])


# ---------------------------------------------------------------- the first node


def _coordinate(task: say.HelperTask, rank_listener: RankListener) -> int:
    script = task.script if task.script.endswith(".py") else "ranks.py"  # python -c, and the like
    config = RunConfig(
        script=script, args=task.args, workers=len(task.ranks), lanes=task.lanes, seed=task.seed,
        threads=task.threads, dir=task.dir, listen=task.listen, hosts=task.nodes,
    )  # fmt: skip
    sources = dict.fromkeys(("lanes", "seed", "threads"), "hf.join")
    sources |= {"workers": "the launcher", "hosts": "the launcher", "dir": "HOLDFAST_DIR", "listen": "HOLDFAST_LISTEN"}
    check(config, sources)
    screen = Screen(sys.stderr, sys.stdout)
    began = time.time()
    path = Path(config.dir) if config.dir else default_path(config.script, began)
    run = f"{path.name}-{secrets.token_hex(4)}"
    invitation = Invitation(config, run) if config.listen else None
    if swept := recover(path):
        screen.say(swept)
    agent_directory.sweep()
    # A launcher that starts its ranks anew starts a new run.
    with RunDirectory.create(path, complain=screen.say, unique=not config.dir or task.restart > 0) as directory:
        record: dict[str, Any] = {
            "run": run, "pid": os.getpid(), "host": host(), "started": began, "argv": [task.script, *task.args],
            "cwd": os.getcwd(), "scratch": directory.scratch, "config": msgspec.to_builtins(config), "sources": sources,
        }  # fmt: skip
        return launcher.conduct(
            directory, screen, record,
            lambda *_: _Adopting(
                config, run, directory, screen, invitation=invitation, task=task, rank_listener=rank_listener
            ),
        )  # fmt: skip


class _Adopting(launcher._Launcher):
    """A run whose workers on this machine are ranks that run already."""

    def __init__(
        self, config: RunConfig, run: str, directory: RunDirectory, screen: Screen, *, invitation: Invitation | None,
        task: say.HelperTask, rank_listener: RankListener,
    ) -> None:  # fmt: skip
        super().__init__(config, run, directory, screen, invitation=invitation)
        self._rank_supervisor = RankSupervisor(len(task.ranks), rank_listener)
        # What ranks print, the launcher shows.
        self._display = Display(screen, self._server, self._meter, Path(os.devnull))

    async def run(self) -> Ending:
        """The run, and a look at the ranks meanwhile. Who has no part in it yet when it ends is told why."""
        rank_listener = self._rank_supervisor.rank_listener
        try:
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(self._rank_supervisor.watch(self._deserted, self._act), name="ranks")
                try:
                    ending = await super().run()
                finally:
                    watching.cancel()
        except ExceptionGroup as several:  # the group's, around the one thing that went wrong
            error = several.exceptions[0]
            rank_listener.tell_all(_barred(error), ranks=self._rank_supervisor.ranks, seconds=TORCHRUN.late_ranks)
            raise error from None
        finally:
            faulthandler.dump_traceback_later(TORCHRUN.helper_end, exit=True)
            rank_listener.tell_all(say.RunOver())
        if isinstance(ending.end, FailRun):
            rank_listener.tell_all(say.Barred(ending.end.kind, ending.end.message[:TORCHRUN.error_text]))
        return ending

    def _deserted(self) -> None:
        if not self._server.over:
            self._server.broke(0, CrewLost(_DESERTED))

    def _act(self, verdict: SignalVerdict) -> None:
        if verdict.everybody:
            self.asked_to_end(signal.Signals[verdict.signal])
        for event in self._rank_supervisor.leaving(verdict):
            self._server.heard(0, event)

    def listen(self, hear: Callable[[signal.Signals], None]) -> list[int]:
        """None."""
        return []  # the ranks hear signals, and pass them on

    def _single(self) -> str:
        return "its workers are ranks, which their launcher starts once"

    def _open_admission(self) -> None:
        """Listen for the other nodes. Nobody else is invited: who has a part in this run, its launcher says."""
        if self._invitation is None:
            return
        self._admission = Admission(
            self._invitation.bind, self._invitation.credentials, run=self._run,
            spec=msgspec.structs.replace(self._spec, script=os.devnull),  # ranks have their own: nothing travels
            crew=self._config.crew, callbacks=self, host=host(),
        )  # fmt: skip
        where = say.Listening(self._admission.addresses, self._admission.address[1], self._invitation.credentials.token)
        self._rank_supervisor.rank_listener.keep(0, where)

    def _open_host(self) -> None:
        super()._open_host()
        assert self._host is not None
        self._host.refills = False

    def spawner(self) -> RankSpawner:
        """What makes workers of the ranks on this machine."""
        return self._rank_supervisor.adopt(self._spec, lambda sentence: self._server.told(0, sentence))


# ---------------------------------------------------------------- other nodes


def _stay(task: say.HelperTask, rank_listener: RankListener) -> int:
    agent_directory.sweep()
    agent_end = asyncio.run(_RankSite(task, rank_listener).run())
    faulthandler.dump_traceback_later(TORCHRUN.helper_end, exit=True)
    rank_listener.tell_all(say.RunOver())
    if agent_end.kind != "over":
        why = agent_end.sentence[: TORCHRUN.error_text]
        rank_listener.tell_all(say.Barred(_KINDS.get(agent_end.kind, "NetworkError"), why))
    if agent_end.kind != "over" or agent_end.code:
        end = "; its ranks are ended, since nobody can use what they do" if agent_end.kind == "lost" else ""
        print(f"holdfast: {host()}: {agent_end.sentence}{end}", file=sys.stderr, flush=True)
    return agent_end.code


class _RankSite:
    """This node's part in a run that is coordinated on another. See `agent.AgentSite`."""

    def __init__(self, task: say.HelperTask, rank_listener: RankListener) -> None:
        self._task, self._rank_supervisor = task, RankSupervisor(len(task.ranks), rank_listener)
        self._agent: Agent | None = None
        self._agent_directory: AgentDirectory | None = None
        self.path = Path()

    async def run(self) -> AgentEnd:
        """From joining to the end."""
        credentials = Credentials(self._task.token)
        stream = await asyncio.to_thread(self._reach, credentials)
        with AgentDirectory() as self._agent_directory:
            self.path = self._agent_directory.path
            self._agent = Agent(
                stream, name=host(), slots=self._rank_supervisor.ranks, credentials=credentials, site=self, say=_quiet
            )
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(self._rank_supervisor.watch(self._deserted, self._act), name="ranks")
                agent_end = await self._agent.serve()
                watching.cancel()
        return agent_end

    def _reach(self, credentials: Credentials) -> Stream:
        """A connection to the run, at the first of its addresses that answers."""
        hello = Hello("join", facts={"name": host(), "slots": self._rank_supervisor.ranks, "refills": 0})
        until = time.monotonic() + TORCHRUN.dial_all
        while True:
            for place in self._task.places:
                try:
                    return connect(place, hello, credentials, TORCHRUN.dial)
                except NetworkError as error:
                    problem = error
                    if self._rank_supervisor.rank_listener.deserted() or time.monotonic() >= until:
                        raise problem from None
            time.sleep(TORCHRUN.helper_poll)

    def equip(
        self, spec: WorkerSpec, crew: CrewConfig, show: Callable[[Sequence[BoardRow], BoardPlan, float], object]
    ) -> tuple[Spawner, Monitor]:
        """A spawner and monitor."""
        assert self._agent_directory is not None
        spawner = self._rank_supervisor.adopt(spec, self._tell)
        return spawner, BoardMonitor(crew, self._agent_directory, spawner.signal, show)

    def _tell(self, sentence: str) -> None:
        assert self._agent is not None
        self._agent.told(self._agent.number, sentence)

    def _deserted(self) -> None:
        assert self._agent is not None
        self._agent.abort("no rank is left on this machine")

    def _act(self, verdict: SignalVerdict) -> None:
        assert self._agent is not None
        if verdict.everybody:
            self._agent.leave(verdict.signal)
        for event in self._rank_supervisor.leaving(verdict):
            self._agent.heard(self._agent.number, event)


def _quiet(sentence: str) -> None:
    """What the run has to tell is told by its first node."""


if __name__ == "__main__":
    sys.exit(main())
