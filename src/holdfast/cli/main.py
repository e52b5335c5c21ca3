"""The `holdfast` command. Finds the subcommand's module and turns errors into exit codes.

Exit codes: 0 well, 1 the script failed, 2 wrong usage, 3 a bad unit, 4 NaN, 5 a hang, 6 crew lost,
7 out of memory or disk, 8 directory busy, 9 workers out of step, 10 the network, 11 refused by a run, 15 a checkpoint
that cannot be used, 16 a model that cannot be used or made, 70 a bug of ours, 128 + N ended by signal N.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from holdfast.errors import HoldfastError, UsageError

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "run": "train a script on a crew of workers",
    "join": "add this machine to a run that is going elsewhere",
    "status": "who is in the crew: role, pid, lanes, step, speed",
    "scale": "change the number of workers while the run is going",
    "set": "change how a going run keeps step",
    "explain": "tell a run's story: what was decided, and why",
    "checkpoint": "what a run has saved: list, verify, show, export, diff",
    "export": "make a model that can be served, from a run or a file",
    "serve": "answer requests with a model: Open Inference Protocol, plain JSON, a page",
    "replica": "compute for a server that is going elsewhere",
    "predict": "what a model says of every row of a data set: resumable, in order",
    "doctor": "check this machine, and say what to do about it",
    "bench": "run the benchmarks of this checkout",
    "version": "print the version",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(words)
    except HoldfastError as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # `holdfast explain DIR | head`
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        return 130


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_help())
        return 0 if words else UsageError.exit_code
    command = "version" if words[0] in ("--version", "-V") else words[0]
    if command not in COMMANDS:
        from holdfast.cli.options import nearest

        raise UsageError(f"{command}: there is no such command.{nearest(command, list(COMMANDS))} `holdfast --help`.")
    module = importlib.import_module(f"holdfast.cli.{command}")
    code: int = module.main(words[1:])
    return code


def _help() -> str:
    commands = "\n".join(f"  {name:<10} {what}" for name, what in COMMANDS.items())
    return (
        "usage: holdfast COMMAND [OPTIONS]\n\n"
        "Machines come and go; the result does not change.\n\n"
        f"{commands}\n\n"
        "`holdfast COMMAND --help` shows a command's options. To begin: holdfast run train.py"
    )


if __name__ == "__main__":
    sys.exit(main())
