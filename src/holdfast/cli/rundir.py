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
        newest = _newest(Path("runs"))
        hint = f" The newest under runs/ is {newest}." if newest else " A run is made by `holdfast run SCRIPT`."
        raise UsageError(f"{path} is not a run's directory.{hint}")
    if swept := recover(path):
        print(swept, file=sys.stderr)
    return path


def _newest(runs: Path) -> Path | None:
    """The run that was written to last; names tell nothing, since users choose them."""
    entry = max(runs.glob("*/run.json"), key=_written, default=None)
    return entry.parent if entry else None


def _written(entry: Path) -> float:
    try:
        return entry.stat().st_mtime
    except OSError:  # removed meanwhile
        return 0.0
