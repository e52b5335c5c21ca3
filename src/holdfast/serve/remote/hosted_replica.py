"""A replica of this machine that serves a front door elsewhere, as its replica host carries it. See `bridge.Side`."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from holdfast.config.limits import SERVING
from holdfast.errors import FrameError, HoldfastError, ModelError, NetworkError
from holdfast.serve.remote import messages as say
from holdfast.serve.remote.bridge import Bridge
from holdfast.serve.remote.carrier import Carrier
from holdfast.serve.remote.checking import extent, request_problem
from holdfast.serve.remote.version_files import VersionFiles
from holdfast.serve.replica.messages import CannotLoad, Compute, Computed, End, Load, decode_from_replica
from holdfast.transport.link import Link
from holdfast.transport.stream import Stream

__all__ = ["HostedReplica"]

_TEXT = 4096  # characters


class HostedReplica:
    """Connects for a replica's process, and passes on what both say. `ended(reason)` is called in a thread of its own.

    Args:
        link: to the process; owned from now on.
        dial: connects to the front door's gateway. Raises HoldfastError.
    """

    def __init__(
        self, link: Link, dial: Callable[[], Stream], files: VersionFiles, ended: Callable[[str], None]
    ) -> None:
        self._link, self._dial, self._files, self._ended = link, dial, files, ended
        self._bridge: Bridge | None = None
        self._folder: Path | None = None
        self._lock = threading.Lock()
        self._closing = ""
        self._how = ""
        self._gone = threading.Event()
        threading.Thread(target=self._connect, name="holdfast-replica-dial", daemon=True).start()

    def gone(self, how: str) -> None:
        """Its process has ended: that is the last thing that the front door is told of it."""
        self._how = how
        self._gone.set()

    def close(self, reason: str) -> None:
        """End it, now."""
        with self._lock:
            self._closing = self._closing or reason
            bridge = self._bridge
        self._gone.set()
        if bridge is not None:
            bridge.close(reason)

    def _connect(self) -> None:
        try:
            stream = self._dial()
        except HoldfastError as error:
            self._link.close()
            self._ended(str(error))
            return
        with self._lock:
            self._bridge = Bridge(self._link, Carrier(stream), self._over)
        self._bridge.start(self)
        if self._closing:
            self._bridge.close(self._closing)

    def _over(self, reason: str) -> None:
        if self._folder is not None:
            self._files.release(self._folder)
        self._ended(reason)

    # ------------------------------------------------------------ messages

    def from_link(self, data: bytes, memory: memoryview) -> bool:
        """The process answers."""
        message = decode_from_replica(data)
        size = extent(message.outputs) if isinstance(message, Computed) else 0
        self._carrier.send(data, memory[:size])
        return True

    def from_stream(self, data: bytes, size: int) -> bool:
        """The front door has something to compute, or to load. Raises FrameError where that cannot be."""
        message = say.decode_to_hosted(data)
        if isinstance(message, Compute):
            if problem := request_problem(message, size):
                raise FrameError(f"what it says cannot be: {problem}")
        elif isinstance(message, Load):
            return self._load(message, size)
        elif isinstance(message, End):
            return False
        else:
            raise FrameError("a piece of a file came that nobody has asked for")
        return self._to_link(data)

    def link_ended(self) -> None:
        """The process is gone; how, its parent knows in a moment."""
        self._gone.wait(SERVING.farewell)
        if self._how:
            self._carrier.send(say.encode(say.Gone(self._how)))

    # ------------------------------------------------------------ files

    def _load(self, wanted: Load, size: int) -> bool:
        """Have the version's files here, and have the process load them."""
        assert self._bridge is not None
        manifest = bytes(self._bridge.memory[:size])
        try:
            if self._folder is not None:
                raise FrameError("it is to load a second version")
            self._folder = self._files.obtain(manifest, self._fetch)
        except (HoldfastError, msgspec.MsgspecError) as error:
            if isinstance(error, NetworkError):
                raise
            self._carrier.send(say.encode(CannotLoad(f"on {os.uname().nodename}: {error}"[:_TEXT])))
            return True
        return self._to_link(say.encode(msgspec.structs.replace(wanted, path=str(self._folder))))

    def _fetch(self, name: str) -> Iterator[memoryview]:
        """Ask for a file, and take in its pieces: nothing else is said meanwhile."""
        self._carrier.send(say.encode(say.Fetch(name)))
        piece = memoryview(bytearray(SERVING.file_piece))

        def room(size: int) -> memoryview:
            if size > len(piece):
                raise FrameError(f"a piece of {name} has {size} bytes, where {len(piece)} are taken")
            return piece

        while True:
            data, size = self._carrier.receive(room)
            message = say.decode_to_hosted(data)
            if not isinstance(message, say.FilePiece):
                raise FrameError(f"something else came than {name}")
            if message.problem:
                raise ModelError(f"{name} could not be sent: {message.problem}.")
            if size:
                yield piece[:size]
            if message.last:
                return

    @property
    def _carrier(self) -> Carrier:
        assert self._bridge is not None
        return self._bridge.carrier

    def _to_link(self, data: bytes) -> bool:
        assert self._bridge is not None
        return self._bridge.to_link(data)
