"""The peer session: carries what other hosts need between this host's arena and theirs, for one generation.

    workers ── arena ── sender ──────►  receiver ── arena ── workers
    of host 0     └──── receiver ◄──────  sender ────┘   of host 1

For every other host of the generation there is one connection, with a receiver that receives; one sender sends over all
of them. So both directions are busy at once. A host that has no state, or not the newest, first fetches it. The peer
session decides nothing: what is due is `core.transfers`'s business, and workers see what others did as if it had been
done on their host.

The fence: a peer session and its connections belong to one generation. When `close` has returned, no byte of that
generation can reach the arena any more, and no other host can get one from here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

from holdfast.config.limits import NETWORK, TRANSFER
from holdfast.config.run_config import board_rows
from holdfast.control.protocol.messages import Install
from holdfast.core.roles import chain_link, primary_of
from holdfast.core.slices import even_shares
from holdfast.core.transfers import TransferRoute, longest_run
from holdfast.dataplane.memory.arena_view import ArenaView
from holdfast.dataplane.memory.board import Board
from holdfast.dataplane.memory.board_snapshot import level
from holdfast.dataplane.memory.host_memory import HostMemory, await_view
from holdfast.dataplane.memory.manifest import Manifest
from holdfast.dataplane.relaxed.pushes import ToldClocks
from holdfast.dataplane.wire.packing import Packer
from holdfast.dataplane.wire.primary_inbound import FromPrimary, Inbound, ToPrimary
from holdfast.dataplane.wire.primary_outbound import MirrorQueue, NoQueue, ToPrimaryQueue
from holdfast.dataplane.wire.primary_sync import PrimarySync
from holdfast.dataplane.wire.receiver import Receiver
from holdfast.dataplane.wire.replica import Replica, ReplicaChain, replicate
from holdfast.dataplane.wire.sender import PeerQueue, PeerRoute, Sender
from holdfast.dataplane.wire.state_transfer import fetch, serve, serve_mirror
from holdfast.errors import FrameError
from holdfast.transport.stream import Stream

__all__ = ["PeerSession"]


class PeerSession:
    """This host's peer session.

    Args:
        host memory: the memory of this host.
        me: this host's number.
        install: the generation, and who is where in it.
        dial: opens a connection to a host ("peer" or "fetch"); called in a thread of the peer session, may block and
        raise. ring: wakes the workers of this host. report: told, in a sentence, that the state has come from another
        host. broke: told of a connection that has ended though it should not have: the other host, and why. OSError,
            EOFError and FrameError are the network's or the other host's fault; anything else is our own.
        replica: where this host keeps its replica of the state, if it is to have one.

    Resources: owns its threads, the streams it is given, and `bells`; `close` ends and closes all of them.
    """

    def __init__(
        self, host_memory: HostMemory, me: int, install: Install, *, dial: Callable[[int, str], Stream],
        ring: Callable[[], None], report: Callable[[str], None], broke: Callable[[int, Exception], None],
        replica: Replica | None = None,
    ) -> None:  # fmt: skip
        self._host_memory, self._me, self._install = host_memory, me, install
        self._dial, self._ring, self._report, self._broke = dial, ring, report, broke
        where = dict(zip(install.members, install.hosts, strict=True))
        self._hosts = sorted(set(install.hosts))
        self._homes = sorted({where[server] for server in install.servers}) or self._hosts
        self._peers = [host for host in self._hosts if host != me]
        self._rows = [row for row, host in zip(install.rows, install.hosts, strict=True) if host == me]
        self._lanes = self._lanes_of(me)
        self._closed = threading.Event()
        self._primary = primary_of(install.hosts, install.sources)  # of the state, in relaxed modes
        self._link = chain_link(me, self._primary, install.replicas)  # of the chain of replicas
        self._all_hold = set(install.replicas) <= set(install.abreast)  # what the primary begins with
        self._last = -1  # at the primary: the version that all of them have, when the generation begins
        self._replica_chain: ReplicaChain | None = None  # to the next replica
        self.fetched = False  #: the state has come from another host
        self._begun: ToldClocks | None = None  # how far lanes were at the primary when this host began to mirror it
        self._mirrors = {peer: _Mirror() for peer in self._peers}  # at the primary
        self._current = threading.Event()  # the state is here
        self._view: ArenaView | None = None
        self._level = -1  # of this host, when the generation began
        self._lock = threading.Lock()
        self._streams: list[tuple[int, Stream]] = []  # to which host
        self._waiting: dict[int, tuple[threading.Event, list[Stream]]] = {
            peer: (threading.Event(), []) for peer in self._peers if peer > me
        }
        self._threads: list[threading.Thread] = []
        self._sender = Sender(me, self._closed.is_set, self._ended)
        self._begin()
        self._start(self._sender.run)
        if me in install.sources:
            self._start(self._fetch, install.sources[me])
        else:
            self._current.set()
        for peer in self._peers:
            self._start(self._connect, peer)
        if replica is not None and self._link.before is not None:
            self._replica_chain = ReplicaChain() if self._link.after is not None else None
            self._start(self._keep, self._link.before, replica)

    @property
    def bells(self) -> tuple[int, ...]:
        """Eventfds that the workers of this host must ring beside each other's."""
        return () if self._closed.is_set() else (self._sender.bell,)

    def admit(self, host: int, kind: str, stream: Stream) -> None:
        """Take over a connection that another host of this generation has opened."""
        with self._lock:
            wanted = kind == "fetch" or (kind == "peer" and host in self._waiting)
            wanted = wanted or (kind == "replica" and host == self._link.after)
            if self._closed.is_set() or host not in self._peers or not wanted:
                stream.close()
                return
            self._streams.append((host, stream))
        if kind == "fetch":
            self._start(self._serve, host, stream)
        elif kind == "replica":
            self._start(self._replicate if self._me == self._primary else self._pass_on, host, stream)
        else:
            come, streams = self._waiting[host]
            streams.append(stream)
            come.set()

    def look(self) -> None:
        """End connections over which nothing comes through any more, though nobody has said so.

        The coordinator hears both hosts, so neither is lost: only what one sends to the other is.
        """
        with self._lock:
            streams = [] if self._closed.is_set() else list(self._streams)
        for host, stream in streams:
            try:
                silent = stream.unanswered() >= NETWORK.tcp_silence
            except OSError:
                continue  # it has ended, and whoever uses it says so
            if silent:
                self._ended(host, TimeoutError(f"{stream.peer} does not answer any more"))
                stream.close()

    def close(self) -> None:
        """End this generation's traffic. When it returns, nothing of it is written any more. May be called twice."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
            streams = [stream for _, stream in self._streams]
        self._current.set()
        for come, _ in self._waiting.values():
            come.set()
        for mirror in self._mirrors.values():
            mirror.begun.set()
        for stream in streams:
            stream.close()
        if self._replica_chain is not None:
            self._replica_chain.end()
        self._sender.ring()
        for thread in self._threads:
            thread.join()
        self._sender.close()
        self._view = None

    # ------------------------------------------------------------ threads

    def _begin(self) -> None:
        """Before any worker acts in this generation: forget what the last one's connections brought."""
        lanes = len(self._install.drivers)
        arena = self._host_memory.memory
        self._level = level(arena)
        Board(arena, lanes, board_rows(lanes), 0).distrust_rows(self._rows)
        self._view = self._find()
        if self._view is not None and self._me not in self._install.sources:
            self._view.begin(self._at_hand(), self._install.given_on(self._me))
            self._guard(self._view)

    def _find(self) -> ArenaView | None:
        return self._host_memory.view(self._install.reached)

    def _guard(self, view: ArenaView) -> None:
        """Where replicas hold the state, what is made is shown to nobody before they do."""
        if view.manifest.relaxed and self._me == self._primary:
            pushes, version = PrimarySync(view).pushes, min(view.board.versions())
            pushes.guard(version if self._link.after is not None else None)
            if self._all_hold:
                pushes.hold(version)
                self._last = version

    def _start(self, act: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(
            target=self._guarded, args=(act, *args), name=f"peer-session-{act.__name__}", daemon=True
        )
        with self._lock:  # whoever closes joins what is in the list: nothing that has not begun may be there
            thread.start()
            self._threads.append(thread)

    def _guarded(self, act: Callable[..., None], *args: object) -> None:
        try:
            act(*args)
        except Exception as error:  # whatever it is: somebody waits for what this thread carries
            host = args[0] if args else self._me
            assert isinstance(host, int)
            self._ended(host, error)

    def _ended(self, host: int, error: Exception) -> None:
        if not self._closed.is_set():
            self._broke(host, error)

    def _ready_hold(self) -> ArenaView | None:
        """The arena with its manifest, which a worker of this host may still have to leave there."""
        if self._view is None:
            self._view = await_view(self._find, self._closed.is_set)
        return self._view

    def _open(self, host: int, kind: str) -> Stream | None:
        """A connection to a host of this generation, which may not know of it yet."""
        while not self._closed.is_set():
            try:
                stream = self._dial(host, kind)
            except OSError:  # who has tried for too long says so, with the reason (`Peers._patient`)
                self._closed.wait(NETWORK.attach_again)
                continue
            with self._lock:
                if not self._closed.is_set():
                    self._streams.append((host, stream))
                    return stream
            stream.close()
        return None

    def _fetch(self, source: int) -> None:
        view = self._ready_hold()
        stream = self._open(source, "fetch") if view is not None else None
        if view is None or stream is None:
            return
        got = fetch(view, stream, self._install.generation, self._lanes)
        self.fetched = True
        stream.close()
        self._begun = got.clocks
        self._report(f"the state at step {got.version} has come from host {source} ({got.told()})")
        self._current.set()
        self._ring()

    def _keep(self, before: int, replica: Replica) -> None:
        self._current.wait()
        view = self._ready_hold()
        stream = self._open(before, "replica") if view is not None else None
        if view is not None and stream is not None:
            replica.receive(view, stream, self._install.generation, self._closed.is_set, self._replica_chain)

    def _pass_on(self, after: int, stream: Stream) -> None:
        if self._replica_chain is not None:
            self._replica_chain.run(stream, self._install.generation)

    def _replicate(self, host: int, stream: Stream) -> None:
        view = self._ready_hold()
        if view is None:
            return
        pushes = PrimarySync(view).pushes

        def held(version: int) -> None:
            pushes.hold(version)
            self._ring()
            self._sender.ring()

        replicate(view, stream, self._install.generation, self._closed.is_set, held, self._last)

    def _serve(self, host: int, stream: Stream) -> None:
        self._current.wait()
        view = self._ready_hold()
        if view is not None and view.manifest.relaxed:
            mirror = self._mirrors[host]
            mirror.versions = serve_mirror(
                view, stream, self._install.generation, self._closed.is_set, self._lanes_of(host)
            )
            mirror.begun.set()
        elif view is not None:
            serve(view, stream, self._install.generation, self._closed.is_set, self._level)

    def _connect(self, peer: int) -> None:
        if peer in self._waiting:
            come, streams = self._waiting[peer]
            come.wait()
            stream = streams[0] if streams else None
        else:
            stream = self._open(peer, "peer")
        self._current.wait()
        view = self._ready_hold()
        if view is not None and view.manifest.relaxed and self._me == self._primary:
            self._mirrors[peer].begun.wait()  # news of what it does not have yet would be old when it has
        if stream is None or view is None or self._closed.is_set():
            return
        generation, closing = self._install.generation, self._closed.is_set
        packer = Packer(view, generation, self._rows, self._computed_here)
        turn, rows = partial(self._await_turn, view), frozenset(self._rows)
        receiver = Receiver(view, stream, generation, self._ring, closing, packer.there, turn, rows)
        if view.manifest.relaxed:
            leg, receiver.relaxed = self._relaxed(view, stream, packer, peer)
        else:
            # Where the route begins is settled before anything lands: what comes in may take this host a step further.
            begins = min(view.board.versions())
            leg = PeerRoute(peer, view, stream, self._route(view.manifest, peer), packer, self._most, begins)
        self._start(_landing, peer, receiver)
        self._sender.add(leg)

    def _relaxed(self, view: ArenaView, stream: Stream, packer: Packer, peer: int) -> tuple[PeerQueue, Inbound | None]:
        """What goes to another host and what comes from it, in relaxed modes."""
        primary_sync, most = PrimarySync(view), self._most()
        if self._me == self._primary:
            there = ToPrimary(primary_sync, self._lanes_of(peer))
            versions = self._mirrors[peer].versions
            return MirrorQueue(peer, view, stream, packer, primary_sync=primary_sync, most=most, sent=versions), there
        if peer != self._primary:
            return NoQueue(peer, view, stream, packer), None
        assert self._begun is not None
        sent = {lane: self._begun.pushed[lane] for lane in self._lanes}
        where = zip(self._install.rows, self._install.hosts, strict=True)
        here = FromPrimary(primary_sync, self._lanes, next(row for row, host in where if host == peer))
        return ToPrimaryQueue(
            peer, view, stream, packer, primary_sync=primary_sync, sent=sent, op=self._begun.op, most=most
        ), here

    def _lanes_of(self, host: int) -> frozenset[int]:
        """The lanes that are driven there."""
        where = dict(zip(self._install.members, self._install.hosts, strict=True))
        return frozenset(lane for lane, driver in enumerate(self._install.drivers) if where[driver] == host)

    def _at_hand(self) -> frozenset[int]:
        """The lanes that are this host's in the step at hand; where shares of it were given, no others have work."""
        elsewhere = {lane for lane, host in self._install.given.items() if host != self._me}
        return frozenset(range(len(self._install.drivers))) - elsewhere if self._install.given else self._lanes

    def _most(self, rate: float = 0.0) -> int:
        return longest_run(len(self._peers), rate)

    def _await_turn(self, view: ArenaView, step: int) -> None:
        """Let a donor write down the sums of the last step before those of this one take their place."""
        while not view.board.recorded(step) and not self._closed.is_set():
            time.sleep(TRANSFER.sums_poll)

    def _computed_here(self, row: int) -> bool:
        return row % len(self._install.drivers) in self._lanes

    def _route(self, manifest: Manifest, peer: int) -> TransferRoute:
        sizes = manifest.sizes()
        homes = even_shares(sizes, self._homes)
        return TransferRoute(
            lanes=self._lanes, begun=self._at_hand(), at_hand=self._install.at_hand,
            num_lanes=manifest.lanes, here=tuple(home == self._me for home in homes),
            there=tuple(home == peer for home in homes), spaces=manifest.spaces(), sizes=sizes,
            most=self._most(),
        )


class _Mirror:
    """A host that mirrors this one, or is about to."""

    def __init__(self) -> None:
        self.begun = threading.Event()  #: what it begins with has gone
        self.versions: list[int] = []  #: of the slices that went


def _landing(peer: int, receiver: Receiver) -> None:
    try:
        receiver.run()
    except FrameError:
        receiver.stream.close()  # nobody knows what else would come
        raise
