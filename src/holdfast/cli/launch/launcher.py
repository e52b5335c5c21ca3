"""The launcher: wires spawner, machine, monitor and screen together, and sees the run to its end.

However it ends, the run's directory gets a summary, the exit code tells the class of the end, and no
process, descriptor or socket is left. Nothing here imports torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import platform
import secrets
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.checkpoint.ended_trainings import TrainingEnd, ended_trainings, forget
from holdfast.cli.launch.cluster_hosts import ClusterHosts
from holdfast.cli.launch.display import Display
from holdfast.cli.launch.ending import Ending, WentOnFrom, last_line, present, summary
from holdfast.cli.launch.first_weights import with_first_weights
from holdfast.cli.launch.invitation import Invitation, near
from holdfast.cli.launch.notice import Notice
from holdfast.cli.launch.resumption import Resumption, hash_of, open_resumption
from holdfast.cli.launch.run_checkpoints import RunCheckpoints
from holdfast.cli.launch.store_service import StoreService
from holdfast.config.resolve import Resolved
from holdfast.config.run_config import DEFAULTS_OF_JOIN, RunConfig
from holdfast.config.training_folder import of_training
from holdfast.config.worker_spec import WorkerSpec
from holdfast.control.membership.roster import CrewLimits
from holdfast.control.protocol.commands import EndRun, FailRun
from holdfast.control.protocol.events import ScaleRequested, ServersRequested, SyncRequested
from holdfast.control.protocol.ports import HostPort, Spawner
from holdfast.control.protocol.requests import Ask, Scale, Set
from holdfast.control.shell.control_socket import ControlSocket
from holdfast.control.shell.coordinator import Coordinator
from holdfast.control.story import Sentence
from holdfast.dataplane.memory.board_snapshot import BoardPlan, BoardRow
from holdfast.errors import HoldfastError, UsageError
from holdfast.hosts.admission import Admission
from holdfast.hosts.fork_spawner import ForkSpawner
from holdfast.hosts.forkserver import DEFAULT_ENTRY
from holdfast.hosts.local_host import LocalHost
from holdfast.observe import agent_directory, status
from holdfast.observe.audit import trim
from holdfast.observe.directory import RunDirectory, default_path, host, recover, recover_siblings
from holdfast.observe.meter import Meter, RunView
from holdfast.observe.monitor import BoardMonitor
from holdfast.observe.screen import Screen
from holdfast.observe.story_writer import RunStoryWriter
from holdfast.observe.watch import told_limits
from holdfast.transport import memory
from holdfast.transport.doorbell import ordered_stores

__all__ = ["conduct", "launch"]

_NEVER_JOINED = (
    "The script came to its end without hf.join(), so every worker ran all of it by itself. Join the run and hand over "
    "what is trained: run = hf.join(); model, optimizer, loader = run.prepare(model, optimizer, loader)."
)


def launch(
    resolved: Resolved, *, cluster_hosts: Callable[[RunConfig, Path], ClusterHosts] | None = None,
    entry: str = DEFAULT_ENTRY,
) -> int:  # fmt: skip
    """Run it. `cluster_hosts` has a cluster start the hosts; `entry` is what a worker calls (tests put their own)."""
    config = resolved.config
    if not Path(config.script).is_file():
        raise UsageError(f"{config.script}: there is no such script. Give the path of a Python file.")
    screen = Screen(sys.stderr, sys.stdout)
    began = time.time()
    path = Path(config.dir) if config.dir else default_path(config.script, began)
    resumption: Resumption | None = None
    if config.resume:
        resumption = open_resumption(config)
        if config.dir and path.resolve() != resumption.directory:
            raise UsageError(
                f"--dir {config.dir}: a run goes on in its own directory, {resumption.directory}. Leave --dir out."
            )
        path = resumption.directory
        for sentence in resumption.passed_over:
            screen.say(f"warning: {sentence}")
        config = resumption.as_started(config)
        if resumption.training > 1 and (config.listen or cluster_hosts is not None):
            where = "--listen" if config.listen else f"--on {config.on}"
            raise UsageError(
                f"{where}: the run goes on in training {resumption.training} of its script, and what those before it "
                "have ended with is on this machine only. Leave it out."
            )
    config = with_first_weights(config, resumption, screen.say)
    run = f"{path.name}-{secrets.token_hex(4)}"
    invitation = Invitation(config, run) if config.listen and cluster_hosts is None else None
    for swept in filter(None, [recover(path), *recover_siblings(path if not config.dir else Path("runs", "-"))]):
        screen.say(swept)
    agent_directory.sweep()
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(
            RunDirectory.create(path, complain=screen.say, unique=not config.dir)
            if resumption is None
            else RunDirectory.reopen(path, complain=screen.say)
        )
        if resumption is not None:
            forget(directory.path, resumption.training)
            steps, resumed = 0, resumption.resumed
            if resumed is not None:
                # In relaxed modes lanes are at different steps; a unit that is made again has the samples that it had.
                steps = resumed.step if resumed.modes[-1].sync == "exact" else sys.maxsize
            trim(of_training(directory.path / "audit", resumption.training - 1), steps)
        record: dict[str, Any] = {
            "run": run, "pid": os.getpid(), "host": host(), "started": began, "argv": sys.argv, "cwd": os.getcwd(),
            "scratch": directory.scratch, "config": msgspec.to_builtins(config), "sources": resolved.sources,
            "script_sha256": hash_of(config.script),
        }

        def make(training: int, asked: Mapping[str, Any]) -> _Launcher:
            going = resumption if resumption is not None and resumption.training == training else None
            if cluster_hosts is None:
                now = msgspec.structs.replace(config, **asked)
                return _Launcher(
                    now, run, directory, screen, invitation=invitation, entry=entry, resumption=going, training=training
                )
            hosts = cluster_hosts(config, directory.logs)
            stack.callback(hosts.close)
            there = hosts.connect(screen.say)
            return _Launcher(
                there, run, directory, screen, invitation=Invitation(there, run), cluster_hosts=hosts, entry=entry,
                resumption=going, asked=config, training=training,
            )

        return conduct(directory, screen, record, make, resumption.training if resumption is not None else 1)


def conduct(directory: RunDirectory, screen: Screen, record: dict[str, Any], make: _Make, training: int = 1) -> int:
    """Begin a run in its directory, see it to its end, and tell how it ended; the exit code.

    `make` makes what conducts one training of the script: by its number, and what of the configuration people have
    asked for otherwise since the run began. The run begins with this one.
    """
    directory.begin(msgspec.json.format(msgspec.json.encode(record), indent=2).decode() + "\n")
    began = time.monotonic()
    ending = _see_through(make, training)
    ending.trainings = [one.end.result for one in ended_trainings(directory.path)]
    seconds = time.monotonic() - began
    screen.end()
    if isinstance(ending.end, FailRun):
        directory.write("failure.txt", f"{ending.end.kind}: {ending.end.message}\n\n{ending.end.trace}\n")
        screen.say(present(ending.end.kind, ending.end.message, ending.end.trace, near(directory.path)))
    facts = summary(ending, record, seconds)
    directory.write_summary(facts)
    if isinstance(ending.end, EndRun):
        screen.say(last_line(facts, ending, near(directory.path)))
    return ending.exit_code


def _see_through(make: _Make, training: int) -> Ending:
    """Run to the end; errors of the shell become an ending too, so that every run gets its summary."""
    try:
        return asyncio.run(_train(make(training, {}), make, training))
    except HoldfastError as error:
        return Ending(FailRun(type(error).__name__, str(error)))
    except Exception as error:
        text = f"holdfast itself failed ({type(error).__name__}: {error}). This is a bug: please report failure.txt."
        return Ending(FailRun("Bug", text, traceback.format_exc()))


async def _train(one: _Launcher, make: _Make, training: int) -> Ending:
    """One training of the script after the other. Signals are heard all the time."""
    asked: dict[str, Any] = {}
    listened = one.listen(lambda number: one.asked_to_end(number))
    lost, story, began = 0, 0, time.monotonic()
    resumed: WentOnFrom | None = None
    try:
        while True:
            ending = await one.run()
            ending.lost, ending.story = ending.lost + lost, ending.story + story
            ending.resumed = resumed = ending.resumed or resumed
            if not ending.goes_on:
                return ending
            lost, story, training = ending.lost, ending.story, training + 1
            asked |= one.asked
            one = make(training, asked)
            one.follow(time.monotonic() - began)
    finally:
        for number in listened:
            asyncio.get_running_loop().remove_signal_handler(number)


_Make = Callable[[int, Mapping[str, Any]], "_Launcher"]


class _Launcher:
    """One training of a run, from its first process to its last."""

    def __init__(
        self, config: RunConfig, run: str, directory: RunDirectory, screen: Screen, *, invitation: Invitation | None,
        cluster_hosts: ClusterHosts | None = None, entry: str = DEFAULT_ENTRY, resumption: Resumption | None = None,
        asked: RunConfig | None = None, training: int = 1,
    ) -> None:  # fmt: skip
        directory.begin_training(training - 1)
        self._resumption, self._training = resumption, training
        self._first = training == 1 or resumption is not None  #: of those that this process conducts
        self._asked = asked or config  # on a cluster, this machine itself runs otherwise than the whole
        self._config, self._run, self._directory, self._screen = config, run, directory, screen
        self._invitation, self._cluster_hosts, self._entry = invitation, cluster_hosts, entry
        alone = _alone(platform.machine())
        self._workers = config.workers if config.workers is not None else 1 if alone else _default_workers(config)
        self._spec = WorkerSpec(
            worker=-1, row=-1, script=config.script, args=config.args, dir=str(directory.path),
            crew=config.workers or 0, scratch=directory.scratch, audit=config.audit, verify=config.verify,
            sync=config.sync, staleness=config.staleness, compensation=config.compensation,
            outer=(config.local.lr, config.local.momentum), init_from=config.init_from, training=training - 1,
            single=self._single(), **config.overrides(),
        )
        self._story_writer = RunStoryWriter(directory, screen)
        self._meter = Meter(RunView(training=training))
        self._before = 0.0  # seconds that the trainings before it have taken
        self._store_service = self._make_store_service()
        logs = str(directory.logs.relative_to(directory.path))
        self._server = Coordinator(
            _limits(config, self._workers, alone, logs), story_writer=self._story_writer,
            store_service=self._store_service,
        )
        self._display = Display(screen, self._server, self._meter, directory.logs)
        self._admission: Admission | None = None
        self._host: LocalHost | None = None
        self._checkpoints: RunCheckpoints | None = None
        self._signal = 0
        self.asked: dict[str, Any] = {}  #: for how many workers or servers, or which mode, while it goes

    def follow(self, seconds: float) -> None:
        """Trainings before this one have taken so long, by the run's clock."""
        self._before = self._story_writer.before = seconds

    async def run(self) -> Ending:
        """All of the training. What is opened here is closed here."""
        control: ControlSocket | None = None
        notice: Notice | None = None
        try:
            if self._first:
                self._screen.say(f"run directory: {near(self._directory.path)}")
                self._story_writer.note(0.0, "Limits", told_limits(self._config.crew))
            if self._training > 1:
                goes_on = self._resumption is not None and self._resumption.resumed is not None
                does = "goes on" if goes_on else "begins"
                self.note(f"training {self._training} of the script {does}", aloud=True)
            self._open_admission()
            self._open_host()
            self._open_checkpoints()
            control = self._open_control()
            notice = Notice(self._config.notice, self._say_soon()) if self._config.notice else None
            async with asyncio.TaskGroup() as group:
                shower = group.create_task(self._display.show(), name="screen")
                resumed = self._resumption.resumed if self._resumption is not None else None
                end = await self._server.run([self._host] if self._host is not None else [], resumed)
                ended = self._server.now()
                shower.cancel()
                if self._cluster_hosts is not None:
                    await self._cluster_hosts.agent_end()
        except ExceptionGroup as several:
            raise several.exceptions[0] from None
        finally:
            if notice is not None:
                notice.close()
            if control is not None:
                control.close()
            if self._checkpoints is not None:
                self._checkpoints.close()
            if self._admission is not None:
                self._admission.close()
            if self._cluster_hosts is not None:
                self._cluster_hosts.close()
            if self._host is not None:
                self._host.close()  # the server has, unless it never came to run
            self._store_service.close()
        self._display.echo(last=True)
        if isinstance(end, EndRun) and end.result.get("joined") is False:
            end = FailRun("UsageError", _NEVER_JOINED)
        snapshot = self._server.snapshot()
        since = self._server.training_since
        return Ending(
            end, self._signal, self._meter.view, generations=snapshot.generation, lost=snapshot.lost,
            story=self._story_writer.length, trained=0.0 if since is None else ended - since, modes=snapshot.modes,
            resumed=None if self._resumption is None else self._resumption.went_on_from(), training=self._training,
        )

    def _make_store_service(self) -> StoreService:
        """Who keeps a store for the script, should it ask for one."""
        invited, clients = self._invitation, max(1, self._workers) + self._config.servers
        if invited is None:
            return StoreService(self._config.script, clients)
        clients = max(1, self._config.hosts) * max(1, self._workers) + self._config.servers
        return StoreService(
            self._config.script, clients, bind=invited.bind, ours=invited.credentials, theirs=invited.theirs
        )

    def _open_admission(self) -> None:
        """Listen for other machines, where that was asked for."""
        if self._invitation is None:
            return
        script = str(Path(self._config.script).resolve())
        self._admission = Admission(
            self._invitation.bind, self._invitation.credentials, run=self._run,
            spec=msgspec.structs.replace(self._spec, script=script), crew=self._config.crew,
            callbacks=self, host=host() if self._workers else None,
            first=self._resumption.first() if self._resumption is not None else None,
        )  # fmt: skip
        port = self._admission.address[1]
        self._screen.say(self._invitation.write(self._directory.path, self._admission.addresses, port))
        if self._cluster_hosts is not None:
            self._cluster_hosts.open(self._admission.addresses[0], port, self._invitation.theirs.text, self)

    def _open_host(self) -> None:
        """The share of the run that this machine takes itself, unless it only coordinates."""
        if not self._workers:
            return
        spawner = self.spawner()
        monitor = BoardMonitor(
            self._config.crew, self._directory, spawner.signal, functools.partial(self._meter.looked, 0)
        )
        self._host = LocalHost(
            0, name=host(), slots=self._workers, spawner=spawner, monitor=monitor,
            peers=self._admission.peers if self._admission is not None else None,
            restoration=self._resumption.restoration() if self._resumption is not None else None,
        )  # fmt: skip

    def _open_checkpoints(self) -> None:
        """Take checkpoints every now and then, where that is wanted, and of what a training has ended with."""
        self._checkpoints = RunCheckpoints(
            self._asked, self._run, self._directory, self._server, (self._host, self._admission), self.note,
            self._training,
        )  # fmt: skip
        self._server.before_end = self._take_final

    async def _take_final(self, end: EndRun) -> None:
        """A checkpoint of what the script has ended with, from which it may go on for longer, or to another training.

        Raises UsageError, CheckpointError: it cannot go on to that.
        """
        if self._checkpoints is None or self._signal:
            return
        if not end.again:
            await asyncio.to_thread(functools.partial(self._checkpoints.take_last, ended=True))
            return
        if len(modes := self._server.snapshot().modes) > 1:
            raise UsageError(
                f"The script calls hf.join() again, for another training, and training {self._training} was begun with "
                f"sync = {modes[0][1]} and ended with {modes[-1][1]}: nobody could go through it again. Keep one mode "
                "in a run of several trainings, or start one run for each."
            )
        await asyncio.to_thread(self._checkpoints.keep_training, TrainingEnd(self._told(end), end.again))

    def _told(self, end: EndRun) -> dict[str, Any]:
        """What the summary says of this training."""
        return {name: value for name, value in end.result.items() if name != "joined"}

    def _single(self) -> str:
        """Why the script can have one training only; empty where it can have several."""
        if self._invitation is None:
            return ""
        return "other machines take part in it, or may, and what a training ends with is on this one"

    def spawner(self) -> Spawner:
        """What starts the workers of this machine."""
        return ForkSpawner(self._spec, logs=self._directory.logs, entry=self._entry)

    # ------------------------------------------------------------ what admission needs: see
    # `admission.AdmissionCallbacks`

    @property
    def over(self) -> bool:
        """Nobody can join any more, or not yet."""
        return self._server.over

    def number(self) -> int:
        """A number for a new host."""
        return self._server.number()

    def admit(self, host: HostPort) -> None:
        """A host has joined."""
        self._server.admit(host)

    def note(self, sentence: str, *, aloud: bool) -> None:
        """A sentence for the story."""
        self._story_writer.tell([Sentence(self._server.now(), "Network", sentence)], aloud=aloud)

    def showed(self, host: int, rows: list[BoardRow], plan: BoardPlan) -> None:
        """What another host's board shows."""
        self._meter.looked(host, rows, plan, self._server.now())

    def keep(self, name: str, data: bytes) -> None:
        """Add to a file in the run's directory."""
        if name.startswith("audit/"):
            with contextlib.suppress(OSError):  # `append` meets the same, and says so
                (self._directory.path / "audit").mkdir(exist_ok=True)
        self._directory.append(name, data)

    def gone(self, host: int) -> None:
        """A host has no part in the run any more."""
        self._meter.gone(host)

    def unattended(self, error: HoldfastError) -> None:
        """No hosts come any more from a cluster: see `cluster_hosts.HostRegistrar`."""
        snapshot = self._server.snapshot()
        if snapshot.generation and snapshot.hosts:
            self.note(str(error), aloud=True)
        else:
            self._server.broke(0, error)

    # ------------------------------------------------------------ what people want

    def listen(self, hear: Callable[[signal.Signals], None]) -> list[int]:
        """Hear signals that ask for the run's end; those that are heard."""
        loop, taken = asyncio.get_running_loop(), []
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                loop.add_signal_handler(number, hear, number)
                taken.append(int(number))
        return taken

    def _say_soon(self) -> Callable[[str], None]:
        """Say something on the screen, from any thread."""
        loop = asyncio.get_running_loop()

        def say(sentence: str) -> None:
            loop.call_soon_threadsafe(self._screen.say, sentence)

        return say

    def asked_to_end(self, number: signal.Signals) -> None:
        """First signal: drain. Second: kill the tree."""
        name = "Ctrl-C" if number == signal.SIGINT else number.name
        if self._signal:
            self._screen.say(f"{name} again: killing every process of the run")
            self._server.abort(f"killed by a second {name}", self._signal)
            return
        self._signal = number
        if self._cluster_hosts is not None:
            self._cluster_hosts.rest()
        self._screen.say(f"{name}: the run ends at its next step and keeps what it has; once more kills it at once")
        if self._server.over:  # of this training: none follows
            return
        asyncio.get_running_loop().create_task(self._end_in_order(name, number), name="drain")

    async def _end_in_order(self, name: str, number: signal.Signals) -> None:
        """A checkpoint first: what the script does once it has been told to end is not what a resumed run does."""
        if self._checkpoints is not None:
            await asyncio.to_thread(self._checkpoints.take_last)
        self._server.drain(name, int(number))

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
            return self._scale(ask)
        if isinstance(ask, Set):
            return self._set(ask)
        return status.of_going(
            self._server.snapshot(), self._meter.view, pid=os.getpid(), host=host(),
            seconds=self._before + self._server.now(), directory=str(self._directory.path),
            peers=self._admission.peer_addresses() if self._admission is not None else {},
        )

    def _set(self, ask: Set) -> dict[str, Any]:
        before = self._server.snapshot().sync_wanted
        sentence = self._server.ask(SyncRequested(ask.sync, *memory.available()))
        now = self._server.snapshot().sync_wanted
        if now != ask.sync:
            return {"error": f"The mode stays {now}: {sentence}."}
        self.asked["sync"] = now
        return {"sync": now, "before": before, "sentence": sentence}

    def _scale(self, ask: Scale) -> dict[str, Any]:
        told: dict[str, Any] = {"sentence": ""}
        for what, wanted in (("workers", ask.workers), ("servers", ask.servers)):
            if wanted is None:
                continue
            before = getattr(self._server.snapshot(), _WANTED[what])
            sentence = self._server.ask(ScaleRequested(wanted) if what == "workers" else ServersRequested(wanted))
            now = getattr(self._server.snapshot(), _WANTED[what])
            if now != wanted:
                return {"error": f"The number of {what} stays {now}: {sentence}."}
            self.asked[what] = now
            told |= {what: now, "before": before, "sentence": "\n".join(filter(None, (told["sentence"], sentence)))}
        return told


#: What the crew's snapshot calls what somebody asked for.
_WANTED = {"workers": "wanted", "servers": "servers_wanted"}


def _default_workers(config: RunConfig) -> int:
    """One per CPU that we may use, at most one per lane."""
    cpus = len(os.sched_getaffinity(0)) // (config.threads or DEFAULTS_OF_JOIN["threads"])
    return max(1, min(cpus, config.lanes or DEFAULTS_OF_JOIN["lanes"]))


def _alone(machine: str) -> str:
    """Why this kind of machine can have one worker only; empty where it can have more."""
    if ordered_stores(machine):
        return ""
    return f"several workers share memory in an order that {machine} does not promise (x86-64 does)"


def _limits(config: RunConfig, workers: int, alone: str, logs: str) -> CrewLimits:
    return CrewLimits(
        lanes=config.lanes or max(DEFAULTS_OF_JOIN["lanes"], workers), workers=workers, servers=config.servers,
        sync=config.sync, alone=alone, hosts=config.hosts, listening=bool(config.listen), replicas=config.replicas,
        staleness=config.staleness, sums_only=config.optimizer == "workers", logs=logs, crew=config.crew,
    )
