"""Opening a run's directory from a command: it must be one, and what a killed launcher left is swept up."""

from __future__ import annotations

import sys
from pathlib import Path

from holdfast.errors import UsageError
from holdfast.observe.directory import recover

__all__ = ["open_run"]


def open_run(name: str) -> Path:
    """The directory of a run. Raises UsageError when `name` is none."""
    path = Path(name)
    if not (path / "run.json").exists() and not (path / "lock").exists():
        near = sorted(other.parent for other in Path("runs").glob("*/run.json"))
        hint = f" The newest under runs/ is {near[-1]}." if near else " A run is made by `holdfast run SCRIPT`."
        raise UsageError(f"{path} is not a run's directory.{hint}")
    if swept := recover(path):
        print(swept, file=sys.stderr)
    return path
