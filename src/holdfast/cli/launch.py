"""The launcher: wires engine, machine, eyes and screen together, and sees the run to its end.

However it ends, the run's directory gets a summary, the exit code tells the class of the end, and no
process, descriptor or socket is left. Nothing here imports torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import msgspec

from holdfast.cli.ending import Ending, last_line, summary
from holdfast.cli.failure import present
from holdfast.config.run import DEFAULTS_OF_JOIN, CrewConfig, RunConfig
from holdfast.config.sources import Resolved
from holdfast.config.worker import WorkerSpec
from holdfast.coordinator.commands import EndRun, FailRun
from holdfast.coordinator.control import ControlSocket
from holdfast.coordinator.requests import Ask, Scale
from holdfast.coordinator.roster import CrewLimits, names
from holdfast.coordinator.server import Server
from holdfast.engines.engine import open_engine
from holdfast.engines.nursery import DEFAULT_ENTRY
from holdfast.errors import HoldfastError, UsageError
from holdfast.observe import status
from holdfast.observe.directory import RunDirectory, default_path, host, recover, recover_siblings
from holdfast.observe.eyes import BoardEyes
from holdfast.observe.notebook import RunNotebook
from holdfast.observe.progress import line
from holdfast.observe.screen import Screen, Tail
from holdfast.observe.watch import WatchLimits
from holdfast.transport.doorbell import ordered_stores

__all__ = ["launch"]

#: Seconds between two updates of the progress line.
_SHOW = 0.25
_NEVER_JOINED = (
    "The script came to its end without hf.join(), so every worker ran all of it by itself. Join the run and hand over "
    "what is trained: run = hf.join(); model, optimizer, loader = run.prepare(model, optimizer, loader)."
)


def launch(resolved: Resolved, *, entry: str = DEFAULT_ENTRY) -> int:
    """Run it. `entry` is what a worker process calls (tests put their own there)."""
    config = resolved.config
    if not Path(config.script).is_file():
        raise UsageError(f"{config.script}: there is no such script. Give the path of a Python file.")
    screen = Screen(sys.stderr, sys.stdout)
    began = time.time()
    path = Path(config.dir) if config.dir else default_path(config.script, began)
    for swept in filter(None, [recover(path), *recover_siblings(path if not config.dir else Path("runs", "-"))]):
        screen.say(swept)
    with RunDirectory.create(path, complain=screen.say, unique=not config.dir) as directory:
        record: dict[str, Any] = {
            "pid": os.getpid(), "host": host(), "started": began, "argv": sys.argv, "cwd": os.getcwd(),
            "scratch": directory.scratch, "config": msgspec.to_builtins(config), "sources": resolved.sources,
        }
        directory.begin(msgspec.json.format(msgspec.json.encode(record), indent=2).decode() + "\n")
        ending = _see_through(config, directory, screen, entry)
        seconds = time.time() - began
        screen.end()
        if isinstance(ending.end, FailRun):
            directory.write("failure.txt", f"{ending.end.kind}: {ending.end.message}\n\n{ending.end.trace}\n")
            screen.say(present(ending.end.kind, ending.end.message, ending.end.trace, _near(directory.path)))
        facts = summary(ending, record, seconds)
        directory.write_summary(facts)
        if isinstance(ending.end, EndRun):
            screen.say(last_line(facts, ending, _near(directory.path)))
    return ending.exit_code


def _see_through(config: RunConfig, directory: RunDirectory, screen: Screen, entry: str) -> Ending:
    """Run to the end; errors of the shell become an ending too, so that every run gets its summary."""
    try:
        return asyncio.run(_Launch(config, directory, screen, entry).run())
    except HoldfastError as error:
        return Ending(FailRun(type(error).__name__, str(error)))
    except Exception as error:
        text = f"holdfast itself failed ({type(error).__name__}: {error}). This is a bug: please report failure.txt."
        return Ending(FailRun("Bug", text, traceback.format_exc()))


class _Launch:
    """One run, from its first process to its last."""

    def __init__(self, config: RunConfig, directory: RunDirectory, screen: Screen, entry: str) -> None:
        self._directory, self._screen = directory, screen
        alone = _alone(platform.machine())
        workers = config.workers or (1 if alone else _default_workers(config))
        spec = WorkerSpec(
            worker=-1, row=-1, script=config.script, args=config.args, dir=str(directory.path), crew=config.workers,
            scratch=directory.scratch, audit=config.audit, **config.overrides(),
        )
        lanes = config.lanes or max(DEFAULTS_OF_JOIN["lanes"], workers)
        watching = WatchLimits(
            frozen=config.crew.frozen_limit, hang=config.crew.hang_limit, hang_factor=config.crew.hang_factor,
            idle=config.crew.idle_limit,
        )
        limits = _limits(config.crew, lanes, workers, alone)
        self._engine = open_engine(config.on, spec, logs=directory.logs, entry=entry)
        self._notebook = RunNotebook(directory, screen)
        self._eyes = BoardEyes(watching, directory, self._engine.signal)
        self._server = Server(
            limits, engine=self._engine, eyes=self._eyes, notebook=self._notebook,
            exit_grace=config.crew.exit_grace,
        )
        self._limits_told = watching.told()
        self._signal = 0
        self._lead = -1
        self._tail: Tail | None = None
        self._held: list[str] = []

    async def run(self) -> Ending:
        """The whole run. What is opened here is closed here."""
        control: ControlSocket | None = None
        listened: list[int] = []
        try:
            self._screen.say(f"run directory: {_near(self._directory.path)}")
            self._notebook.note(0.0, "Limits", self._limits_told)
            control = self._open_control()
            listened = self._listen()
            async with asyncio.TaskGroup() as group:
                shower = group.create_task(self._show(), name="screen")
                end = await self._server.run()
                ended = self._server.now()
                shower.cancel()
        except ExceptionGroup as several:
            raise several.exceptions[0] from None
        finally:
            for number in listened:
                asyncio.get_running_loop().remove_signal_handler(number)
            if control is not None:
                control.close()
            self._engine.close()  # the server has, unless it never came to run
        self._echo(last=True)
        if isinstance(end, EndRun) and end.result.get("joined") is False:
            end = FailRun("UsageError", _NEVER_JOINED)
        snapshot = self._server.snapshot()
        since = self._server.training_since
        return Ending(
            end, self._signal, self._eyes.meter.view, generations=snapshot.generation, lost=snapshot.lost,
            story=self._notebook.length, trained=0.0 if since is None else ended - since,
        )

    # ------------------------------------------------------------ what people see

    async def _show(self) -> None:
        while True:
            self._echo()
            snapshot, now = self._server.snapshot(), self._server.now()
            if snapshot.generation:
                self._screen.progress(line(self._eyes.meter.view, self._screen.width), now)
            else:
                late = [person.worker for person in snapshot.people if person.stage == "starting"]
                self._screen.progress(f"{now:.0f} s: waiting for {names(late)} to reach the first step", now)
            await asyncio.sleep(_SHOW)

    def _echo(self, *, last: bool = False) -> None:
        """Pass on what the lead worker printed."""
        members = self._server.snapshot().members
        lead = min(members, default=-1)
        if lead != self._lead:
            self._flush(last=True)
            # The first lead is heard from its beginning; a later one has said it all before.
            path = self._directory.logs / f"worker-{lead}.log"
            self._tail, self._lead = Tail(path, from_end=self._lead >= 0), lead
        self._flush(last=last)

    def _flush(self, *, last: bool = False) -> None:
        """Say what was read last time, hold back what is read now: it may be the trace of a failure.

        A script that raises prints its trace, and reports it; the report is told at the end, once.
        """
        new = self._tail.lines(last=last) if self._tail else []
        if self._lead in self._server.failed:
            self._held = []
            return
        for text in [*self._held, *new] if last else self._held:
            self._screen.echo(text)
        self._held = [] if last else new

    # ------------------------------------------------------------ what people want

    def _listen(self) -> list[int]:
        """First signal: drain. Second: kill the tree."""
        loop, taken = asyncio.get_running_loop(), []
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                loop.add_signal_handler(number, self._asked_to_end, number)
                taken.append(int(number))
        return taken

    def _asked_to_end(self, number: signal.Signals) -> None:
        name = "Ctrl-C" if number == signal.SIGINT else number.name
        if self._signal:
            self._screen.say(f"{name} again: killing every process of the run")
            self._server.abort(f"killed by a second {name}")
            return
        self._signal = number
        self._screen.say(f"{name}: the run ends at its next step and keeps what it has; once more kills it at once")
        self._server.drain(name)

    def _open_control(self) -> ControlSocket | None:
        try:
            return ControlSocket(self._directory.socket, self._answer)
        except OSError as error:
            self._screen.say(
                f"warning: {self._directory.socket} cannot be made ({error.strerror}): "
                "this run cannot be asked by holdfast status or scale"
            )
            return None

    def _answer(self, ask: Ask) -> dict[str, Any]:
        if isinstance(ask, Scale):
            before = self._server.snapshot().wanted
            sentence = self._server.scale(ask.workers)
            wanted = self._server.snapshot().wanted
            if wanted != ask.workers:
                return {"error": f"The number of workers stays {wanted}: {sentence}."}
            return {"workers": wanted, "before": before, "sentence": sentence}
        return status.of_going(
            self._server.snapshot(), self._eyes.meter.view, pid=os.getpid(), host=host(),
            seconds=self._server.now(), directory=str(self._directory.path),
        )


def _default_workers(config: RunConfig) -> int:
    """One per CPU that we may use, at most one per lane."""
    cpus = len(os.sched_getaffinity(0)) // (config.threads or DEFAULTS_OF_JOIN["threads"])
    return max(1, min(cpus, config.lanes or DEFAULTS_OF_JOIN["lanes"]))


def _alone(machine: str) -> str:
    """Why this kind of machine can have one worker only; empty where it can have more."""
    if ordered_stores(machine):
        return ""
    return f"several workers share memory in an order that {machine} does not promise (x86-64 does)"


def _limits(crew: CrewConfig, lanes: int, workers: int, alone: str) -> CrewLimits:
    return CrewLimits(
        lanes=lanes, workers=workers, join_grace=crew.join_grace, luck_budget=crew.luck_budget,
        unit_attempts=crew.unit_attempts, gather=crew.gather, frozen=crew.frozen_limit, repeat=crew.repeat,
        settle=crew.settle, alone=alone,
    )


def _near(path: Path) -> str:
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)
