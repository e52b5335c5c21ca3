"""`holdfast scale DIR --workers N`: more or fewer workers while the run is going."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.cli.options import Parser
from holdfast.cli.rundir import open_run
from holdfast.coordinator.client import ask
from holdfast.coordinator.requests import Scale
from holdfast.errors import ConfigError

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Ask the run; say what it decided."""
    it = Parser("scale", "Change the number of workers while the run is going. The result does not change.")
    it.add_argument("dir", metavar="DIR", help="the run's directory")
    it.add_argument("--workers", type=int, metavar="N", required=True, help="how many workers there shall be")
    options = it.parse(argv)
    if options.workers < 1:
        raise ConfigError("workers", options.workers, "must be 1 or more", source="--workers")
    answer = ask(open_run(options.dir), Scale(options.workers))
    print(answer["sentence"])
    return 0
