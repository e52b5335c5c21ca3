"""Real runs with real kills: starts `holdfast run` in a process of its own and looks at it from outside.

    with Launch(tmp_path, "normed", "--workers", "2") as run:
        run.at_step(20)
        run.strike(run.members()[0])
        assert run.end() == 0
    assert run.sha256 == golden(...)

Nothing here sleeps for a guessed time: every wait is for a condition, with a deadline. Every process of a
launch carries a word of its own in its environment, so whatever a run leaves is found, whoever its parent is.
When a `Launch` is left, nothing of it may be there any more; that is checked for every test.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.control.protocol.requests import Scale, Status
from holdfast.control.shell.control_client import NotRunning, ask

__all__ = ["MARK", "SCRIPTS", "TRAIN", "Launch", "Trace", "alive", "golden", "holdfast", "printed", "until"]

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
TRAIN = SCRIPTS / "train.py"
MARK = "HOLDFAST_TEST_LAUNCH"
GOLDEN = "HOLDFAST_TEST_GOLDEN"  #: a directory, where several processes run tests
#: What the directory of a run that has ended may hold; whatever else is there was forgotten.
_KEPT = re.compile(
    r"run\.json|story\.jsonl|summary\.json|failure\.txt|hang-\d+\.txt|logs|audit|checkpoints|trainings|earlier|model|"
    r"model\.safetensors"
)
_KEPT_LOGS = re.compile(
    r"training-\d+|worker-\d+\.log|worker-\d+\.stack|forkserver(?:-\d+)?\.log|agent-\d+\.log|ray\.log"
)


def environment(**more: str) -> dict[str, str]:
    """The environment of every process that a test starts."""
    paths = f"{ROOT / 'src'}:{ROOT}"
    return {**os.environ, "PYTHONPATH": paths, **more}


def until(condition: Callable[[], Any], what: str | Callable[[], str], seconds: float = 30.0) -> Any:
    """Wait until `condition()` is true, and return it. `what` may be a function, to say how things stand at the end."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what if isinstance(what, str) else what()}"
        time.sleep(0.01)  # what is asked for may cost the run something to answer
    return value


