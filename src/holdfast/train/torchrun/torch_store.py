"""The store that all ranks of a launcher can reach: torch's own, at MASTER_ADDR:MASTER_PORT.

torchrun serves it for its ranks; under any other launcher rank 0 does, for as long as it takes to find each other. It
can be shared with a process group that the script makes itself. Whoever reaches it can read and write all of it: it has
the launcher's trust, no less and no more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from holdfast.config.limits import TORCHRUN
from holdfast.errors import NetworkError, UsageError
from holdfast.train.torchrun.ranks import World

__all__ = ["TorchStore"]

T = TypeVar("T")


class TorchStore:
    """See `rendezvous.Store`. Resources: `close` lets go of it, and ends the one that rank 0 serves."""

    def __init__(self, world: World, *, limit: float = TORCHRUN.rendezvous) -> None:
        self._where = f"{world.address}:{world.port}"
        try:
            from torch.distributed import TCPStore  # type: ignore[attr-defined]
        except ImportError:
            raise UsageError(
                "This build of torch has no torch.distributed, which ranks of a launcher need to find each other. Use "
                "`holdfast run` instead."
            ) from None
        serve = world.rank == 0 and not world.served
        until = time.monotonic() + limit
        while True:
            try:
                self._store: Any = TCPStore(
                    world.address, world.port, is_master=serve,
                    timeout=timedelta(seconds=min(TORCHRUN.store_dial, limit)),
                    wait_for_workers=False, multi_tenant=True,
                )  # fmt: skip
                return
            except RuntimeError as error:
                if serve:
                    raise NetworkError(
                        f"Rank 0 cannot serve at MASTER_ADDR:MASTER_PORT = {self._where}: {_first_line(error)} Set "
                        "MASTER_ADDR to an address of the machine of rank 0, and MASTER_PORT to a port that is free "
                        "there."
                    ) from None
                if time.monotonic() >= until:
                    raise NetworkError(
                        f"Nobody answers at MASTER_ADDR:MASTER_PORT = {self._where} for {limit:.0f} s: "
                        f"{_first_line(error)} Rank 0 serves there; look whether it has come to hf.join(), and whether "
                        "this machine can reach it."
                    ) from None

    def put(self, key: str, text: str) -> None:
        """Write it."""
        self._ask(lambda store: store.set(key, text))

    def look(self, key: str) -> str | None:
        """Read it, if it is there."""
        return self._ask(lambda store: store.get(key).decode() if store.check([key]) else None)

    def count(self, key: str, more: int) -> int:
        """Add to a number; the sum."""
        return int(self._ask(lambda store: store.add(key, more)))

    def drop(self, key: str) -> None:
        """Remove it."""
        self._ask(lambda store: store.delete_key(key))

    def close(self) -> None:
        """Let go of it. May be called twice."""
        self._store = None

    def _ask(self, act: Callable[[Any], T]) -> T:
        try:
            return act(self._store)
        except RuntimeError as error:
            raise NetworkError(
                f"What ranks find each other with, at MASTER_ADDR:MASTER_PORT = {self._where}, is gone: "
                f"{_first_line(error)} Rank 0, or torchrun on its machine, has ended: look at its output."
            ) from None


def _first_line(error: Exception) -> str:
    line = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(". ")
    return f"{line}."
