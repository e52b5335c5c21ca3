"""`holdfast scale DIR --workers N --servers M`: more or fewer of them while the run is going."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.cli.options import Parser
from holdfast.cli.rundir import open_run
from holdfast.config.limits import CONTROL
from holdfast.control.protocol.requests import Scale
from holdfast.control.shell.control_client import ask
from holdfast.errors import ConfigError, UsageError

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Ask the run; say what it decided."""
    it = Parser("scale", "Change how many workers or servers a going run has. The result does not change.")
    it.add_argument("dir", metavar="DIR", help="the run's directory")
    it.add_argument("--workers", type=int, metavar="N", help="how many workers there shall be")
    it.add_argument("--servers", type=int, metavar="N", help="how many servers there shall be")
    options = it.parse(argv)
    if options.workers is None and options.servers is None:
        raise UsageError("Nothing was asked for. Say what there shall be: --workers N, --servers N, or both.")
    if options.workers is not None and options.workers < 1:
        raise ConfigError("workers", options.workers, "must be 1 or more", source="--workers")
    if options.servers is not None and not 0 <= options.servers <= CONTROL.max_servers:
        raise ConfigError("servers", options.servers, f"must be 0 to {CONTROL.max_servers}", source="--servers")
    answer = ask(open_run(options.dir), Scale(options.workers, options.servers))
    print(answer["sentence"])
    return 0
