"""What `hf.join()` does in a process that another launcher has started as one of several ranks.

    launcher ──┬── rank 0 ── helper (`cli.launch.torchrun_helper`): coordinates the run, holds this node's memory
   (torchrun)  ├── rank 1 ──┘
               ├── rank 2 ── helper: the agent of its node
               └── rank 3 ──┘

The ranks run already, so they are *adopted*: they find each other (`rendezvous`), the first rank of every node starts a
helper, and each gets from it what a worker of `holdfast run` is born with: a number, and a link to the coordinator.
From there on nothing differs, but for the end: a rank tells how its script ended by hooks of its own, and waits until
the run's summary is written.

A helper lives as long as a rank of its node does, whichever; so the loss of a rank is the loss of one worker. Nobody
can start a rank anew but the launcher, so the others go on without it.
"""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from holdfast import errors
from holdfast.config.worker_spec import WorkerSpec
from holdfast.errors import HoldfastError, NetworkError, RunError, UsageError
from holdfast.hosts.torchrun import rank_messages as say
from holdfast.train.control_link import ControlLink
from holdfast.train.torchrun.rank_exit import RankExit
from holdfast.train.torchrun.ranks import ADOPTED, RankEntry, RankNode, World, nodes
from holdfast.train.torchrun.rendezvous import Deadline, Rendezvous, RunAddress
from holdfast.train.torchrun.torch_store import TorchStore
from holdfast.transport.auth.handshake import VERSION
from holdfast.transport.doorbell import ordered_stores
from holdfast.transport.link import Link, LinkMessage

__all__ = ["RankLink", "adopt"]

T = TypeVar("T", bound=say.ToRank)
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: what SO_PEERCRED gives
_helper: subprocess.Popen[bytes] | None = None  # kept, so that nobody takes it for forgotten


def adopt(world: World, said: Mapping[str, int]) -> tuple[WorkerSpec, ControlLink, RankExit]:
    """Become a worker of the crew that the ranks of `world` make. `said` is what `join` was told: lanes, seed, threads.

    Raises:
        UsageError: not in the main thread.
        NetworkError: the others do not come, or cannot be reached.
    """
    if threading.current_thread() is not threading.main_thread():
        raise UsageError(
            f"hf.join() was called in the thread {threading.current_thread().name}. Call it in the main thread: a rank "
            "of a launcher must hear signals."
        )
    store = TorchStore(world)
    try:
        machine, node = _here(world)
        me = RankEntry(world.rank, secrets.token_hex(8), machine, node, VERSION)
        call = Rendezvous(store, world, me, Deadline(_tell))
        roll = call.call()
        all_nodes = nodes(roll)
        mine = next(node for node in all_nodes if world.rank in node.ranks)
        beyond = len({entry.machine for entry in roll.values()}) > 1
        link = _announce(world, said, call, mine, all_nodes, beyond)
        call.done()
    finally:
        store.close()
    enlisted, fd = _await(link, say.Enlisted)
    spec = msgspec.structs.replace(
        enlisted.spec, script=sys.argv[0], args=tuple(sys.argv[1:]), crew=0, lanes=None, seed=None, threads=None
    )
    os.environ[ADOPTED] = str(os.getpid())
    steered = RankLink(spec.worker, fd, link, world.rank)
    return spec, steered, RankExit(spec, steered, link, world.rank)


# ---------------------------------------------------------------- meeting the helper


def _announce(
    world: World, said: Mapping[str, int], call: Rendezvous, mine: RankNode, all_nodes: list[RankNode], beyond: bool
) -> Link:
    """Have a helper, and stand before it."""
    several = len(all_nodes) > 1
    if world.rank != mine.leader:
        link = _knock(call.door(mine.leader))
    else:
        task = say.HelperTask(
            mine.ranks, script=sys.argv[0], args=tuple(sys.argv[1:]), nodes=len(all_nodes), restart=world.restart,
            dir=os.environ.get("HOLDFAST_DIR", ""), listen=_listen(world, beyond) if several else "",
            lanes=said["lanes"], seed=said["seed"], threads=said["threads"],
        )  # fmt: skip
        if world.rank:
            place = call.place()
            places = tuple((address, place.port) for address in place.addresses)
            task = msgspec.structs.replace(task, places=places, token=place.token)
        name = _start(task, world.size)
        call.open_door(name)
        link = _knock(name)
    _introduce(link, say.Announced(mine.ranks.index(world.rank), world.rank, os.getpid()))
    if world.rank == 0 and several:
        listening, _ = _await(link, say.Listening)
        first = [world.address] if beyond else []  # where the others have reached this machine already
        call.invite(RunAddress([*first, *listening.addresses], listening.port, listening.token))
    return link


