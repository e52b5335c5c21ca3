"""Engines: what `--on` names. A run goes to one of them, as it is configured and checked.

`fork_spawner` runs it here, and machines may join. `ray` runs the coordinator here, and has a cluster start the
machines' agents (`fleet`). `slurm` and `kubernetes` hand all of it over, as a job that starts when there is room
(`batch`). What starts processes on one machine is a spawner (`control.protocol.ports.Spawner`), and every engine ends
up with one on each.

Which there are is in one table (`cli.launch.engine_table`). To add one, write a class that passes the tests of
`tests/contract/test_engine_contract.py`, and give it a line there.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.config.resolve import Resolved

__all__ = ["Engine"]


class Engine(Protocol):
    """Sees to it that a run happens.

    Contract (`tests/contract/test_engine_contract.py` holds every engine to it):

    * a script that is not there is refused before anything is started, submitted or written; so is a setting that this
      engine does not look at;
    * `rehearse` starts and writes nothing, and says the same each time; where there is nobody to be told anything, it
      says so;
    * a package or a tool that is needed and not there is named, with what to do, and nothing is left behind;
    * the secret of the run is on no screen and no command line;
    * wherever it runs, the same script with the same lanes, seed and threads ends with the same weights.
    """

    def rehearse(self, resolved: Resolved) -> str:
        """What a cluster would be told, as `run` would tell it. Raises UsageError."""

    def run(self, resolved: Resolved) -> int:
        """Run it, or hand it over; the exit code."""
