"""Trainings of a run's script that are over: what each has led to, in DIR/trainings/1, 2, ...

Each is a checkpoint of the state that it ended with. What is to be known besides is in the manifest: what the summary
says of it, and what the script had in its simple variables when it joined again. Workers of later trainings run the
script from its top, and take from here what a training gave that they have not been in.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from holdfast.checkpoint import writer
from holdfast.checkpoint.content import Content
from holdfast.checkpoint.reader import Checkpoint, found, open_checkpoint
from holdfast.errors import CheckpointError

__all__ = ["TRAININGS", "EndedTraining", "TrainingEnd", "ended_trainings", "forget", "keep", "open_ended"]

TRAININGS = "trainings"
_END = "end"


class TrainingEnd(msgspec.Struct, frozen=True):
    """What is to be known of a training that is over, besides its state."""

    result: dict[str, Any]
    variables: list[dict[str, str]]  #: of the script, where it joined again: what each worker had


class EndedTraining(NamedTuple):
    """A training that is over."""

    number: int  #: the first is 1
    checkpoint: Checkpoint
    end: TrainingEnd


def keep(directory: Path, number: int, content: Content, end: TrainingEnd) -> None:
    """Write down what training `number` has ended with. Raises CheckpointFailed."""
    control = {**content.control, _END: msgspec.to_builtins(end)}
    writer.write(_root(directory, number), msgspec.structs.replace(content, control=control), keep=1)


def open_ended(directory: Path, number: int) -> EndedTraining:
    """What training `number` of the run in this directory has ended with. Its bytes are proven when they are read.

    Raises CheckpointError.
    """
    root = _root(directory, number)
    item = next(iter(found(root)), None)
    if item is None or item.manifest is None:
        raise _lost(root, number, "There is nothing." if item is None else item.why)
    try:
        end = msgspec.convert(item.manifest.control.get(_END), TrainingEnd)
    except msgspec.ValidationError as error:
        raise _lost(root, number, f"What is there does not say it ({error}).") from None
    return EndedTraining(number, open_checkpoint(item.path), end)


def ended_trainings(directory: Path) -> list[EndedTraining]:
    """Those of a run that have left what they ended with, up to the first that has not."""
    ended: list[EndedTraining] = []
    while _root(directory, len(ended) + 1).is_dir():
        try:
            ended.append(open_ended(directory, len(ended) + 1))
        except CheckpointError:
            break
    return ended


def forget(directory: Path, number: int) -> None:
    """Training `number` is made anew, and so are those after it: what they had ended with counts no more."""
    while (root := _root(directory, number)).is_dir():
        shutil.rmtree(root)
        number += 1


def _root(directory: Path, number: int) -> Path:
    return directory / TRAININGS / str(number)


def _lost(root: Path, number: int, why: str) -> CheckpointError:
    return CheckpointError(
        f"{root} should hold what training {number} of the run has ended with, without which no later one can go on: "
        f"{why} Put that folder back, or start the run again in another --dir."
    )
