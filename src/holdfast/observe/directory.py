"""A run's directory: everything there is to know about the run, and nothing that two runs share.

    DIR/run.json        the configuration, the launcher's pid, when it began
        story.jsonl     every decision with its reason, as it was made
        logs/           worker-N.log, worker-N.stack (only after a hang), forkserver.log (only if it said something)
        control.sock    while the run is going
        token, credentials, address   while the run is going, where other machines can join it
        lock            while the run is going: its launcher holds an flock on it
        summary.json    once the run has ended, however it ended
        failure.txt, hang-N.txt   what went wrong, in full
        model.safetensors   the weights that it ended with, under the model's own names
        checkpoints/    what the run can go on from
        model/          what the script has exported, a folder for each version
        earlier/N/      all of the above, but for checkpoints and the audit, of the N-th time the run was started

A directory belongs to one run for ever. The lock, not a pid, says whether a run is going, so a launcher
that was killed leaves nothing that blocks anybody; `recover` sweeps up after it.

A disk that is full from the start is refused. One that fills up does not stop a run: the first write that
fails is said once, and training goes on.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from holdfast.checkpoint.reader import found
from holdfast.errors import CheckpointError, DirectoryBusy, ResourceError, UsageError
from holdfast.observe import scratch
from holdfast.transport import processes

__all__ = ["CHECKPOINTS", "RunDirectory", "default_path", "read_json", "recover", "recover_siblings", "running"]

#: Where checkpoints go.
CHECKPOINTS = "checkpoints"
_FORKSERVER = b"holdfast.hosts.forkserver"
_TRACES = ("run.json", "story.jsonl", "summary.json", "control.sock")
#: What only a going run needs, besides its lock. A secret is of no use to anybody afterwards.
_GOING = ("control.sock", "token", "credentials", "address")


def default_path(script: str, when: float) -> Path:
    """Where a run of `script` goes when nobody says where."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(when))
    return Path("runs", f"{Path(script).stem}-{stamp}")


