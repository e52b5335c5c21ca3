"""Dialling: to reach another host of the run and be let in, or to say in one sentence why not."""

from __future__ import annotations

import os
import socket
import ssl
import time
from ipaddress import ip_address

from holdfast.errors import (
    HoldfastError,
    NetworkError,
    NobodyListens,
    NotHoldfast,
    OtherRun,
    OtherVersion,
    Refused,
    Unreachable,
    UsageError,
    WrongToken,
)
from holdfast.transport import congestion
from holdfast.transport.auth.credentials import Credentials
from holdfast.transport.auth.handshake import NONCE, Caller, Code, Hello
from holdfast.transport.auth.tls import why
from holdfast.transport.stream import PlainStream, Stream, TlsStream, name_of

__all__ = ["connect"]


def connect(address: tuple[str, int], hello: Hello, credentials: Credentials, timeout: float) -> Stream:
    """Connect, greet, and hand over the stream: within `timeout` seconds once the system has found the name.

    Raises: Unreachable, NotHoldfast or NetworkError where trying again may help; Refused (WrongToken, OtherVersion,
    OtherRun) or UsageError where it will not.
    """
    place = name_of(address)
    until = time.monotonic() + timeout
    sock = _reach(address, place, until, timeout)
    try:
        return _greet(sock, place, hello, credentials, until)
    except TimeoutError:
        sock.close()
        raise Unreachable(
            f"Somebody listens at {place}, but did not answer within {timeout:g} s. Check that it is the address of a "
            "Holdfast run, and that its machine is not overloaded."
        ) from None
    except (EOFError, OSError) as error:
        sock.close()
        cause = f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else ""
        raise NetworkError(
            f"{place} closed the connection in the middle of the greeting{cause}. If the run is still going, try "
            "again; its log says whom it turned away."
        ) from None
    except BaseException:
        sock.close()
        raise


def _reach(address: tuple[str, int], place: str, until: float, timeout: float) -> socket.socket:
    if not 0 < address[1] < 65536:  # getaddrinfo would take the rest of a division
        raise UsageError(f"{place} is no address to call: a port is 1 to 65535. Use the address that the run printed.")
    try:
        found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else error
        raise Unreachable(
            f"The host name of {place} cannot be resolved: {cause}. Check the spelling, or use the number of the "
            "address."
        ) from None
    last: OSError = TimeoutError()
    for family, kind, protocol, _, where in found:
        if (left := until - time.monotonic()) <= 0:
            break
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a greeting is small messages in turn
            congestion.prefer_short(sock)
            sock.settimeout(left)
            sock.connect(where)
            congestion.settle(sock)
            return sock
        except OSError as error:
            last = error
            sock.close()
    if isinstance(last, TimeoutError):
        raise Unreachable(
            f"No answer from {place} within {timeout:g} s. Check the address; if it is right, a firewall between the "
            "two machines may drop what is sent."
        )
    if isinstance(last, ConnectionRefusedError):
        if here := _this_machine(address[0], [str(where[0]) for *_, where in found]):
            raise NobodyListens(
                f"Nothing listens at {place}: on this machine the name {address[0]} stands for {here} (see "
                "/etc/hosts), which is this machine itself. If the run is on another one, use the number of its "
                "address, which the run printed; if it is on this one, check that it is still going."
            )
        raise NobodyListens(
            f"Nothing listens at {place}. Check that the run is still going, and that this is the address it printed."
        )
    raise Unreachable(f"{place} cannot be reached: {last.strerror or last}. Check the address and the network.")


def _this_machine(host: str, numbers: list[str]) -> str:
    """What a name stands for that leads nowhere but to this machine, though it does not say so. Else nothing.

    >>> _this_machine("gpu7", ["127.0.1.1"]), _this_machine("localhost", ["127.0.0.1"]), _this_machine("::1", ["::1"])
    ('127.0.1.1', '', '')
    """
    far = [it for it in numbers if not ip_address(it.partition("%")[0]).is_loopback]
    return "" if far or host == "localhost" or host in numbers else " and ".join(dict.fromkeys(numbers))


