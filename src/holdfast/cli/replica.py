"""`holdfast replica ADDRESS`: this machine computes for a server that is going elsewhere."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.cli.options import Parser
from holdfast.errors import UsageError
from holdfast.quantities import Duration

if TYPE_CHECKING:
    from holdfast.serve.remote.replica_host import ReplicaHost
    from holdfast.transport.auth.credentials import Credentials

__all__ = ["main"]

_EPILOG = """\
The server prints the address, and what else is needed, when it starts with --listen.
The secret comes from --token-file or --credentials, else from HOLDFAST_TOKEN, else from standard input.
The models that it serves are sent along; nothing of them is left here afterwards.
Ctrl-C leaves in order: its replicas are replaced elsewhere first; a second one leaves at once.
"""


def main(argv: Sequence[str]) -> int:
    """Have replicas for a server, for as long as it goes."""
    options = _parser().parse(argv)
    for name in ("replicas", "threads"):
        if (value := getattr(options, name)) is not None and value < 1:
            raise UsageError(f"--{name} {value}: must be at least 1.")
    if importlib.util.find_spec("torch") is None:
        raise UsageError(f"{sys.executable} has no torch, which models need: pip install torch.")
    from holdfast.cli.join import credentials
    from holdfast.transport.endpoint import parse

    slots = options.replicas or max(1, len(os.sched_getaffinity(0)) // options.threads)
    stay = _Stay(
        parse(options.address), credentials(options.token_file, options.credentials), slots, options.threads,
        options.patience.seconds,
    )  # fmt: skip
    return asyncio.run(stay.run())


def _parser() -> Parser:
    it = Parser("replica", "Compute for a server that is going elsewhere.", _EPILOG)
    it.add_argument("address", metavar="ADDRESS", help="where the server listens: HOST:PORT, or [HOST]:PORT for IPv6")
    it.add_argument("--token-file", metavar="FILE", help="a copy of the file `token` in the server's directory")
    it.add_argument("--credentials", metavar="FILE", help="with --tls: a copy of the file `credentials` instead")
    it.add_argument("--replicas", type=int, metavar="K", help="room for so many (default: one per CPU)")
    it.add_argument("--threads", type=int, default=1, metavar="T", help="of torch, in each (default 1)")
    it.add_argument(
        "--patience", type=Duration, default=Duration("60s"), metavar="TIME",
        help="how long to look for a server that was lost (default 60s)",
    )
    return it


class _Stay:
    """Visits to one server, one after the other, until it ends or this machine is to leave."""

    def __init__(
        self, place: tuple[str, int], secret: Credentials, slots: int, threads: int, patience: float
    ) -> None:
        self._place, self._secret, self._slots, self._threads = place, secret, slots, threads
        self._patience = patience
        self._signal = 0

    async def run(self) -> int:
        """All of them; the exit code."""
        from holdfast.observe import agent_directory
        from holdfast.serve.remote.replica_host import ReplicaHost

        agent_directory.sweep()
        with agent_directory.AgentDirectory() as directory:
            host = ReplicaHost(
                self._place, self._secret, slots=self._slots, threads=self._threads, directory=directory.path,
                say_it=_say,
            )  # fmt: skip
            loop, going = asyncio.get_running_loop(), asyncio.ensure_future(self._visits(host))
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                loop.add_signal_handler(number, self._asked_to_leave, number, host, going)
            try:
                return await going
            except asyncio.CancelledError:
                return 128 + self._signal
            finally:
                host.close()

    async def _visits(self, host: ReplicaHost) -> int:
        from holdfast.cli.rejoin import Patience
        from holdfast.errors import NetworkError

        patience = Patience(0.0)  # the first time, it is there or it is not
        while True:
            visits = host.visits
            try:
                _say(await host.visit())
                return 0
            except NetworkError as error:
                if host.visits > visits:
                    patience.limit = self._patience
                    patience.succeeded()
                wait = patience.failed(time.monotonic())
                if wait is None or self._signal:
                    raise
                _say(f"{str(error).rstrip('.')}; trying again in {wait:g} s")
            await asyncio.sleep(wait)

    def _asked_to_leave(self, number: signal.Signals, host: ReplicaHost, going: asyncio.Future[int]) -> None:
        name = "Ctrl-C" if number == signal.SIGINT else number.name
        again, self._signal = bool(self._signal), int(number)
        if again or not host.joined:
            _say(f"{name}{' again' * again}: leaving at once")
            going.cancel()
            return
        _say(f"{name}: leaving when other machines have taken over; once more leaves at once")
        host.leave()


def _say(sentence: str) -> None:
    try:
        print(f"holdfast: {sentence}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass  # nobody reads it any more
