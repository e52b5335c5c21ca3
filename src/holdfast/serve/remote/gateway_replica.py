"""A replica on another machine, as the gateway beside the front door carries it. See `bridge.Side`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from holdfast.config.limits import SERVING
from holdfast.errors import FrameError, ModelError
from holdfast.model.library import version_at
from holdfast.model.manifest import NAME, ModelManifest
from holdfast.serve.remote import messages as say
from holdfast.serve.remote.bridge import Bridge
from holdfast.serve.remote.carrier import Carrier
from holdfast.serve.remote.checking import answer_problem, extent, loaded_problem
from holdfast.serve.replica.messages import (
    CannotLoad,
    Compute,
    Computed,
    End,
    Load,
    Loaded,
    Raised,
    decode_to_replica,
)
from holdfast.transport.link import Link
from holdfast.transport.stream import Stream

__all__ = ["GatewayReplica"]

_TEXT, _NAME = 4096, 128  # characters
_NOT_STARTED: say.Fate = "not started"


class GatewayReplica:
    """Sends batches, and the version's files where they are asked for; looks at every answer before it passes it on.

    `ended(how, fate)` is called once, in a thread of its own.
    """

    def __init__(self, link: Link, stream: Stream, ended: Callable[[str, say.Fate], None]) -> None:
        self._told_ended, self._fate, self._how = ended, _NOT_STARTED, ""
        self._path = Path()
        self._manifest: ModelManifest | None = None  #: of the version that it was told to load
        self._asked: Compute | None = None
        self._bridge = Bridge(link, Carrier(stream), self._ended)
        self._bridge.start(self)

    def close(self, reason: str) -> None:
        """End it, now."""
        self._bridge.close(reason)

    def from_link(self, data: bytes, memory: memoryview) -> bool:
        """The front door has something to compute, or to load."""
        message = decode_to_replica(data)
        if isinstance(message, Compute):
            self._asked = message
            self._bridge.carrier.send(data, memory[: extent(message.inputs)])
        elif isinstance(message, Load):
            self._load(message)
        return not isinstance(message, End)

    def from_stream(self, data: bytes, size: int) -> bool:
        """The other machine answers, or asks for a file. Raises FrameError where that cannot be."""
        message = say.decode_from_hosted(data)
        if isinstance(message, say.Fetch):
            self._send_file(message.name)
            return True
        if isinstance(message, say.Gone):
            self._how = message.how
            return False
        problem = ""
        if isinstance(message, Computed | Raised):
            if self._manifest is None:
                raise FrameError("what it says cannot be: it answers before it was told what to load")
            problem = answer_problem(message, self._asked, self._manifest.signature, size)
            self._asked = None
        elif isinstance(message, Loaded):
            problem, self._fate = loaded_problem(message), "lost"
        if problem:
            raise FrameError(f"what it says cannot be: {problem}")
        return self._bridge.to_link(data)

    def link_ended(self) -> None:
        """The front door has no use for it any more: the end of the connection says so."""
        if not self._bridge.closed:
            self._fate = "let go"

    # ------------------------------------------------------------ files

    def _load(self, wanted: Load) -> None:
        """Tell the other machine which version, by its manifest. It asks for the files that it does not have."""
        self._path = Path(wanted.path)
        try:
            self._manifest = version_at(self._path).manifest
            data = (self._path / NAME).read_bytes()
        except (ModelError, OSError) as error:
            self._bridge.to_link(say.encode(CannotLoad(str(error)[:_TEXT])))
            return
        self._bridge.carrier.send(say.encode(Load("", wanted.title, wanted.most, wanted.memory)), data)

    def _send_file(self, name: str) -> None:
        if self._manifest is None or name not in self._manifest.files:  # nothing else of this machine is sent
            raise FrameError(f"it asks for a file {name[:_NAME]!r}, which the version does not have")
        left = self._manifest.files[name].bytes
        try:
            with open(self._path / name, "rb") as file:
                while piece := file.read(min(SERVING.file_piece, left)):
                    left -= len(piece)
                    self._bridge.carrier.send(say.encode(say.FilePiece(last=False)), piece)
            problem = f"{name} has {left} bytes less than were written" if left else ""
        except OSError as error:
            problem = f"{name} cannot be read: {error.strerror}"
        self._bridge.carrier.send(say.encode(say.FilePiece(last=True, problem=problem)))

    def _ended(self, reason: str) -> None:
        self._told_ended(self._how or reason, self._fate)
