"""Resumption: a run that goes on from a checkpoint, as it was started, in the directory that it has.

What fixes its result (script, arguments, lanes, seed, threads, mode) is the checkpoint's to say; who computes it
(workers, servers, hosts) may be another crew.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from holdfast.checkpoint.capture import restore, state_of
from holdfast.checkpoint.ended_trainings import TRAININGS, ended_trainings, open_ended
from holdfast.checkpoint.manifest import CheckpointManifest
from holdfast.checkpoint.reader import Checkpoint, found, newest, open_checkpoint
from holdfast.cli.launch.ending import WentOnFrom
from holdfast.config.run_config import SECTIONS, RunConfig
from holdfast.control.protocol.events import Resumed
from holdfast.errors import ConfigError, NotACheckpoint, UsageError
from holdfast.hosts.admission import FirstState
from holdfast.hosts.local_host import Restoration
from holdfast.observe.directory import CHECKPOINTS

__all__ = ["Resumption", "fetched", "hash_of", "open_resumption", "settings"]

#: What a run is told anew each time it starts.
_ANEW = ("dir", "resume", "changed_script", "token_file", "init_from")
#: What the result follows from.
_FIXED = ("lanes", "seed", "threads", "sync")


class Resumption(NamedTuple):
    """What a run goes on from."""

    directory: Path  #: of the run
    training: int  #: of its script that goes on, from 1
    checkpoint: Checkpoint  #: of that training; or what the one before it has ended with
    resumed: Resumed | None  #: None: that training begins
    passed_over: list[str]  #: why newer checkpoints are not used

    def first(self) -> FirstState | None:
        """Its state, for a host elsewhere."""
        if self.resumed is None:
            return None
        reading = functools.partial(state_of, self.checkpoint, ended=self.resumed.ended)
        return FirstState(reading, self.resumed.modes[-1])

    def restoration(self) -> Restoration | None:
        """Of its state, on this machine."""
        if self.resumed is None:
            return None
        restoring = functools.partial(restore, self.checkpoint, ended=self.resumed.ended)
        return Restoration(restoring, self.resumed.modes[-1])

    def as_started(self, config: RunConfig) -> RunConfig:
        """The configuration, with what its script stated for itself left to that: each training may state another."""
        began = self.checkpoint.manifest.config
        return msgspec.structs.replace(config, **{name: began.get(name) for name in ("lanes", "seed", "threads")})

    def went_on_from(self) -> WentOnFrom:
        """Where the run went on."""
        facts = self.checkpoint.manifest.facts
        if self.resumed is None:
            return WentOnFrom(0, 0, f"{TRAININGS}/{self.training - 1}", self.training)
        return WentOnFrom(facts.step, facts.samples, self.checkpoint.path.name, self.training)


def fetched(path: str, directory: str | None) -> str:
    """The directory in which a run goes on; from a URL its newest copy that is whole is fetched into that."""
    if "://" not in path:
        return path
    if not directory:
        raise UsageError(f"--resume {path}: say in which directory the run is to go on. Add --dir DIR.")
    from holdfast.checkpoint.remote import download

    root = Path(directory, CHECKPOINTS)
    root.mkdir(parents=True, exist_ok=True)
    download(path, root)
    return directory


def settings(path: str) -> dict[str, Any]:
    """How the run was started that is to go on: by name, as `--set` has it."""
    manifest = _any_manifest(Path(path))
    known = {field.name for field in msgspec.structs.fields(RunConfig)} - set(_ANEW)
    told: dict[str, Any] = {}
    for name, value in manifest.config.items():
        if name in SECTIONS:
            told |= {f"{name}.{field}": inner for field, inner in value.items()}
        elif name in known and value is not None:
            told[name] = tuple(value) if isinstance(value, list) else value
    return told


def open_resumption(config: RunConfig) -> Resumption:
    """Find the checkpoint, and see that the run may go on from it. Raises UsageError, CheckpointError."""
    path = Path(config.resume)
    if (path / "manifest.json").exists():
        checkpoint, passed_over = open_checkpoint(path), list[str]()
        checkpoint.verify()
    else:
        root = _root(path)
        best = newest(root)
        ended = ended_trainings(root.parent)
        if ended and (best.checkpoint is None or best.checkpoint.manifest.facts.training <= len(ended)):
            _check(config, ended[-1].checkpoint.manifest)
            return Resumption(root.parent.resolve(), len(ended) + 1, ended[-1].checkpoint, None, best.passed_over)
        if best.checkpoint is None:
            why = best.passed_over[-1] if best.passed_over else "it has none"
            raise NotACheckpoint(root, f"there is none that could be used: {why}")
        checkpoint, passed_over = best.checkpoint, best.passed_over
    manifest = checkpoint.manifest
    _check(config, manifest)
    try:
        resumed = msgspec.convert(manifest.control, Resumed)
    except msgspec.ValidationError as error:
        raise NotACheckpoint(checkpoint.path, f"it does not say where its run stood ({error})") from None
    directory = checkpoint.path.resolve().parent.parent
    if checkpoint.path.resolve().parent.name != CHECKPOINTS:
        raise UsageError(
            f"{checkpoint.path} is not in a run's directory, in which it could go on. Move it to checkpoints/ of one."
        )
    training = manifest.facts.training
    for before in range(1, training):
        open_ended(directory, before)  # without it no worker gets to the training at hand
    return Resumption(directory, training, checkpoint, resumed, passed_over)


def hash_of(script: str) -> str:
    """Of a script's text; empty where it cannot be read."""
    try:
        return hashlib.sha256(Path(script).read_bytes()).hexdigest()
    except OSError:
        return ""


def _check(config: RunConfig, manifest: CheckpointManifest) -> None:
    facts = manifest.facts
    for name in _FIXED:
        now, then = getattr(config, name), getattr(facts, name)
        # What the script states, it states again; it may be another value in another training.
        if now is not None and now != then:
            raise ConfigError(
                name, now, f"the run was started with {then}, and with another value its result would be another one",
                source=f"--{name}", fix="Leave it out.",
            )  # fmt: skip
    now = hash_of(config.script)
    if now != manifest.script.sha256 and config.changed_script != "ok":
        raise UsageError(
            f"{config.script} is not the script any more that the run was started with: its SHA-256 is {now[:12]}, and "
            f"was {manifest.script.sha256[:12]}. Put that one back; or, if the run is to go on with the new one, add "
            "--changed-script ok."
        )


def _root(path: Path) -> Path:
    return path / CHECKPOINTS if (path / CHECKPOINTS).is_dir() or (path / "run.json").exists() else path


def _any_manifest(path: Path) -> CheckpointManifest:
    if (path / "manifest.json").exists():
        return open_checkpoint(path).manifest
    if not path.is_dir():
        raise NotACheckpoint(path, "there is nothing" if not path.exists() else "it is a file")
    root = _root(path)
    every = found(root)
    usable = next((one.manifest for one in every if one.manifest is not None), None)
    if usable is None and (ended := ended_trainings(root.parent)):
        return ended[-1].checkpoint.manifest
    if usable is None:
        raise NotACheckpoint(path, every[0].why if every else "that run has written no checkpoint")
    return usable
