"""Where a host's data connections come in and go out: its peer session, and the ways to other hosts.

A peer session lives for one generation (see `dataplane.wire.session`); the peers makes it and ends it. A connection may
come in before this host has heard of the generation that it belongs to: it is kept until then. Which network leads to
another host is measured once, when the two first meet (see `transport.network`).

Calls come from one thread, the loop's; `admits` may come from the listener's.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from holdfast.config.limits import NETWORK
from holdfast.control.protocol.messages import Install
from holdfast.core.routes import Choice, NoRoute, Offer
from holdfast.dataplane.memory.arena_view import ArenaView
from holdfast.dataplane.memory.board_snapshot import level
from holdfast.dataplane.memory.host_memory import HostMemory
from holdfast.dataplane.wire.primary_sync import PrimarySync
from holdfast.dataplane.wire.replica import Replica
from holdfast.dataplane.wire.session import PeerSession
from holdfast.errors import FrameError, HoldfastError, Unreachable, brief
from holdfast.hosts.catch_up_threads import CatchUp, Donors
from holdfast.transport.auth.credentials import Credentials
from holdfast.transport.auth.dial import connect
from holdfast.transport.auth.handshake import Hello
from holdfast.transport.network import Responder, knock, probe
from holdfast.transport.stream import Stream

__all__ = ["DATA", "PeerCallbacks", "Peers"]

#: Kinds of connections that are a peers's business.
DATA = frozenset({"peer", "fetch", "replica", "follow", "probe"})


class PeerCallbacks(Protocol):
    """What a peers needs of its host. All of it is called in the loop's thread, but for `ring`."""

    def ring(self) -> None:
        """Wake the workers here. Called in threads of the peer session."""

    def carried(self, sentence: str) -> None:
        """The state has come from another host."""

    def told(self, sentence: str) -> None:
        """Something that people may want to know."""

    def donor_lost(self, sentence: str) -> None:
        """This host followed another one, and cannot any more."""

    def cut_off(self, host: int, sentence: str) -> None:
        """A connection to another host of the generation has broken."""

    def failed(self, error: Exception) -> None:
        """What carries data here has failed, and nobody else is to blame."""

    def stranded(self, host: int, sentence: str) -> None:
        """Another host of the generation has not been reached for so long that it will not be, and that it says."""


