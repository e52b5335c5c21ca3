"""Admission: where machines come in that want a part in this run. It is the launcher's, and there is one.

Whoever has the token is let in by the listener and briefed; once it has settled (it has the script, it listens, it
can reach the others) and can be reached from here, it becomes a host of the run, and all others are told how it can be
reached.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import NamedTuple, Protocol

from holdfast.checkpoint.capture import State
from holdfast.config.limits import AGENT, CrewConfig
from holdfast.config.worker_spec import WorkerSpec
from holdfast.control.protocol.commands import ReleaseHost
from holdfast.control.protocol.messages import Reached
from holdfast.control.protocol.ports import HostPort
from holdfast.core.routes import Offer
from holdfast.dataplane.memory.board_snapshot import BoardPlan, BoardRow
from holdfast.hosts import orders
from holdfast.hosts.peers import DATA, Peers
from holdfast.hosts.remote_host import RemoteHost
from holdfast.hosts.script_files import ScriptFiles
from holdfast.hosts.state_source import RemoteState
from holdfast.transport.auth.credentials import Credentials
from holdfast.transport.auth.handshake import Hello
from holdfast.transport.auth.listener import Listener
from holdfast.transport.network import candidates, identity
from holdfast.transport.stream import Stream

__all__ = ["Admission", "AdmissionCallbacks", "FirstState"]


class FirstState(NamedTuple):
    """A state that is there before the run begins, for a host elsewhere."""

    read: Callable[[], State]
    reached: Reached  #: the mode that it is of


class AdmissionCallbacks(Protocol):
    """The launcher, as admission needs it. All of it is called in the loop's thread."""

    @property
    def over(self) -> bool:
        """Nobody can join any more. Asked in another thread, too."""

    def number(self) -> int:
        """A number for a new host."""

    def admit(self, host: HostPort) -> None:
        """A host has joined."""

    def note(self, sentence: str, *, aloud: bool) -> None:
        """A sentence for the story."""

    def showed(self, host: int, rows: list[BoardRow], plan: BoardPlan) -> None:
        """What a host's board shows."""

    def keep(self, name: str, data: bytes) -> None:
        """Add to a file in the run's directory."""

    def gone(self, host: int) -> None:
        """A host has no part in the run any more."""


