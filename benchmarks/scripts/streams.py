"""The two ends of the connections whose throughput is measured, each in a process of its own.

    streams.py serve DIRECTORY                          listens twice, without TLS and with it; answers until killed
    streams.py call DIRECTORY FILE ROUNDS BYTES         measures, in turns; writes what it found

Both read their credentials in DIRECTORY, where the server leaves its addresses. The connections are the run's own:
`transport.stream` behind `listener` and `dial`.
"""

from __future__ import annotations

import json
import struct
import sys
import threading
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import wait_until
from holdfast.transport.auth.credentials import Credentials
from holdfast.transport.auth.dial import connect
from holdfast.transport.auth.handshake import Hello
from holdfast.transport.auth.listener import Listener
from holdfast.transport.stream import Stream

#: What is sent at a time: about a slice.
PIECE = 1 << 20
_PATTERN = bytes(range(256)) * (PIECE // 256)
_ORDER = struct.Struct("<Q?")  # how many bytes, and whether as many come back meanwhile
_REPORT = struct.Struct("<?d")  # whether the last piece is what was sent, and CPU seconds
#: File of credentials -> how it is called in what is found.
LINES = {"token": "plain", "credentials": "tls"}


class Trip(NamedTuple):
    """One measurement: CPU seconds are of both processes."""

    seconds: float
    cpu: float
    right: bool


def _send(stream: Stream, size: int) -> None:
    for _ in range(size // PIECE):
        stream.send(_PATTERN)


def _receive(stream: Stream, size: int) -> bool:
    """Take so many bytes; are the last ones what was sent?"""
    piece = bytearray(PIECE)
    for _ in range(size // PIECE):
        stream.recv_into(memoryview(piece))
    return piece == _PATTERN


def trip(stream: Stream, size: int, both: bool) -> Trip:
    """Send so many bytes, and get as many at the same time where `both`; until the other side has it all."""
    began, used = time.perf_counter(), time.process_time()
    stream.send(_ORDER.pack(size, both))
    sending = threading.Thread(target=_send, args=(stream, size), daemon=True)
    sending.start()
    right = _receive(stream, size) if both else True
    sending.join()
    answer = bytearray(_REPORT.size)
    stream.recv_into(memoryview(answer))
    took, cpu = time.perf_counter() - began, time.process_time() - used
    theirs, spent = _REPORT.unpack(answer)
    return Trip(took, cpu + spent, right and theirs)


def _answer(stream: Stream) -> None:
    order = bytearray(_ORDER.size)
    with closing(stream), suppress(EOFError, OSError):  # the other side is done
        while True:
            stream.recv_into(memoryview(order))
            used = time.process_time()
            size, both = _ORDER.unpack(order)
            sending = threading.Thread(target=_send, args=(stream, size if both else 0), daemon=True)
            sending.start()
            right = _receive(stream, size)
            sending.join()
            stream.send(_REPORT.pack(right, time.process_time() - used))


def serve(where: Path) -> None:
    """Answer everybody who may come in."""

    def came(_: Hello, stream: Stream) -> None:
        threading.Thread(target=_answer, args=(stream,), daemon=True).start()

    for file, name in LINES.items():
        secret = Credentials.read(where / file)
        door = Listener(("127.0.0.1", 0), secret, admit=lambda hello: None, came=came, complain=print)
        (where / f"{name}.new").write_text(str(door.address[1]))
        (where / f"{name}.new").rename(where / f"{name}.port")
    threading.Event().wait()


def call(where: Path, found: Path, rounds: int, size: int) -> None:
    """All rounds, one line after the other in each."""
    trips: dict[str, list[Trip]] = {f"{name} {ways}": [] for name in LINES.values() for ways in ("one", "both")}
    with ExitStack() as stack:
        lines: dict[str, Stream] = {}
        for file, name in LINES.items():
            port = where / f"{name}.port"
            wait_until(port.exists, "the other side")
            place = ("127.0.0.1", int(port.read_text()))
            lines[name] = connect(place, Hello("probe"), Credentials.read(where / file), 10.0)
            stack.callback(lines[name].close)
            trip(lines[name], PIECE * 16, True)  # until windows and clocks have risen
        for _ in range(rounds):
            for both in (False, True):
                for name, line in lines.items():
                    trips[f"{name} {'both' if both else 'one'}"].append(trip(line, size, both))
    found.write_text(json.dumps(trips))


if __name__ == "__main__":
    what, where, *rest = sys.argv[1:]
    if what == "serve":
        serve(Path(where))
    else:
        call(Path(where), Path(rest[0]), int(rest[1]), int(rest[2]))
