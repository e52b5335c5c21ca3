"""The listener: the only thing of a run that listens on a network, and what stands between it and everybody.

One thread, with a selector. Everybody who connects is greeted without ever waiting for them; who proves to hold the
token is handed on as a stream, and all others are turned away. Rules:

* a visitor has `deadline` seconds from its first moment, however busy it keeps the line (a slow-loris gains nothing);
* at most `NETWORK.handshakes` visitors are held at a time; when one more comes, the oldest of the address that holds
  most places goes, so a flood pushes out itself and not a host that wants to join;
* what a visitor does can end its visit and nothing else: no exception of its making leaves this thread;
* strangers get at most a fifth of one core: after turning some away, the thread rests four times as long as it worked;
* a refusal is told once per address and reason, with the address, and counted after that;
* time is monotonic: a clock that is set anew, or that is hours off, changes nothing.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from holdfast.config.limits import NETWORK
from holdfast.errors import UsageError
from holdfast.transport import congestion
from holdfast.transport.auth.credentials import Credentials
from holdfast.transport.auth.handshake import NONCE, VERSION, Code, Greeter, HandshakeRefusal, Hello
from holdfast.transport.auth.incoming import IncomingConnection
from holdfast.transport.stream import Stream, name_of

__all__ = ["Listener", "pushed_out"]

SHORT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_WHY = {
    Code.NO: "the run will not have it: {}",
    Code.TOKEN: "it does not hold the run's token.",
    Code.VERSION: "it has another version of Holdfast ({}). Install the same one there.",
    Code.RUN: "it means another run ({}).",
    Code.HELLO: "its hello makes no sense ({}).",
    Code.PROTOCOL: "it greets in another way ({}). Install the same version there.",
    Code.TLS: "{}.",
    Code.STRANGER: "it is not a Holdfast ({}).",
    Code.LENGTH: "it is not a Holdfast ({}).",
    Code.SILENT: "it closed the connection before it had said who it is.",
    Code.SLOW: "it did not say who it is within {} s.",
    Code.CROWD: f"more than {NETWORK.handshakes} connections had not said who they are, most of them from there.",
}
#: Refusals that were said, so the visitor gets a moment to read them.
_ANSWERED = frozenset({Code.NO, Code.TOKEN, Code.VERSION, Code.RUN, Code.HELLO, Code.PROTOCOL, Code.TLS})


class _Waiting(Protocol):
    host: str
    since: float


_Someone = TypeVar("_Someone", bound=_Waiting)


def pushed_out(waiting: Iterable[_Someone]) -> _Someone:
    """Who goes when there is one too many: the oldest of the address that holds most places. Pure."""
    everybody = list(waiting)
    places = Counter(incoming.host for incoming in everybody)
    return min(everybody, key=lambda incoming: (-places[incoming.host], incoming.since))


class Listener:
    """Listens, greets, and hands on who may come in.

    `admit(hello)` says why somebody with the right token may not come in, or None; `came(hello, stream)` takes who
    may, and owns the stream from then on; `complain(sentence)` tells whom we turned away. All three are called in the
    listener's thread and must not wait for anything.

    Resources: owns the listening socket, its thread, and the visitors it still holds; `close` ends all of them.
    """

    def __init__(
        self,
        bind: tuple[str, int],
        credentials: Credentials,
        *,
        admit: Callable[[Hello], str | None],
        came: Callable[[Hello, Stream], None],
        complain: Callable[[str], None],
        run: str = "",
        version: str = VERSION,
        deadline: float = NETWORK.handshake,
    ) -> None:
        self._deadline = deadline
        self._credentials, self._context = credentials, credentials.server
        self._admit, self._came, self._complain = admit, came, complain
        self._run, self._version = run, version
        self._incoming: dict[IncomingConnection, None] = {}  # in order of arrival
        self._told: set[tuple[str, Code]] = set()
        self._turned = 0
        self._listener = _listen(bind)
        #: Where it listens: the number of the address, and the port.
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._resumes: float | None = None  # when the listener is looked at again, where it is not now
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="holdfast-listener", daemon=True)
        self._thread.start()

    @property
    def turned_away(self) -> int:
        """How many were refused until now."""
        return self._turned

    def close(self) -> None:
        """Stop listening and let go whoever has not been greeted; who has come in is not touched."""
        if not self._closing.is_set():
            self._closing.set()
            os.eventfd_write(self._wake, 1)
            self._thread.join()
            os.close(self._wake)

    # ---------------------------------------------------------------- the thread

    def _loop(self) -> None:
        try:
            while not self._closing.is_set():
                self._round()
        finally:
            for incoming in self._incoming:
                incoming.close()
            self._listener.close()
            self._selector.close()

    def _round(self) -> None:
        ready = self._selector.select(self._patience(time.monotonic()))
        began, turned, now = time.thread_time(), self._turned, time.monotonic()
        for key, _ in ready:
            if key.data in self._incoming:  # it may have been pushed out a moment ago
                self._attend(key.data, now)
            elif key.fileobj is self._listener:
                self._accept(now)
        for incoming in [incoming for incoming in self._incoming if incoming.until <= now]:
            self._turn_away(incoming, HandshakeRefusal(Code.SLOW, f"{self._deadline:g}"), now)
        if self._resumes is not None and now >= self._resumes:
            self._resumes = None
            self._selector.register(self._listener, selectors.EVENT_READ)
        if self._turned > turned:
            self._closing.wait(min(NETWORK.rest_factor * (time.thread_time() - began), NETWORK.rest_most))

    def _patience(self, now: float) -> float | None:
        """Seconds until somebody's time is up; None: there is nobody."""
        ends = [incoming.until for incoming in self._incoming]
        if self._resumes is not None:
            ends.append(self._resumes)
        return max(0.0, min(ends) - now) if ends else None

    def _accept(self, now: float) -> None:
        for _ in range(NETWORK.accepted_at_once):
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in SHORT:
                    # The connection stays in the kernel's queue, so looking again at once would be vain.
                    self._selector.unregister(self._listener)
                    self._resumes = now + NETWORK.accept_pause
                    self._count("", Code.CROWD, f"No connection can be taken at the moment: {error.strerror}.")
                    return
                continue  # it was gone before we had it
            self._meet(sock, name_of(address), now)

    def _meet(self, sock: socket.socket, peer: str, now: float) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a greeting is small messages in turn
        congestion.settle(sock)
        greeter = Greeter(self._credentials.token, os.urandom(NONCE), run=self._run, version=self._version)
        incoming = IncomingConnection(sock, greeter, self._context, peer=peer, since=now, until=now + self._deadline)
        self._incoming[incoming] = None
        self._selector.register(sock, selectors.EVENT_READ, incoming)
        if len(self._incoming) > NETWORK.handshakes:
            self._turn_away(pushed_out(self._incoming), HandshakeRefusal(Code.CROWD, ""), now)

    def _attend(self, incoming: IncomingConnection, now: float) -> None:
        if incoming.leaving:
            if not incoming.leave():
                self._forget(incoming)
            return
        try:
            met = incoming.attend()
        except Exception as error:  # ours, not its; still it must not cost the others the door
            self._forget(incoming)
            self._say(f"A connection from {incoming.peer} could not be greeted: {type(error).__name__}: {error}.")
            return
        if isinstance(met, HandshakeRefusal):
            self._turn_away(incoming, met, now)
        elif met is not None:
            self._judge(incoming, met, now)

    def _judge(self, incoming: IncomingConnection, hello: Hello, now: float) -> None:
        """It holds the token. Does the run want it?"""
        try:
            reason = self._admit(hello)
        except Exception as error:
            reason = f"the run failed while it looked at it ({type(error).__name__}: {error})."
        if reason is not None:
            incoming.refuse(reason)
            self._turn_away(incoming, HandshakeRefusal(Code.NO, reason), now)
            return
        self._selector.unregister(incoming.socket)
        del self._incoming[incoming]
        try:
            stream = incoming.welcome()
        except OSError:
            incoming.close()  # gone in the last moment
            return
        try:
            self._came(hello, stream)
        except Exception as error:
            stream.close()
            self._say(f"A connection from {incoming.peer} was lost: {type(error).__name__}: {error}.")

    def _turn_away(self, incoming: IncomingConnection, refusal: HandshakeRefusal, now: float) -> None:
        if incoming.leaving:  # told already; its time is up, or its place is needed
            self._forget(incoming)
            return
        code, text = refusal
        if code in _ANSWERED and incoming.leave():
            incoming.until = now + NETWORK.refusal
        else:
            self._forget(incoming)
        self._count(incoming.host, code, f"Refused a connection from {incoming.peer}: {_WHY[code].format(text)}")

    def _count(self, host: str, code: Code, sentence: str) -> None:
        """Tell it once, and count it after that."""
        self._turned += 1
        if (host, code) in self._told:
            return
        if len(self._told) < NETWORK.refusals_told:
            self._told.add((host, code))
            self._say(sentence)
        elif len(self._told) == NETWORK.refusals_told:
            self._told.add(("", Code.STRANGER))
            self._say(f"Refused connections for {NETWORK.refusals_told} different reasons; no more of them are told.")

    def _say(self, sentence: str) -> None:
        try:
            self._complain(sentence)
        except Exception:
            pass  # a log that cannot be written must not close the door

    def _forget(self, incoming: IncomingConnection) -> None:
        self._selector.unregister(incoming.socket)
        del self._incoming[incoming]
        incoming.close()


def _listen(bind: tuple[str, int]) -> socket.socket:
    """A listening socket. No host means loopback: nothing is opened to others that was not asked for."""
    host, port = bind
    try:
        if not 0 <= port <= 65535:  # getaddrinfo would take the rest of a division
            raise OverflowError("a port is 0 to 65535")
        found = socket.getaddrinfo(host or "127.0.0.1", port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, where = found[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6 and where[0] == "::":
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # "all addresses" means the old ones too
            congestion.prefer_short(sock)  # whoever is let in inherits it
            sock.bind(where)
            sock.listen(NETWORK.backlog)
            sock.setblocking(False)
        except BaseException:
            sock.close()
            raise
    except (OSError, UnicodeError, OverflowError) as error:
        why = (error.strerror or error) if isinstance(error, OSError) else error
        raise UsageError(
            f"Cannot listen at {name_of(bind)}: {why}. Use an address of this machine (`ip address` shows them) and a "
            "free port, or port 0 for any."
        ) from None
    return sock
