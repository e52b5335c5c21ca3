"""Which checkpoints a path means: a run's directory, the folder of its checkpoints, or one of them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from holdfast.checkpoint import manifest, place
from holdfast.checkpoint.reader import Checkpoint, Found, found, newest, open_checkpoint
from holdfast.errors import CheckpointError, NotACheckpoint, UnreadableCheckpoint

__all__ = ["FOLDER", "Location", "locate"]

#: In a run's directory.
FOLDER = "checkpoints"


class Location(NamedTuple):
    """A folder of checkpoints, or, with `one`, a single one of them."""

    root: Path
    one: Path | None = None

    def listed(self) -> list[Found]:
        """All that are meant, the newest first."""
        if self.one is None:
            return found(self.root)
        step = (place.number_of(self.one.name) or (0, 0))[0]
        try:
            checkpoint = open_checkpoint(self.one)
        except NotACheckpoint:
            raise
        except CheckpointError as error:
            return [Found(self.one, step, None, error)]
        return [Found(self.one, checkpoint.manifest.facts.step, checkpoint.manifest)]

    def newest(self) -> tuple[Checkpoint, list[str]]:
        """The one that is meant, proven whole, and a sentence for each newer one. Raises CheckpointError."""
        if self.one is not None:
            checkpoint = open_checkpoint(self.one)
            checkpoint.verify()
            return checkpoint, []
        best = newest(self.root)
        if best.checkpoint is None:
            raise CheckpointError(
                f"No checkpoint in {self.root} is whole. " + " ".join(best.passed_over)
                if best.passed_over else f"There is no checkpoint in {self.root} yet."
            )  # fmt: skip
        return best.checkpoint, best.passed_over


def locate(path: Path) -> Location:
    """What a path means. Raises NotACheckpoint, UnreadableCheckpoint."""
    try:
        names = {item.name: item for item in path.iterdir()}
    except FileNotFoundError:
        raise NotACheckpoint(path, "there is nothing") from None
    except NotADirectoryError:
        raise NotACheckpoint(path, "it is a file") from None
    except OSError as error:
        raise UnreadableCheckpoint(path, error.strerror or str(error)) from None
    if manifest.NAME in names or place.number_of(path.resolve().name):
        return Location(path.parent, path)
    if FOLDER in names and names[FOLDER].is_dir():
        return Location(path / FOLDER)
    if path.resolve().name == FOLDER or any(map(place.number_of, names)):
        return Location(path)
    if "run.json" in names:
        raise NotACheckpoint(path, "it is a run that has written none")
    raise NotACheckpoint(path, f"it has no {manifest.NAME}")