class Peers:
    """One host's peers.

    Args:
        me: this host's number.
        offer: how others can reach this host.
        patience: seconds after which a host that cannot be reached, and that nobody calls lost, is a problem of ours.

    Resources: `close` ends the peer session and every connection that waits here.
    """

    def __init__(
        self, me: int, *, run: str, credentials: Credentials, offer: Offer, patience: float = NETWORK.arrival
    ) -> None:
        self.offer, self.patience = offer, patience
        self._me, self._run, self._credentials = me, run, credentials
        self._offers: dict[int, Offer] = {}
        self._ways: dict[int, str] = {}  #: host -> what to dial
        self._responder = Responder(offer)
        self._generation = 0
        self._over = 0  #: this generation and all before it are
        self._shared = False  #: there was a generation with other hosts
        self._session: PeerSession | None = None
        self._follower: CatchUp | None = None
        self._donors = Donors(self._note)
        self._replica: Replica | None = None
        self._tenure = 0  # the newest generation in which this host held the state: as its primary, or in exact
        self._callbacks: PeerCallbacks | None = None
        self._tell: Callable[[str], None] | None = None
        self._host_memory: HostMemory | None = None
        self._early: deque[tuple[Hello, Stream]] = deque()
        self._dialling: set[_Dialling] = set()
        self._lock = threading.Lock()
        self._closed = False

    # ------------------------------------------------------------ ways

    def learn(self, offers: Mapping[int, Offer]) -> None:
        """How other hosts can be reached."""
        self._offers.update({host: offer for host, offer in offers.items() if host != self._me})

    def forget(self, host: int) -> None:
        """A host has no part in the run any more."""
        self._offers.pop(host, None)
        self._ways.pop(host, None)
        self._donors.forget(host)

    def survey(self) -> list[str]:
        """Find the best way to every host that is known; a sentence for each. Blocks for a second or so.

        Raises:
            NoRoute: one of them cannot be reached, and nobody calls it lost.
        """
        unknown = sorted(self._offers.keys() - self._ways.keys())
        return [choice.sentence for host in unknown if (choice := self._choose(host)) is not None]

    def _choose(self, host: int) -> Choice | None:
        """The best way to a host; None: it is forgotten meanwhile. One that does not answer may be about to be."""
        until = time.monotonic() + self.patience
        while (offer := self._offers.get(host)) is not None and not self._closed:
            try:
                return self._find(host, offer)
            except NoRoute:
                if time.monotonic() > until:
                    raise
                time.sleep(NETWORK.dial_again)
        return None

    def knock(self, host: int) -> None:
        """See whether a host can be reached; a try that fails is made once more. Blocks for as long as that takes.

        Raises:
            NoRoute: it cannot.
        """
        offer, here = self._offers.get(host), f"host {self._me}"
        if offer is None:
            return  # it has left meanwhile
        try:
            knock(offer, self._call, here=here)
        except NoRoute:
            knock(offer, self._call, here=here)

    def _find(self, host: int, offer: Offer) -> Choice:
        choice = probe(offer, self._call, here=f"host {self._me}")
        self._ways[host] = choice.trial.dial
        return choice

    def _call(self, ip: str, port: int) -> Stream:
        """A connection that is good for trying and measuring."""
        return connect((ip, port), Hello("probe", run=self._run, host=self._me), self._credentials, NETWORK.dial)

    # ------------------------------------------------------------ generations

    @property
    def bells(self) -> tuple[int, ...]:
        """What workers here must ring beside each other's bells."""
        return self._session.bells if self._session is not None else ()

    def moor(self, host_memory: HostMemory, callbacks: PeerCallbacks) -> None:
        """This is the memory that the workers here share."""
        self._host_memory, self._callbacks, self._tell = host_memory, callbacks, self._soon(callbacks.told, now=False)

    @property
    def following(self) -> bool:
        """Whether this host follows another one, to be taken into the crew when it has caught up."""
        return self._follower is not None

    def embark(self, install: Install, rows: frozenset[int]) -> None:
        """Begin a generation, with others or alone, or to follow one. `rows` are those of workers here."""
        host_memory = self._host_memory
        assert host_memory is not None
        assert self._callbacks is not None
        self.disembark()
        self._generation = install.generation
        self._replicate(install, host_memory.view())
        if install.donor >= 0:
            self._follower = CatchUp(
                lambda: host_memory.view(install.reached), install.donor, install.generation, rows,
                dial=lambda: self._dial(install.donor, "follow"), ring=self._callbacks.ring,
                came=self._soon(self._callbacks.carried), ended=self._soon(self._callbacks.donor_lost),
            )  # fmt: skip
        elif len(set(install.hosts)) > 1:
            self._shared = True
            self._session = PeerSession(
                host_memory, self._me, install, dial=self._patient(self._callbacks), ring=self._callbacks.ring,
                report=self._soon(self._callbacks.carried), broke=self._soon(partial(self._broke, self._callbacks)),
                replica=self._replica,
            )  # fmt: skip
        else:
            self._clear(host_memory, install)
        early, self._early = self._early, deque()
        for hello, stream in early:
            self.came(hello, stream)

    def level(self, own: int) -> tuple[int, int]:
        """How far the state is that this host holds, if its arena is at `own`, and of which generation it is.

        That matters in relaxed modes; a host that mirrors another may have a replica, beside its arena.
        """
        self._note_tenure()
        if own < 0 and self._replica is not None:
            return self._replica.version, self._replica.generation
        return own, self._tenure

    def _note_tenure(self) -> None:
        """A state that has come from elsewhere is of the generation at hand."""
        if any(one is not None and one.fetched for one in (self._session, self._follower)):
            self._tenure = self._generation

    def _replicate(self, install: Install, view: ArenaView | None) -> None:
        """Hold the state, if this host is to and has only a replica; have a replica of it or none, as is wanted now."""
        before = self._tenure
        if install.donor < 0 and self._me not in install.sources:
            self._tenure = install.generation
            if self._replica is not None and view is not None and level(view.memory) < 0:
                self._replica.install(view)
        if self._me not in install.replicas:
            self._replica = None
        elif self._replica is None:
            self._replica = Replica()
            if view is not None and before == install.generation - 1:
                self._replica.keep(view, before, install.reached.version, install.reached.step)
        elif self._me in install.abreast:
            self._replica.generation = install.generation  # as if it had come in this one
            if view is not None:
                self._replica.take_up(view)

    def _clear(self, host_memory: HostMemory, install: Install) -> None:
        """What other hosts have sent, in a generation in which there were some, is of no use to one that is alone."""
        view = host_memory.view()
        if view is not None and not self._shared and not view.manifest.relaxed:
            view.forget_shares(install.given_on(self._me))  # a share of which not all is here
        elif view is not None and self._shared:
            view.begin(frozenset(range(len(install.drivers))), install.given_on(self._me))
            if view.manifest.relaxed:
                PrimarySync(view).pushes.guard(None)

    def _soon(self, act: Callable[..., None], *, now: bool = True) -> Callable[..., None]:
        """Have something done in the loop when it is called in a thread; with `now`, only in this generation."""
        loop, generation = asyncio.get_running_loop(), self._generation

        def act_now(*args: object) -> None:
            if not now or generation > self._over:
                act(*args)

        def soon(*args: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and with it the run
                loop.call_soon_threadsafe(act_now, *args)

        return soon

    @staticmethod
    def _broke(callbacks: PeerCallbacks, host: int, error: Exception) -> None:
        """A connection has ended: for a reason that connections have, or for one that nobody has thought of."""
        if isinstance(error, OSError | EOFError | FrameError):
            callbacks.cut_off(host, f"the connection to host {host} has ended ({error})")
        else:
            callbacks.failed(error)

    def _patient(self, callbacks: PeerCallbacks) -> Callable[[int, str], Stream]:
        """How the peer session dials: it tries again and again, so after a while somebody must say so."""
        began, stranded = time.monotonic(), self._soon(callbacks.stranded)
        given_up: set[int] = set()

        def dial(host: int, kind: str) -> Stream:
            try:
                return self._dial(host, kind)
            except OSError as error:
                if time.monotonic() - began > self.patience and host not in given_up:
                    given_up.add(host)
                    stranded(host, str(error))
                raise

        return dial

    def _note(self, sentence: str) -> None:
        """Something for the story, from any thread."""
        if self._tell is not None:
            self._tell(sentence)

    def look(self) -> None:
        """See whether connections that are open carry anything; called a few times a second."""
        if self._session is not None:
            self._session.look()

    def disembark(self) -> None:
        """The fence: when this returns, nothing of the generation at hand reaches the arena any more."""
        session, follower = self._session, self._follower
        with self._lock:
            self._over = self._generation
            for dialling in self._dialling:
                dialling.give_up()
        if session is not None:
            session.close()
        if follower is not None:
            follower.close()
        self._note_tenure()
        self._session = self._follower = None

    def _dial(self, host: int, kind: str) -> Stream:
        """Reach another host. In a thread of the generation at hand, which is let go at once when that is over."""
        hello = Hello(kind, run=self._run, host=self._me, generation=self._generation)
        dialling = _Dialling(lambda: self._connect(host, hello))
        with self._lock:
            self._dialling.add(dialling)
            if hello.generation <= self._over:
                dialling.give_up()
        try:
            return dialling.result()
        finally:
            with self._lock:
                self._dialling.discard(dialling)

    def _connect(self, host: int, hello: Hello) -> Stream:
        offer, way = self._offers.get(host), self._ways.get(host)  # others may be at it, or forget it
        if offer is None:
            raise ConnectionError(f"nobody has said how host {host} can be reached")
        try:
            if way is None:
                choice = self._find(host, offer)
                way = choice.trial.dial
                self._note(choice.sentence)
            return connect((way, offer.port), hello, self._credentials, NETWORK.dial)
        except NoRoute as error:
            time.sleep(NETWORK.dial_again)
            raise ConnectionError(brief(error)) from None
        except HoldfastError as error:
            if isinstance(error, Unreachable):
                self._ways.pop(host, None)  # the next try looks for another way
            raise ConnectionError(f"host {self._me} cannot reach host {host}: {brief(error)}") from None

    # ------------------------------------------------------------ who comes

    def admits(self, hello: Hello) -> str | None:
        """Why this caller is of no use here, if so."""
        if hello.kind not in DATA:
            return f"nothing of the kind {hello.kind!r} is taken here"
        if hello.kind in ("peer", "fetch", "replica") and hello.generation <= self._over:
            return f"generation {hello.generation} is over"
        return None

    def came(self, hello: Hello, stream: Stream) -> None:
        """Somebody is at the door who was let in. Owns the stream from now on."""
        if hello.kind == "probe" and not self._closed:
            threading.Thread(target=self._responder.answer, args=(stream,), name="holdfast-probe", daemon=True).start()
        elif (
            hello.kind == "follow"
            and not self._closed
            and self._host_memory is not None
            and self._callbacks is not None
        ):
            self._donors.add(hello.host, self._host_memory.view(), stream, hello.generation, self._callbacks.ring)
        elif self._closed or hello.kind == "follow" or hello.generation <= self._over:
            stream.close()
        elif hello.generation == self._generation and self._session is not None:
            self._session.admit(hello.host, hello.kind, stream)
        else:
            self._early.append((hello, stream))
            while len(self._early) > NETWORK.early:
                self._early.popleft()[1].close()

    def close(self) -> None:
        """End everything here. May be called twice."""
        self._closed = True
        self.disembark()
        self._donors.close()
        while self._early:
            self._early.popleft()[1].close()


class _Dialling:
    """A call that may take seconds, in a thread of its own, and somebody who waits for it until it gives up."""

    def __init__(self, act: Callable[[], Stream]) -> None:
        self._act = act
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._stream: Stream | None = None
        self._error: Exception | None = None
        self._given_up = False

    def result(self) -> Stream:
        """Wait for it. Raises what it raised, or ConnectionAbortedError."""
        threading.Thread(target=self._run, name="holdfast-dial", daemon=True).start()
        self._changed.wait()
        with self._lock:
            if self._stream is not None and not self._given_up:
                return self._stream
            if self._stream is not None:
                self._stream.close()
            raise self._error or ConnectionAbortedError("the generation is over")

    def give_up(self) -> None:
        """Let whoever waits go; a connection that is made all the same is closed."""
        with self._lock:
            self._given_up = True
        self._changed.set()

    def _run(self) -> None:
        try:
            stream = self._act()
        except Exception as error:
            self._error = error
        else:
            with self._lock:
                if self._given_up:
                    stream.close()
                else:
                    self._stream = stream
        self._changed.set()
