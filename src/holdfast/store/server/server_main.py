"""The process of a server: `python -m holdfast.store.server.server_main LINK HANDLER`, started by a group.

It loads what it needs, says so, and waits to be told which server it is; with that come the memory and the listening
socket. So a process that stands by takes over without loading anything. It ends with the process that started it.
"""

from __future__ import annotations

import signal
import socket
import sys
from functools import partial

import msgspec
import torch

from holdfast.errors import UsageError
from holdfast.store.handlers import load
from holdfast.store.server.rounds import Clients
from holdfast.store.server.server import Server
from holdfast.store.server.supervisor import READY, Assignment
from holdfast.transport.link import Link
from holdfast.transport.processes import die_with_parent

__all__ = ["hear", "main"]


def main(words: list[str]) -> int:
    """Serve until whoever started us is gone."""
    die_with_parent()  # also from inside a handler
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who started us; our end follows from theirs
    torch.set_num_threads(1)
    link = Link.from_fd(int(words[0]))
    try:
        handler = load(words[1])
    except UsageError as error:
        link.send(str(error).encode()[:60_000])
        return error.exit_code
    link.send(READY)
    frame = link.recv()
    if frame is None:
        return 0
    assignment = msgspec.msgpack.decode(frame.data, type=Assignment)
    memory, listener = frame.fds
    sock = socket.socket(fileno=listener)
    server = Server(
        assignment.index, assignment.num_servers, sock, handler=handler, memory=memory, limit=assignment.limit
    )
    link.setblocking(False)
    server.serve(link.fileno(), partial(hear, link, server))
    return 0


def hear(link: Link, server: Server) -> bool:
    """All that our supervisor has said since. False: it is gone."""
    while True:
        try:
            frame = link.recv()
        except BlockingIOError:
            return True
        if frame is None:
            return False
        server.meets(msgspec.msgpack.decode(frame.data, type=Clients))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
