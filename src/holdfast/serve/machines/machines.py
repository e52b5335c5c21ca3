"""The other machines of a server: how they are let in, and who starts them.

    DIR/token         the secret that lets machines in, readable by its owner only
    DIR/credentials   with --tls: the same, with a certificate
    DIR/address       where they dial

They come by hand (`holdfast replica`), or Ray starts them (`ray_machines`); what they do then is the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.errors import ResourceError
from holdfast.serve.machines.gateway_process import GatewayProcess
from holdfast.serve.machines.places import Places
from holdfast.serve.machines.ray_machines import RayMachines
from holdfast.serve.models.replica_processes import ReplicaProcesses
from holdfast.serve.options import ServeOptions
from holdfast.serve.remote.messages import Listen
from holdfast.transport.auth import token as tokens
from holdfast.transport.auth.credentials import Secrets, secrets_for
from holdfast.transport.endpoint import listening_on, parse
from holdfast.transport.interfaces import found
from holdfast.transport.stream import name_of

__all__ = ["Machines"]

_FILES = ("address", "credentials", "token")
_ANY = ("0.0.0.0", "::")


class Machines:
    """Opens the way to other machines. Resources: `close` ends it, and what Ray has started."""

    def __init__(
        self, options: ServeOptions, local: ReplicaProcesses, directory: Path, say: Callable[[str], None],
        move: Callable[[int, str], bool],
    ) -> None:  # fmt: skip
        self._options, self._local, self._directory, self._say = options, local, directory, say
        self._move = move
        self._gateway: GatewayProcess | None = None
        self.places: Places | None = None  #: where replicas go, once it is open
        self._ray: RayMachines | None = None

    @property
    def wanted(self) -> bool:
        """Was the server told to have other machines?"""
        return bool(self._options.listen) or self._options.on != "local"

    async def open(self) -> None:
        """Let machines in, and have them started. Raises HoldfastError."""
        options, secrets = self._options, secrets_for(
            self._directory.name, self._options.machine_secret, self._options.tls
        )  # fmt: skip
        address = ""
        if options.on == "ray":
            self._ray = RayMachines(options, self._directory / "logs", self._say)
            address = await self._ray.connect()
        host, port = parse(options.listen or address, port=0)
        listen = Listen(listening_on(host), port, secrets.ours.text, self._directory.name)
        places = self.places = Places(self._local, self._here(), self._say, self._move)
        self._gateway = GatewayProcess(listen, self._directory / "logs" / "gateway.log", places.told,
                                       places.gateway_lost)  # fmt: skip
        bound, port = await self._gateway.open()
        places.connect(self._gateway)
        told = bound if bound not in _ANY else address or _reachable()
        self._invite(secrets, name_of((told, port)))
        if self._ray is not None:
            self._ray.open(name_of((told if told != "127.0.0.1" else address, port)), secrets.theirs)

    async def watch(self) -> None:
        """Keep replicas where there is room, for ever. Raises what leaves the server without any machine."""
        assert self.places is not None
        watching: asyncio.Future[Any] = asyncio.ensure_future(self.places.watch())
        try:
            if self._ray is not None:
                await asyncio.wait([watching, self._ray.lost], return_when=asyncio.FIRST_COMPLETED)
                if self._ray.lost.done() and not self.places.slots:
                    raise self._ray.lost.result()
            await watching
        finally:
            watching.cancel()

    async def close(self) -> None:
        """Tell machines that it is over, and end everything."""
        if self._gateway is not None:
            self._gateway.close()
        if self._ray is not None:
            await self._ray.close()
        if self.places is not None:
            self.places.close()
        for name in _FILES:
            with contextlib.suppress(OSError):
                (self._directory / name).unlink()

    def _here(self) -> int:
        options = self._options
        if options.here is not None:
            return options.here
        return 0 if options.on == "ray" else max(1, len(os.sched_getaffinity(0)) // options.threads)

    def _invite(self, secrets: Secrets, place: str) -> None:
        """Write down what other machines need, and say what to type there."""
        try:
            if secrets.theirs.tls is not None:
                secrets.theirs.write(self._directory / "credentials")
                how = f"--credentials {self._directory}/credentials"
            elif self._options.machine_secret is not None:
                how = f"--token-file {self._options.machine_secret}"
            else:
                tokens.write(self._directory / "token", secrets.theirs.token)
                how = f"--token-file {self._directory}/token"
            # Last, and whole: who waits for it finds the secret as well.
            (self._directory / ".address.new").write_text(place + "\n")
            (self._directory / ".address.new").rename(self._directory / "address")
        except OSError as error:
            raise ResourceError(
                f"{self._directory} does not take what other machines need to join: {error.strerror}. Use another "
                "--dir."
            ) from None
        self._say(f"other machines compute for it with: holdfast replica {place} {how} (copy that file there; whoever "
                  "has it can answer requests)")  # fmt: skip


def _reachable() -> str:
    """An address of this machine that others may know."""
    far = [one.ip for one in found() if one.kind != "loopback"]
    return far[0] if far else "127.0.0.1"
