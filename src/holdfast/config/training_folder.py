"""The folder of a training: where files go that each training of a run's script has for itself. Pure."""

from __future__ import annotations

from pathlib import Path

__all__ = ["of_training"]


def of_training(folder: Path, training: int) -> Path:
    """Such a folder, once so many trainings are over.

    >>> str(of_training(Path("logs"), 0)), str(of_training(Path("logs"), 1))
    ('logs', 'logs/training-2')
    """
    return folder / f"training-{training + 1}" if training else folder