def holdfast(*words: object, cwd: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    """Run one `holdfast` command to its end."""
    command = [sys.executable, "-m", "holdfast.cli.main", *map(str, words)]
    return subprocess.run(
        command, env=environment(**more), capture_output=True, text=True, check=False, cwd=cwd, timeout=60
    )


def alive(pid: int) -> bool:
    """Whether this process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def marked(mark: str) -> dict[int, str]:
    """Live processes that were started under a launch with this mark, and what they are."""
    found, wanted = {}, f"{MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if wanted in (entry / "environ").read_bytes().split(b"\0") and alive(int(entry.name)):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
            except OSError:
                continue
    return found


@functools.cache
def golden(model: str, lanes: int, *options: str) -> str:
    """The weights that plain `python train.py` ends with. Computed once for all processes of `tools/run_tests.py`."""
    shared = Path(os.environ[GOLDEN], " ".join([model, str(lanes), *options])) if GOLDEN in os.environ else None
    if shared and shared.exists():
        return shared.read_text()
    command = [sys.executable, str(TRAIN), model, "--lanes", str(lanes), *options]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    found = re.search(r"^weights_sha256 ([0-9a-f]{64})$", done.stdout, re.MULTILINE)
    assert found, done.stdout
    if shared:
        mine = shared.with_name(f"{os.getpid()}")
        mine.write_text(found[1])
        mine.rename(shared)
    return found[1]


@functools.cache
def printed(script: Path, *args: str) -> list[str]:
    """What a script prints under plain `python`, line by line."""
    command = [sys.executable, str(script), *args]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


class Trace:
    """What the units of a run left (see `scripts/train.py`): which samples each (step, lane) used.

    In a plain loop a unit bears its first lane, and who tries again may have another share: there the audit trail says
    what counted (see `trail`).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.units: dict[tuple[int, int], tuple[int, ...]] = {}
        self._odd: list[tuple[int, int]] = []  # units that had other samples when tried again
        self.made: list[tuple[int, int, tuple[int, ...]]] = []  #: every try: step, lane, samples
        self.step = -1  #: the newest step of which a unit was begun
        self._at, self._rest = 0, b""

    @property
    def tries(self) -> int:
        """How many units were begun."""
        return len(self.made)

    def read(self) -> Trace:
        """Take in what is new."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self._at)
                data = file.read()
        except FileNotFoundError:
            return self
        self._at += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            step, lane, numbers = line.decode().split(" ")
            unit, samples = (int(step), int(lane)), tuple(map(int, numbers.split(",")))
            if self.units.setdefault(unit, samples) != samples:
                self._odd.append(unit)
            self.made.append((*unit, samples))
            self.step = max(self.step, unit[0])
        return self

    def audit(self, samples: int, steps_of_epoch: int, epochs: int) -> None:
        """Every sample of every epoch was used in exactly one committed unit."""
        self.read()
        assert not self._odd, f"units {self._odd} had other samples when tried again"
        assert self.step == steps_of_epoch * epochs - 1
        for epoch in range(epochs):
            first = epoch * steps_of_epoch
            used = [
                number for (step, _), numbers in self.units.items() if first <= step < first + steps_of_epoch
                for number in numbers
            ]  # fmt: skip
            assert sorted(used) == list(range(samples)), f"epoch {epoch}: {len(used)} samples of {samples}"


class Launch:
    """A `holdfast run` that is going. Leaving the block ends it and looks for what it left."""

    _traced = True  #: its script leaves a trace of its units

    def __init__(self, tmp_path: Path, script: str | Path, *options: object, args: str = "", dir: str = "run") -> None:
        """`script` is a model of `train.py` (then its units are traced), or a script's path."""
        self.dir = tmp_path / dir
        name = dir.replace("/", "-")
        self.temp = Path(tempfile.mkdtemp(prefix="t-"))  # short: sockets go there
        self.mark = uuid.uuid4().hex
        self.trace = Trace(tmp_path / f"trace-{name}")
        words = [str(script), *args.split()]
        self._traced = not isinstance(script, Path) or "--trace" in words
        if not isinstance(script, Path):
            words = [str(TRAIN), script, "--trace", str(self.trace.path), *args.split()]
        command = [sys.executable, "-m", "holdfast.cli.main", "run", "--dir", self.dir, *options, *words]
        self._shared = set(os.listdir("/dev/shm"))
        self._seen: set[int] = set()
        self._arena: tuple[int, int] | None = None
        # Closed in __exit__: they live as long as the process that writes to them.
        self._files = [open(tmp_path / f"{stream}-{name}", "w") for stream in ("out", "err")]  # noqa: SIM115
        self.process = subprocess.Popen(
            list(map(str, command)), stdout=self._files[0], stderr=self._files[1], cwd=tmp_path,
            env=environment(**{MARK: self.mark, "TMPDIR": str(self.temp)}),
        )

    def __enter__(self) -> Launch:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        try:
            if kind is None:
                self.nothing_is_left()
        finally:
            for pid in marked(self.mark):
                os.kill(pid, signal.SIGKILL)
            for file in self._files:
                file.close()
            shutil.rmtree(self.temp, ignore_errors=True)

    # ------------------------------------------------------------ looking

    @property
    def out(self) -> str:
        """What it printed: the lead's output."""
        return Path(self._files[0].name).read_text()

    @property
    def err(self) -> str:
        """What it said: progress, story and errors."""
        return Path(self._files[1].name).read_text()

    @property
    def story(self) -> list[str]:
        """Its decisions, one sentence each."""
        try:
            lines = (self.dir / "story.jsonl").read_text().split("\n")[:-1]  # the last one may be half there
        except FileNotFoundError:
            return []
        return [json.loads(line)["sentence"] for line in lines]

    @property
    def summary(self) -> dict[str, Any]:
        """What it says at its end."""
        summary: dict[str, Any] = json.loads((self.dir / "summary.json").read_text())
        return summary

    @property
    def sha256(self) -> str:
        """The weights it ended with."""
        return str(self.summary["weights_sha256"])

    def status(self) -> dict[str, Any]:
        """What `holdfast status --json` would print, without the time a command takes to start."""
        try:
            status = ask(self.dir, Status())
        except (NotRunning, OSError):
            return {"workers": [], "generation": 0, "state": "ended", "workers_lost": 0}
        # One that is only ordered has the number 0, which the names of many strangers' files have in them.
        self._seen.update(worker["pid"] for worker in status["workers"] if worker["pid"])
        self._arena = self._arena or _arena(self.process.pid)
        return status

    def members(self) -> list[int]:
        """The pids of the workers that drive lanes now, oldest first."""
        return [worker["pid"] for worker in self.status()["workers"] if worker["state"] == "member"]

    def processes(self) -> dict[int, str]:
        """Every live process of this launch, and its command."""
        return marked(self.mark)

    def forkserver(self) -> int:
        """The pid of the process that forks the workers; 0 before there is one."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0]) if children else 0

    # ------------------------------------------------------------ waiting

    def wait(self, condition: Callable[[dict[str, Any]], Any], what: str, seconds: float = 30.0) -> dict[str, Any]:
        """Wait until the status is as wanted."""

        def look() -> dict[str, Any] | None:
            status = self.status()
            assert self.process.poll() is None, f"the run ended before {what}:\n{self.err}"
            return status if condition(status) else None

        found: dict[str, Any] = until(look, f"{what}\n{self.err}", seconds)
        return found

    def told(self, text: str, seconds: float = 30.0) -> None:
        """Wait until the story has a sentence with this text."""
        until(lambda: any(text in line for line in self.story), lambda: f"{text!r} in the story\n{self.err}", seconds)

    def said(self, text: str, seconds: float = 60.0) -> None:
        """Wait until it has said this on the screen."""
        until(lambda: text in self.err, lambda: f"{text!r}\n{self.err}", seconds)

    def crew_of(self, workers: int, seconds: float = 30.0) -> list[int]:
        """Wait until this many workers drive lanes, and no change is under way. Their pids."""
        status = self.wait(
            lambda s: [w["state"] for w in s["workers"]] == ["member"] * workers and not s["waiting_for"],
            f"{workers} members", seconds,
        )  # fmt: skip
        return [worker["pid"] for worker in status["workers"]]

    def at_step(self, step: int, seconds: float = 60.0) -> None:
        """Wait until a unit of this step was begun, as far as its script tells, or the run has ended."""

        def reached() -> bool:
            now = self.trace.read().step if self._traced else self.status().get("step", -1)
            return now >= step or self.process.poll() is not None

        until(reached, lambda: f"step {step}\n{self.err}", seconds)

    def go_on_for(self, seconds: float) -> None:
        """Let so much time pass by the run's own clock, or wait until it shows none any more."""
        moment = self.status()["seconds"] + seconds
        until(lambda: self.status().get("seconds", moment) >= moment, "a moment")

    def end(self, seconds: float = 60.0) -> int:
        """Wait for its end; the exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end within {seconds:g} s; {self.status()}\n{self.err}") from None

    # ------------------------------------------------------------ meddling

    def send(self, number: int) -> None:
        """Send a signal to the launcher."""
        self.process.send_signal(number)

    def strike(self, pid: int, number: int = signal.SIGKILL) -> None:
        """Send a signal to one of its workers, if that is still there."""
        assert pid > 0, "a process that is only ordered has no number yet, and 0 means all of ours"
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def scale(self, workers: int) -> None:
        """What `holdfast scale` does."""
        with contextlib.suppress(NotRunning):
            ask(self.dir, Scale(workers))

    # ------------------------------------------------------------ afterwards

    def nothing_is_left(self) -> None:
        """No process, socket, shared memory or temporary file outlives the run, however it ended."""
        left = marked(self.mark)
        assert not left, f"processes are left: {left}"
        assert not self.holders(), "somebody still holds the run's shared memory"
        self.no_file_is_left()
        shared = [name for name in set(os.listdir("/dev/shm")) - self._shared if _is_of(name, self._seen)]
        assert not shared, f"shared memory is left: {shared}"
        files = [name for name in os.listdir(self.temp) if not name.startswith("torchinductor_")]  # torch's own cache
        assert not files, f"temporary files are left: {files}"

    def holders(self) -> list[int]:
        """Who holds the run's shared memory, as far as that was seen."""
        return _holders(self._arena) if self._arena else []

    def no_file_is_left(self) -> None:
        """The run's directory holds what it is to hold, and nothing else."""
        if self.dir.is_dir():
            odd = [path.name for path in self.dir.iterdir() if not _KEPT.fullmatch(path.name)]
            odd += [path.name for path in (self.dir / "logs").glob("*") if not _KEPT_LOGS.fullmatch(path.name)]
            assert not odd, f"{self.dir} holds {odd}"


def _is_of(name: str, pids: set[int]) -> bool:
    """Torch's shared memory files carry the pid that made them."""
    return any(str(pid) in re.findall(r"\d+", name) for pid in pids)


def _arena(launcher: int) -> tuple[int, int] | None:
    """The run's shared memory, as (device, inode): it has no name that could be looked for."""
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{launcher}/fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(entry).startswith("/memfd:holdfast"):
                    found = entry.stat()
                    return found.st_dev, found.st_ino
    return None


def _holders(arena: tuple[int, int]) -> list[int]:
    """Processes that hold this memory open or mapped, whoever started them."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                opened = [entry.stat() for entry in (process / "fd").iterdir() if "memfd:" in os.readlink(entry)]
                mapped = f" {arena[1]} /memfd:holdfast" in (process / "maps").read_text()
                if mapped or any((one.st_dev, one.st_ino) == arena for one in opened):
                    found.append(int(process.name))
    return found
