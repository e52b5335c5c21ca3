"""Following a run: its model is exported once, and each newer checkpoint of it becomes a new version with its weights.

The script of a run is the user's code and needs torch, and weights are hashed: both happen in processes of their own.
Once replicas answer, those yield the machine to them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from holdfast.checkpoint.forms.weights import FINAL
from holdfast.checkpoint.reader import found
from holdfast.config.limits import SERVING
from holdfast.errors import CheckpointError, ModelError, UsageError
from holdfast.model.library import versions
from holdfast.observe.directory import CHECKPOINTS, running

__all__ = ["RunFollowing", "is_run"]

_KEPT = 4  # versions that are left of those that were made
_NICE = 15


def is_run(path: Path) -> bool:
    """Is it a run's directory, and no model's?"""
    return (path / "run.json").is_file() and not versions(path)


class RunFollowing:
    """Makes versions of a run's model in `library`."""

    def __init__(self, run: Path, library: Path, note: Callable[[str], None]) -> None:
        self._run, self.library, self._note = run, library, note
        self._taken: set[str] = set()  # checkpoints

    async def first(self, name: str) -> None:
        """Export the model, as soon as there is a checkpoint. Raises ModelError, UsageError."""
        said = False
        while True:
            newest = await asyncio.to_thread(self._newest)
            kept = await asyncio.to_thread(self._keep, newest) if newest else None
            if kept is not None or (not newest and (self._run / FINAL).exists()):
                words = ["export", str(kept or self._run), "--to", str(self.library), "--name", name]
                status, printed = await _apart(["-m", "holdfast.cli.main", *words])
                if status:
                    raise ModelError(f"The model of {self._run} could not be exported. {_last(printed)}")
                self._taken.add(newest)
                self._note(_last(printed))
                return
            elif newest:
                continue  # it was removed at that moment: there is a newer one
            elif not running(self._run):
                raise UsageError(f"{self._run}: this run has saved nothing that could be served, and it is not going.")
            elif not said:
                said = True
                self._note(f"{self._run} has written no checkpoint yet: waiting for the first (--checkpoint says when)")
            await asyncio.sleep(SERVING.new_versions)

    async def follow(self, name: str, held: Callable[[], set[int]]) -> None:
        """Publish newer checkpoints of the model of that name, for ever. `held`: versions that are in use."""
        while True:
            await asyncio.sleep(SERVING.new_versions)
            newest = await asyncio.to_thread(self._newest)
            if not newest or newest in self._taken:
                continue
            self._taken.add(newest)
            kept = await asyncio.to_thread(self._keep, newest)
            if kept is None:
                continue
            words = ["-m", "holdfast.model.publishing", str(self.library), str(kept)]
            status, printed = await _apart(words, niceness=_NICE)
            if status:
                self._note(f"{name}: {newest} is not served: {_last(printed)}")
            await asyncio.to_thread(self._sweep, held())

    def _keep(self, name: str) -> Path | None:
        """Hold on to a checkpoint while it is read: the run removes old ones. None: it is gone already.

        Its files are linked into a folder that looks like the run's; a checkpoint never changes.
        """
        kept = self.library.with_name(self.library.name + ".run")
        shutil.rmtree(kept, ignore_errors=True)
        (kept / CHECKPOINTS).mkdir(parents=True)
        try:
            shutil.copy(self._run / "run.json", kept)
            copied = shutil.copytree(self._run / CHECKPOINTS / name, kept / CHECKPOINTS / name, copy_function=_link)
        except (OSError, shutil.Error):
            return None
        return Path(copied)

    def _newest(self) -> str:
        """The newest checkpoint that is whole by its manifest."""
        with contextlib.suppress(CheckpointError, OSError):
            return next((one.path.name for one in found(self._run / CHECKPOINTS) if one.manifest is not None), "")
        return ""

    def _sweep(self, held: set[int]) -> None:
        """Remove versions that nobody will go back to."""
        with contextlib.suppress(ModelError):
            for old in versions(self.library)[_KEPT:]:
                if old.number not in held:
                    shutil.rmtree(old.path, ignore_errors=True)


def _link(source: str, to: str) -> None:
    try:
        os.link(source, to)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM):  # another file system, or one without links
            raise
        shutil.copy(source, to)


async def _apart(words: list[str], niceness: int = 0) -> tuple[int, str]:
    """Run Python in a process of its own; its status and what it has printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT, preexec_fn=lambda: os.nice(niceness),
    )  # fmt: skip
    try:
        printed, _ = await process.communicate()
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    return process.returncode or 0, printed.decode(errors="replace")


def _last(printed: str) -> str:
    lines = printed.strip().splitlines()
    return lines[-1].removeprefix("holdfast: ") if lines else "It said nothing."