class RunDirectory:
    """The directory of the run that this process launches; use `create`.

    Resources: `close` gives up the lock and takes away what only a going run needs.
    """

    def __init__(self, path: Path, lock: int, complain: Callable[[str], None]) -> None:
        self.path, self._lock, self._complain = path, lock, complain
        self.scratch = scratch.choose()
        self._full = False
        self._closed = False

    @classmethod
    def create(cls, path: Path, *, complain: Callable[[str], None], unique: bool = False) -> RunDirectory:
        """Make `path` and take it; with `unique`, a free name that starts like it.

        Raises:
            DirectoryBusy: it belongs to another run, going or ended.
            ResourceError: it cannot be written.
        """
        first, number = path, 2
        while True:
            try:
                return cls._take(path, complain)
            except DirectoryBusy:
                if not unique:
                    raise
                path = first.with_name(f"{first.name}-{number}")
                number += 1

    @classmethod
    def reopen(cls, path: Path, *, complain: Callable[[str], None]) -> RunDirectory:
        """Take the directory of a run that goes on. What it has left until now is put away.

        Raises:
            DirectoryBusy: it is going.
            ResourceError: it cannot be written.
        """
        return cls._take(path, complain, again=True)

    @classmethod
    def _take(cls, path: Path, complain: Callable[[str], None], *, again: bool = False) -> RunDirectory:
        lock = -1
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(lock)
            raise DirectoryBusy(
                f"{path} is being used by another run (pid {holder}). Use another --dir, or wait until that run "
                f"has ended; `holdfast status {path}` shows it."
            ) from None
        except OSError as error:
            if lock >= 0:
                os.close(lock)
            if isinstance(error, (FileExistsError, NotADirectoryError)):
                raise UsageError(f"{path} is not a directory. Use another --dir.") from None
            raise ResourceError(f"{path} cannot be used as a run's directory: {error.strerror}.") from None
        left = [name for name in _TRACES if os.path.lexists(path / name)]
        if left and again:
            _put_away(path)
        elif left:
            os.unlink(path / "lock")
            os.close(lock)
            raise DirectoryBusy(
                f"{path} holds another run, which {_how_it_ended(path)}. {_how_to_resume(path)}Use another --dir, or "
                f"remove {path} if you do not need it any more."
            )
        with contextlib.suppress(OSError):
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        with contextlib.suppress(OSError):
            (path / "logs").mkdir(exist_ok=True)
        return cls(path.resolve(), lock, complain)

    @property
    def logs(self) -> Path:
        """Where output of the run's processes goes."""
        return self.path / "logs"

    @property
    def socket(self) -> Path:
        """Where the run can be asked."""
        return self.path / "control.sock"

    def begin(self, record: str) -> None:
        """Write run.json. Raises ResourceError: where not even that can be written, nothing is begun."""
        try:
            _write_atomically(self.path / "run.json", record.encode())
        except OSError as error:
            with contextlib.suppress(OSError):
                self.logs.rmdir()
            raise ResourceError(
                f"{self.path} cannot be written: {error.strerror}. Make room there, or use another --dir."
            ) from None
        self.scratch = scratch.make(self.scratch)

    def write(self, name: str, text: str) -> bool:
        """Write a file whole, or not at all; False when the disk does not take it."""
        return self._guarded(lambda: _write_atomically(self.path / name, text.encode()))

    def append(self, name: str, data: bytes) -> bool:
        """Add to a file; False when the disk does not take it."""

        def act() -> None:
            with open(self.path / name, "ab", buffering=0) as file:
                file.write(data)

        return self._guarded(act)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json. Raises ResourceError, with the summary in it, when the disk does not take it."""
        text = json.dumps(summary, indent=2) + "\n"
        try:
            _write_atomically(self.path / "summary.json", text.encode())
        except OSError as error:
            raise ResourceError(
                f"The run's summary could not be written to {self.path}: {error.strerror}. Here it is:\n"
                f"{json.dumps(summary)}"
            ) from None

    def close(self) -> None:
        """Let go of the directory. May be called twice."""
        if self._closed:
            return
        self._closed = True
        scratch.remove(self.scratch)
        _sweep(self.path)
        os.close(self._lock)

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _guarded(self, act: Callable[[], None]) -> bool:
        try:
            act()
        except OSError as error:
            if not self._full:
                self._full = True
                self._complain(
                    f"warning: {self.path} cannot be written ({error.strerror}); training goes on, "
                    "but its story and logs will have holes"
                )
            return False
        return True


def read_json(path: Path) -> dict[str, Any]:
    """A file of ours, or an empty dict when it is not there or cut off."""
    try:
        tree = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return tree if isinstance(tree, dict) else {}


def running(path: Path) -> bool:
    """Whether a launcher holds this directory now."""
    try:
        lock = os.open(path / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def recover(path: Path) -> str:
    """Sweep up after a launcher that was killed. One line that says so, or "" when all was well."""
    started = read_json(path / "run.json")
    ended = (path / "summary.json").exists()
    leftovers = [name for name in (*_GOING, "lock") if os.path.lexists(path / name)]
    if not started or (ended and not leftovers) or running(path):
        return ""
    try:
        lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError:
        return ""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # somebody was faster
        os.close(lock)
        return ""
    orphans = _end_processes(path)
    if not ended:
        killed = {
            "outcome": "killed", "error": "The launcher was killed.", "steps": None, "weights_sha256": None,
            "config": started.get("config"), "started": started.get("started"),
        }
        with contextlib.suppress(OSError):  # whoever asked goes on, and shows what was found
            _write_atomically(path / "summary.json", (json.dumps(killed, indent=2) + "\n").encode())
    left = [name for name in leftovers if name != "lock"]
    if scratch.remove(started.get("scratch")):
        left.append(started["scratch"])
    _sweep(path)
    os.close(lock)
    what = [*(f"removed {name}" for name in left), *(["ended " + orphans] if orphans else [])]
    return (
        f"{path}: the launcher of this run (pid {started.get('pid', 'unknown')}) was killed; "
        f"{' and '.join(what) or 'nothing was left behind'}, the run is closed"
    )


def recover_siblings(path: Path) -> list[str]:
    """Sweep up in every run beside `path`."""
    try:
        others = sorted(other.parent for other in path.parent.glob("*/run.json") if other.parent != path)
    except OSError:
        return []
    return [line for line in map(recover, others) if line]


def _end_processes(path: Path) -> str:
    """Kill forkservers and workers that a killed launcher left (they die with it by themselves, a moment later)."""
    run, ended = os.fsencode(path.resolve()), []
    for pid in processes.numbers():
        words = processes.command_line(pid)
        if _FORKSERVER in words and b"--run" in words and words[words.index(b"--run") + 1] == run:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                ended.append(str(pid))
    return f"process{'es' * (len(ended) > 1)} {', '.join(ended)}" if ended else ""


def _sweep(path: Path) -> None:
    """Remove what only a going run needs, and logs that say nothing. The lock goes last."""
    with contextlib.suppress(OSError):
        for log in [*(path / "logs").glob("*.stack"), *(path / "logs").glob("forkserver*.log")]:
            with contextlib.suppress(FileNotFoundError):
                if log.stat().st_size == 0:
                    log.unlink()
    for name in (*_GOING, "summary.json.new", "run.json.new", "lock"):
        with contextlib.suppress(OSError):
            os.unlink(path / name)


def _write_atomically(path: Path, data: bytes) -> None:
    new = path.with_name(path.name + ".new")
    try:
        with open(new, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _put_away(path: Path) -> None:
    """Move what the run has left of earlier times out of the way. Each file is whole, here or there."""
    numbers = [int(one.name) for one in (path / "earlier").glob("*") if one.name.isdigit()]
    place = path / "earlier" / str(1 + max(numbers, default=0))
    place.mkdir(parents=True)
    hangs = [one.name for one in path.glob("hang-*.txt")]
    for name in (*hangs, "logs", "story.jsonl", "failure.txt", "model.safetensors", "summary.json"):
        with contextlib.suppress(FileNotFoundError):
            os.rename(path / name, place / name)
    with contextlib.suppress(OSError):
        os.link(path / "run.json", place / "run.json")  # it stays here until it is written anew


def _how_to_resume(path: Path) -> str:
    """A sentence for who meets a run that did not come to its end; empty where it has no checkpoint."""
    try:
        usable = [one for one in found(path / CHECKPOINTS) if one.manifest is not None]
    except CheckpointError:
        usable = []
    return f"`holdfast run --resume {path}` goes on with it from step {usable[0].step}. " if usable else ""


def _how_it_ended(path: Path) -> str:
    outcome = read_json(path / "summary.json").get("outcome")
    known = {"ok": "ended well", "stopped": "was stopped", "failed": "failed", "killed": "was killed"}
    return known.get(str(outcome), "did not end well")


def host() -> str:
    """This machine's name, as `status` shows it."""
    return socket.gethostname()
