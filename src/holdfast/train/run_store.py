"""`run.store`: the parameter store of a run, as one worker gets it.

In a crew the launcher keeps the servers, and this worker only connects, under the name of its row on the board: that is
free as soon as its worker is certainly gone, so a replacement has it, and its pushes go on counting where they were.
Alone there are servers in threads of this process.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from holdfast.control.protocol.messages import SCRIPT, StoreWanted
from holdfast.errors import StoreError, UsageError
from holdfast.quantities import Size
from holdfast.store.client.store import Store
from holdfast.store.group import local
from holdfast.store.handlers import Handler, name_of
from holdfast.store.server.rounds import client_of
from holdfast.train.control_link import ControlLink
from holdfast.transport.auth.credentials import Credentials

__all__ = ["RunStore", "portable"]


def portable(handler: str, script: str) -> str:
    """The name of a handler, as it is understood on other hosts. Pure but for what a path stands for.

    >>> portable("train.py:descend", "train.py"), portable("module:descend", "train.py")
    ('<script>:descend', 'module:descend')
    """
    module, _, function = handler.rpartition(":")
    if module.endswith(".py") and Path(module).resolve() == Path(script).resolve():
        return f"{SCRIPT}:{function}"
    return handler


class RunStore:
    """One worker's part in the store of its run: `open` it once.

    Resources: `close` closes the connection, and ends the servers of a worker that is alone.
    """

    def __init__(self, steered: ControlLink | None, worker: int, row: int, script: str) -> None:
        self._steered, self._worker, self._script = steered, worker, script
        self.client = client_of(row)
        self._stack = contextlib.ExitStack()
        self._opened: tuple[Store, tuple[object, ...]] | None = None

    def open(self, servers: int, handler: Handler | str, memory: str | int | None, timeout: float) -> Store:
        """The store; the same one every time. Raises UsageError, StoreError."""
        asked = servers, handler if isinstance(handler, str) else name_of(handler), memory
        if self._opened is not None:
            store, before = self._opened
            if asked != before:
                raise UsageError(
                    f"run.store was called with {asked}, and before with {before} (servers, handler, memory). There is "
                    "one store in a run: keep it, or call run.store with the same arguments."
                )
            return store
        if servers < 1:
            raise UsageError(f"A store of {servers} servers: there must be at least one.")
        store = self._alone(servers, handler, memory, timeout) if self._steered is None else self._join(asked, timeout)
        self._opened = store, asked
        return store

    def close(self) -> None:
        """Close it; what was not waited for is waited for."""
        self._opened = None
        self._stack.close()

    def _alone(self, servers: int, handler: Handler | str, memory: str | int | None, timeout: float) -> Store:
        group = self._stack.enter_context(local(servers, clients=1, handler=handler, memory=memory, threads=True))
        return self._stack.enter_context(group.connect(self.client, timeout=timeout))

    def _join(self, asked: tuple[int, str, str | int | None], timeout: float) -> Store:
        assert self._steered is not None
        servers, handler, memory = asked
        size = 0 if memory is None else Size(memory).bytes
        wanted = StoreWanted(self._worker, servers, portable(handler, self._script), size)
        at = self._steered.ask_store(wanted)
        if at.problem:
            raise StoreError(at.problem)
        credentials = Credentials.parse(at.credentials, "the run") if at.credentials else None
        return self._stack.enter_context(Store(at.address, self.client, credentials=credentials, timeout=timeout))
