"""`holdfast status DIR`: who is in the crew, and how far they are."""

from __future__ import annotations

import json
from collections.abc import Sequence

from holdfast.cli.options import Parser
from holdfast.cli.rundir import open_run

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Print the status of a run, going or ended."""
    it = Parser("status", "Who is in the crew: role, pid, lanes, step, speed.")
    it.add_argument("dir", metavar="DIR", help="the run's directory")
    it.add_argument("--json", action="store_true", help="as JSON, stable enough to script against")
    options = it.parse(argv)
    # Not needed for --help, and they take their time.
    from holdfast.control.protocol.requests import Status
    from holdfast.control.shell.control_client import NotRunning, ask
    from holdfast.observe import status
    from holdfast.observe.directory import read_json

    path = open_run(options.dir)
    try:
        answer = ask(path, Status())
    except NotRunning:
        summary = read_json(path / "summary.json")
        if not summary:
            raise
        answer = status.of_ended(summary, str(path))
    print(json.dumps(answer, indent=2) if options.json else status.table(answer))
    return 0
