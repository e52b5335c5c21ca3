"""A rank that some launcher has started, without torch: `python -m tests.contract.rank SOCKET INDEX`.

It announces itself, becomes the worker that it is told to be, and does what it is told, word by word (see
`test_spawner_contract.worker`). The word `part` ends its part in the run, but not its process.
"""

from __future__ import annotations

import os
import socket
import sys

from holdfast.hosts.torchrun import rank_messages as say
from holdfast.transport.link import Link
from tests.contract.test_spawner_contract import worker


def main(name: str, index: int) -> None:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect(f"\0{name}")
    helper = Link(sock)
    me = os.pidfd_open(os.getpid())
    helper.send(say.encode(say.Announced(index, 10 + index, os.getpid())), [me])
    os.close(me)
    frame = helper.recv()
    assert frame is not None, "the helper ended"
    message = say.decode_to_rank(frame.data)
    assert isinstance(message, say.Enlisted), message
    (fd,) = frame.fds
    if message.spec.args == ("part",):  # leave the run in order, and wait for the helper's own end
        helper.send(say.encode(say.SignalAsked("SIGTERM")))
        helper.send(say.encode(say.Parted()))
        assert helper.recv() is None
        return
    os.environ.setdefault("PYTHONHASHSEED", "")
    worker(message.spec, fd)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