def _greet(sock: socket.socket, place: str, hello: Hello, credentials: Credentials, until: float) -> Stream:
    caller = Caller(credentials.token, os.urandom(NONCE), hello)
    line = _Encrypted(sock, credentials.client, place) if credentials.client else _Open(sock)
    line.send(caller.opening, until)
    while caller.wanted:
        line.send(caller.feed(line.recv(caller.wanted, until)), until)
    if caller.refusal is not None:
        raise _complaint(caller, place, hello)
    return line.stream(place)


def _complaint(caller: Caller, place: str, hello: Hello) -> HoldfastError:
    assert caller.refusal is not None
    code, text = caller.refusal
    if caller.impostor:
        return NotHoldfast(
            f"What answers at {place} cannot prove that it holds the run's token, so nothing was said to it. Check the "
            "address; if it is right, somebody pretends to be this run."
        )
    if code is Code.TOKEN:
        return WrongToken(place)
    if code is Code.VERSION:
        return OtherVersion(place, theirs=text, ours=hello.version)
    if code is Code.RUN:
        return OtherRun(place, theirs=text, ours=hello.run)
    if code is Code.TLS:
        return Refused(
            f"The run at {place} was started with --tls, and this machine has no certificate. Give it the file "
            "`credentials` from the run's directory instead of the token."
        )
    if code is Code.PROTOCOL:
        return Refused(
            f"The run at {place} is of a Holdfast that greets in another way than {hello.version} does. Install the "
            "same version on both machines."
        )
    if code in (Code.NO, Code.HELLO):
        return Refused(f"The run at {place} will not have this machine: {text}")
    return NotHoldfast(
        f"What answers at {place} is not a Holdfast run ({text}). Check address and port; if the run was started "
        "without --tls, call it without."
    )


class _Open:
    """The greeting's way to the other side, without TLS."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def send(self, data: bytes, until: float) -> None:
        if data:
            self._allow(until)
            self._socket.sendall(data)

    def recv(self, most: int, until: float) -> bytes:
        self._allow(until)
        data = self._socket.recv(most)
        if not data:
            raise EOFError
        return data

    def stream(self, place: str) -> Stream:
        return PlainStream(self._socket, place)

    def _allow(self, until: float) -> None:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)


class _Encrypted(_Open):
    """The greeting's way to the other side, with TLS. Shakes hands when something is first sent."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, place: str) -> None:
        super().__init__(sock)
        self._place = place
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing)
        self._shaken = False

    def send(self, data: bytes, until: float) -> None:
        if not self._shaken:
            self._shake(until)
        if data:
            self._tls.write(data)
            super().send(self._outgoing.read(), until)

    def recv(self, most: int, until: float) -> bytes:
        while True:
            try:
                if data := self._tls.read(most):
                    return data
                raise EOFError
            except ssl.SSLWantReadError:
                self._incoming.write(super().recv(64 * 1024, until))
            except ssl.SSLError as error:
                raise self._failed(error) from None

    def stream(self, place: str) -> Stream:
        return TlsStream(self._socket, self._tls, self._incoming, self._outgoing, place)

    def _shake(self, until: float) -> None:
        while not self._shaken:
            try:
                self._tls.do_handshake()
                self._shaken = True
            except ssl.SSLWantReadError:
                super().send(self._outgoing.read(), until)
                self._incoming.write(super().recv(64 * 1024, until))
            except ssl.SSLError as error:
                raise self._failed(error) from None
        super().send(self._outgoing.read(), until)

    def _failed(self, error: ssl.SSLError) -> HoldfastError:
        if isinstance(error, ssl.SSLCertVerificationError):
            return NotHoldfast(
                f"The certificate that {self._place} showed is not of this run ({error.verify_message}). Copy the file "
                "`credentials` from the run's directory again, and check the address."
            )
        return NotHoldfast(
            f"What answers at {self._place} does not agree on TLS ({why(error)}). Check the address; if the "
            "run was started without --tls, call it with its token alone."
        )