class Admission:
    """Listens from the beginning; must be made inside a running loop.

    Args:
        bind: where to listen.
        spec: what workers are told.
        crew: how patient to be with them.
        host: number and name of the launcher's own host; None where it has none.
        first: the state that the run goes on with.

    Resources: `close` stops listening, and lets go those who have not settled.
    """

    def __init__(
        self, bind: tuple[str, int], credentials: Credentials, *, run: str, spec: WorkerSpec,
        crew: CrewConfig, callbacks: AdmissionCallbacks, host: str | None, first: FirstState | None = None,
    ) -> None:  # fmt: skip
        self._run, self._spec, self._crew, self._callbacks = run, spec, crew, callbacks
        self._first = first
        self._script_files = ScriptFiles(spec.script)
        self._loop = asyncio.get_running_loop()
        self._hosts: dict[int, RemoteHost] = {}
        self._offers: dict[int, Offer] = {}
        self._counted = 0  # of those who were turned away
        self.peers: Peers | None = None  #: of the launcher's own host
        self._door = Listener(
            bind, credentials, run=run, admit=self._admits,
            came=lambda hello, stream: self._soon(self._came, hello, stream),
            complain=lambda sentence: self._soon(lambda: callbacks.note(sentence, aloud=True)),
        )  # fmt: skip
        where, port = self.address = self._door.address
        there = candidates(where)
        #: Other machines can come in.
        self.beyond = any(address.kind != "loopback" for address in there)
        #: What to tell people who want to join, the likeliest first.
        self.addresses = [address.ip for address in there] or [where]
        if host is not None:
            offer = self._offers[0] = Offer(identity(), f"host 0 ({host})", port, tuple(there))
            self.peers = Peers(0, run=run, credentials=credentials, offer=offer)

    def close(self) -> None:
        """Let nobody in any more. May be called twice."""
        self._door.close()
        if turned := self._door.turned_away - self._counted:
            self._counted += turned
            self._callbacks.note(f"connections that were turned away at the door: {turned}", aloud=False)
        for host in list(self._hosts.values()):  # those that have joined are the server's, and closed already
            host.close(ReleaseHost(host.number, "the run has ended"))

    # ------------------------------------------------------------ at the door

    def _admits(self, hello: Hello) -> str | None:
        """Why this caller may not come in, if so. In the listener's thread."""
        if hello.kind == "join":
            slots = hello.facts.get("slots")
            if self._callbacks.over:
                return "the run is ending"
            if not isinstance(slots, int) or not 1 <= slots <= AGENT.slots:
                return f"a host has room for 1 to {AGENT.slots} workers, not {slots}"
            return self._script_files.refusal() or None
        if self.peers is None:
            return "this machine only coordinates: it has no part in training"
        return self.peers.admits(hello)

    def _came(self, hello: Hello, stream: Stream) -> None:
        if hello.kind in DATA and self.peers is not None:
            self.peers.came(hello, stream)
        elif hello.kind != "join" or self._callbacks.over:
            stream.close()
        else:
            number, facts = self._callbacks.number(), hello.facts
            brief = orders.Brief(
                number,
                self._run,
                self._spec,
                self._script_files.digests,
                self._crew,
                dict(self._offers),
                self.beyond,
                self._first.reached if self._first is not None else None,
            )
            self._hosts[number] = RemoteHost(
                number, stream, name=_plain(str(facts.get("name"))), slots=int(str(facts["slots"])),
                refills=bool(facts.get("refills", True)), brief=brief, script_files=self._script_files, callbacks=self,
                first_state=self._first.read if self._first is not None else None,
            )  # fmt: skip

    # ------------------------------------------------------------ hosts

    def settled(self, host: RemoteHost, offer: Offer, ways: list[str]) -> None:
        """A host can take workers now."""
        if self.peers is None:
            self._join(host, offer, ways)
            return
        self.peers.learn({host.number: offer})
        threading.Thread(
            target=self._knock, args=(self.peers, host, offer, ways), name="holdfast-door", daemon=True
        ).start()

    def _knock(self, peers: Peers, host: RemoteHost, offer: Offer, ways: list[str]) -> None:
        """A host can reach the one here; see whether that is so the other way round, too. In a thread."""
        problem = ""
        try:
            peers.knock(host.number)
        except Exception as error:  # whatever it is, nobody is left waiting at the door
            problem = str(error) or type(error).__name__
        self._soon(self._knocked, host, offer, ways, problem)

    def _knocked(self, host: RemoteHost, offer: Offer, ways: list[str], problem: str) -> None:
        if host.number not in self._hosts:
            return  # it has left meanwhile
        if not problem:
            self._join(host, offer, ways)
            return
        self._callbacks.note(_plain(f"{host.name} ({host.peer}) may not join: {problem}"), aloud=True)
        host.close(ReleaseHost(host.number, problem, "refused"))

    def _join(self, host: RemoteHost, offer: Offer, ways: list[str]) -> None:
        if self._callbacks.over:
            host.close(ReleaseHost(host.number, "the run is ending"))
            return
        news = self._offers[host.number] = offer
        for number, other in self._hosts.items():
            if number != host.number:
                other.meet({host.number: news})
        for sentence in ways:
            self._callbacks.note(_plain(sentence), aloud=True)
        self._callbacks.admit(host)

    def left(self, host: RemoteHost, reason: str) -> None:
        """A machine went away before it had settled."""
        self._callbacks.note(
            f"{host.name} ({host.peer}) wanted to join and left before it could ({reason})", aloud=True
        )
        host.close()

    def closed(self, host: int) -> None:
        """This host has no part in the run any more."""
        self._hosts.pop(host, None)
        if self.peers is not None:
            self.peers.forget(host)
        if self._offers.pop(host, None) is not None:
            for other in self._hosts.values():
                other.forget(host)
        self._callbacks.gone(host)

    def state_of(self, host: int) -> RemoteState | None:
        """The state of a host, for checkpoints; None: it is no host any more. Called in any thread."""
        there = self._hosts.get(host)
        return there.state if there is not None else None

    def peer_addresses(self) -> dict[int, str]:
        """Host -> its address as this machine sees it."""
        return {number: host.peer for number, host in self._hosts.items()}

    def showed(self, host: int, rows: list[BoardRow], plan: BoardPlan) -> None:
        """Pass on what a host's board shows."""
        self._callbacks.showed(host, rows, plan)

    def keep(self, name: str, data: bytes) -> None:
        """Pass on what belongs into the run's directory."""
        self._callbacks.keep(name, data)

    def _soon(self, act: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(act, *args)


def _plain(text: str) -> str:
    """What another machine says, fit for a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:500])