def _start(task: say.HelperTask, most: int) -> str:
    """Start the helper of this node; where its socket is. The socket is made here, so that nobody comes too early."""
    global _helper
    name = f"\0holdfast-{secrets.token_hex(16)}"
    package = str(Path(__file__).resolve().parents[2])
    paths = filter(None, (os.environ.get("PYTHONPATH", ""), package))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(name)
        listener.listen(most)
        me = os.pidfd_open(os.getpid())
        try:
            words = [
                "-P",
                "-m",
                "holdfast.cli.launch.torchrun_helper",
                "--socket",
                str(listener.fileno()),
                "--leader",
                str(me),
            ]
            _helper = subprocess.Popen(
                [sys.executable, *words], stdin=subprocess.PIPE, pass_fds=[listener.fileno(), me],
                start_new_session=True, env=dict(os.environ, PYTHONPATH=os.pathsep.join(paths)),
            )  # fmt: skip
        finally:
            os.close(me)
    assert _helper.stdin is not None
    with contextlib.suppress(BrokenPipeError), _helper.stdin as pipe:
        pipe.write(say.encode(task))
    return name[1:]


def _knock(name: str) -> Link:
    """A connection to the helper at this socket, which must be this user's."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.connect(f"\0{name}")
        _, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    except OSError as error:
        sock.close()
        raise _no_helper(f"{error.strerror}") from None
    if uid != os.getuid():
        sock.close()
        raise NetworkError(
            f"The process that is to speak for this machine belongs to user {uid}, and this rank to user "
            f"{os.getuid()}. Start all ranks as one user; if you did, somebody else has written to the store at "
            "MASTER_ADDR."
        )
    return Link(sock)


def _introduce(link: Link, words: say.Announced) -> None:
    me = os.pidfd_open(os.getpid())
    try:
        link.send(say.encode(words), [me])
    finally:
        os.close(me)


def _await(link: Link, kind: type[T]) -> tuple[T, int]:
    """The helper's next word, which must be of this kind, and the descriptor that came with it (-1: none)."""
    while frame := link.recv():
        message = say.decode_to_rank(frame.data)
        if isinstance(message, kind):
            return message, frame.fds[0] if frame.fds else -1
        if isinstance(message, say.Barred):
            found: type[HoldfastError] = getattr(errors, message.kind, RunError)
            raise found.__new__(found, message.message)  # its text is complete already
    raise _no_helper("it has ended")


def _no_helper(why: str) -> RunError:
    return RunError(
        f"The process that is to speak for this machine in the run cannot be reached: {why}. What it printed before is "
        "in the output of the first rank of this machine."
    )


def _listen(world: World, beyond: bool) -> str:
    """Where the coordinator listens for other nodes: on this machine only, where there is no other."""
    if said := os.environ.get("HOLDFAST_LISTEN", ""):
        return said
    if not beyond:
        return "127.0.0.1"
    with contextlib.suppress(OSError):
        families = {found[0] for found in socket.getaddrinfo(world.address, world.port, type=socket.SOCK_STREAM)}
        if socket.AF_INET not in families:
            return "::"
    return "0.0.0.0"


def _here(world: World) -> tuple[str, str]:
    """(what ranks share that reach each other by loopback, what those share that can use one memory)."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        spaces = {name: os.readlink(f"/proc/self/ns/{name}") for name in ("net", "pid", "mnt")}
    except OSError:
        boot, spaces = socket.gethostname(), {}
    machine = f"{boot} {spaces.get('net', '')}"
    node = f"{machine} {spaces.get('pid', '')} {spaces.get('mnt', '')} {os.getuid()} {world.group}"
    # Where processes do not see each other's writes in order, each has a memory of its own.
    return machine, node if ordered_stores(platform.machine()) else f"{node} {world.rank}"


def _tell(sentence: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(f"holdfast: {sentence}", file=sys.stderr, flush=True)


# ---------------------------------------------------------------- life as a worker


class _Lifeline(Link):
    """The link to the coordinator. Its end is the end of the run, and no good one: the launcher must not think so."""

    rank = -1

    def recv(self) -> LinkMessage | None:
        """The next message; never an end of file."""
        frame = super().recv()
        if frame is None:
            _tell(
                f"rank {self.rank} ends, because the process that connects it with the run is gone. If nobody killed "
                "it, its last words are in the output of the first rank of this machine"
            )
            os._exit(RunError.exit_code)
        return frame


class RankLink(ControlLink):
    """A rank, steered like any worker; but signals are the launcher's, and are judged by the helper.

    SIGTERM, or Ctrl-C, at one rank means that this one is to leave; at all ranks of a node, that all is to end. The
    helper sees all of them. A second Ctrl-C interrupts the script. Handlers that the script has set stay.
    """

    def __init__(self, worker: int, fd: int, helper: Link, rank: int) -> None:
        before = signal.getsignal(signal.SIGTERM)
        self._helper, self._pid = helper, os.getpid()
        link = _Lifeline.from_fd(fd)
        assert isinstance(link, _Lifeline)
        link.rank = rank
        super().__init__(worker, link)
        if before is not signal.SIG_DFL:
            signal.signal(signal.SIGTERM, before)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._asked_to_leave)

    def _asked_to_leave(self, *words: object) -> None:
        number = signal.Signals(words[0]) if words and isinstance(words[0], int) else signal.SIGTERM
        if number == signal.SIGINT or os.getpid() != self._pid:
            again = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, again)
        if os.getpid() == self._pid:
            self._helper.send(say.encode(say.SignalAsked(number.name)))
        else:  # a process that the script has forked: not the rank
            os.kill(os.getpid(), number)
