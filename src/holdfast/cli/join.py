"""`holdfast join ADDRESS`: this machine becomes part of a run that is going elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.cli.options import Parser
from holdfast.errors import ConfigError, UsageError
from holdfast.quantities import Duration

if TYPE_CHECKING:
    from holdfast.transport.auth.credentials import Credentials

__all__ = ["credentials", "main", "parser"]

_EPILOG = """\
The run prints the address, and what else is needed, when it starts with --listen.
The secret comes from --token-file or --credentials, else from HOLDFAST_TOKEN, else from standard input.
Workers run in this directory. The script is sent along where this machine has not the same at the same path.
Ctrl-C leaves the run in order: what this machine does is taken over by others first; a second one leaves at once.
"""


def parser() -> Parser:
    """The options of `holdfast join`."""
    it = Parser("join", "Add this machine to a run that is going elsewhere.", _EPILOG)
    it.add_argument("address", metavar="ADDRESS", help="where the run listens: HOST:PORT, or [HOST]:PORT for IPv6")
    it.add_argument("--token-file", metavar="FILE", help="a copy of the file `token` in the run's directory")
    it.add_argument("--credentials", metavar="FILE", help="with --tls: a copy of the file `credentials` instead")
    it.add_argument("--workers", type=int, metavar="K", help="room for so many workers (default: one per CPU)")
    it.add_argument("--listen", metavar="ADDRESS[:PORT]", help="where other hosts reach this one (default: anywhere)")
    it.add_argument(
        "--patience", metavar="TIME", type=Duration,
        help="how long to try to reach the run: at first (default: once), and when it is lost (default: 60s)",
    )
    it.add_argument("--notice", metavar="SOURCE", help="a file, a URL or command:WORDS that tells of a preemption")
    return it


def main(argv: Sequence[str]) -> int:
    """Have a part in a run; the exit code."""
    options = parser().parse(argv)
    if options.workers is not None and options.workers < 1:
        raise ConfigError("workers", options.workers, "must be 1 or more", source="--workers")
    from holdfast.transport.endpoint import listening_on, parse

    place = parse(options.address)
    bind = ("", 0)
    if options.listen:
        host, port = parse(options.listen, port=0)
        bind = listening_on(host), port
    secret = credentials(options.token_file, options.credentials)
    from holdfast.cli.rejoin import Rejoin

    return Rejoin(
        place, secret, slots=options.workers or 0, bind=bind,
        patience=options.patience.seconds if options.patience is not None else None, notice=options.notice or "",
    ).run()  # fmt: skip


def credentials(token_file: str | None, file: str | None) -> Credentials:
    """The secret, from the first place that has one. Never from an option: all users of a machine can read those."""
    from pathlib import Path

    from holdfast.transport.auth.credentials import Credentials

    if token_file and file:
        raise UsageError("--credentials has the token in it. Leave --token-file out.")
    if token_file or file:
        return Credentials.read(Path(token_file or file or ""))
    if text := os.environ.pop("HOLDFAST_TOKEN", ""):  # what this process starts has no need of it
        return Credentials.parse(text, "HOLDFAST_TOKEN")
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError(
            "The secret that lets this machine in is missing. Copy the file `token` from the run's directory, and name "
            "it: --token-file FILE."
        )
    return Credentials.parse(sys.stdin.read(64 * 1024), "standard input")
