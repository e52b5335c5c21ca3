"""Greetings: two strangers find out whether they belong to the same run, before anything else is said. Pure.

    caller    HOLDFAST OPEN(protocol, nonce)  ->
                                              <-  HOLDFAST CHALLENGE(nonce)         host
              PROOF(proof, hello)             ->
                                              <-  WELCOME(proof) or REFUSED(proof, code, text)

The token itself never travels. The caller proves that it holds it, for both nonces and its hello; the host
proves it too, for the same and its answer. A proof is of use in this one greeting: a replayed one meets another
nonce, and one that is thrown back bears the name of the other role. Rules:

* a hello is looked into only after its proof was found right: strangers reach no decoder;
* every length is bounded and checked before anything is waited for; `wanted` says how many bytes may be fed
  next, so nobody reads into what follows the greeting;
* what is refused before a proof is refused with a code alone; only who proved something may send a text;
* the order and form of these four messages outlive versions, so that versions can be compared and named.

Nonces come in as arguments; deadlines are the business of those who hold the sockets (`dial`, `listener`).
"""

from __future__ import annotations

import struct
import sys
from enum import IntEnum
from typing import NamedTuple

import msgspec

from holdfast.transport.auth.proof import PROOF, prove, proven

__all__ = ["MAX_HELLO", "MAX_REASON", "NONCE", "VERSION", "Caller", "Code", "Greeter", "HandshakeRefusal", "Hello"]

#: The version of this Holdfast. (Importing it by name would tie this layer to all of them.)
VERSION: str = sys.modules["holdfast"].__version__

#: Bytes of a nonce.
NONCE = 32
#: Most bytes of an encoded hello.
MAX_HELLO = 16 * 1024
#: Most bytes of a refusal's text.
MAX_REASON = 4 * 1024

_MAGIC = b"HOLDFAST"
_PROTOCOL = b"\x01"
_HEAD = struct.Struct("<BH")  # kind of message, length of what follows
_OPEN, _CHALLENGE, _PROOF, _WELCOME, _REFUSED = 1, 2, 3, 4, 5
#: Least and most bytes of each message.
_LENGTHS = {
    _OPEN: (1 + NONCE, 1 + NONCE),
    _CHALLENGE: (NONCE, NONCE),
    _PROOF: (PROOF, PROOF + MAX_HELLO),
    _WELCOME: (PROOF, PROOF),
    _REFUSED: (PROOF + 1, PROOF + 1 + MAX_REASON),
}
_NO_PROOF = bytes(PROOF)
#: How TLS begins: a handshake record of any version.
_TLS_RECORD = b"\x16\x03"


class Hello(msgspec.Struct, frozen=True):
    """Who calls, and what for. `facts` is what the host wants to know of a machine that joins."""

    kind: str  #: join, peer, fetch or probe
    version: str = VERSION
    run: str = ""
    host: int = -1
    generation: int = 0
    facts: dict[str, str | int | float | list[str]] = {}


class _Version(msgspec.Struct):
    version: str


class Code(IntEnum):
    """Why a greeting ended without a welcome. The first group is said on the wire, the second is for the log."""

    NO = 1  #: the host will not have it, and says why
    TOKEN = 2  #: the proof is wrong
    VERSION = 3  #: another version; the text is the host's
    RUN = 4  #: another run; the text is the host's
    HELLO = 5  #: the proof is right, but the hello makes no sense
    PROTOCOL = 6  #: another form of greeting
    TLS = 7  #: one side speaks TLS, and the other does not

    STRANGER = 100  #: not a greeting at all
    LENGTH = 101  #: a message that is too long or too short
    SILENT = 102  #: closed before the greeting was over
    SLOW = 103  #: not done in time
    CROWD = 104  #: more are waiting than are held at a time


#: Codes that only who holds the token may say, and codes that anybody may.
_SECURED = frozenset({Code.NO, Code.VERSION, Code.RUN, Code.HELLO})
_UNSECURED = frozenset({Code.TOKEN, Code.PROTOCOL, Code.TLS})


class HandshakeRefusal(NamedTuple):
    """A greeting that failed: the code, and what else is known."""

    code: Code
    text: str


def _message(kind: int, payload: bytes) -> bytes:
    return _HEAD.pack(kind, len(payload)) + payload


class _Side:
    """What both sides share: reading messages whose kinds and lengths are known beforehand."""

    def __init__(self, token: str, nonce: bytes) -> None:
        if len(nonce) != NONCE:
            raise ValueError(f"a nonce of {len(nonce)} bytes: must be {NONCE}")
        self._token, self._nonce = token, nonce
        self._buffer = bytearray()
        self._magic = _MAGIC  # what must come before the next message
        #: Set when the greeting has failed. Nothing is fed after that.
        self.refusal: HandshakeRefusal | None = None

    @property
    def _over(self) -> bool:
        raise NotImplementedError

    @property
    def wanted(self) -> int:
        """How many bytes may be fed next; 0: none, it is over."""
        return 0 if self._over else self._missing()

    def _fail(self, code: Code, text: str = "") -> None:
        self.refusal = HandshakeRefusal(code, text)
        self._buffer.clear()

    def _missing(self) -> int:
        """Bytes that must still come before something can be decided."""
        head = len(self._magic) + _HEAD.size
        if len(self._buffer) < head:
            return head - len(self._buffer)
        _, length = _HEAD.unpack_from(self._buffer, len(self._magic))
        return head + int(length) - len(self._buffer)

    def _next(self, *kinds: int) -> tuple[int, bytes] | None:
        """The next message, if it is whole and one of these; `refusal` is set if it can never be."""
        magic = self._magic[: len(self._buffer)]
        if self._buffer[: len(magic)] != magic:
            self._fail(Code.STRANGER, f"it began with {bytes(self._buffer[:16])!r}")
            return None
        head = len(self._magic) + _HEAD.size
        if len(self._buffer) < head:
            return None
        kind, length = _HEAD.unpack_from(self._buffer, len(self._magic))
        if kind not in kinds:
            self._fail(Code.STRANGER, f"it sent message {kind} where {' or '.join(map(str, kinds))} was due")
            return None
        least, most = _LENGTHS[kind]
        if not least <= length <= most:
            self._fail(Code.LENGTH, f"it announced a message of {length} bytes, where {least} to {most} are taken")
            return None
        if len(self._buffer) < head + length:
            return None
        payload = bytes(self._buffer[head : head + length])
        del self._buffer[: head + length]
        self._magic = b""
        return kind, payload


class Greeter(_Side):
    """The side that listens. Feed it what comes in, send what it returns.

    When `hello` is set, the caller has proved that it holds the token, and is of this version and run: say `answer`.
    """

    def __init__(self, token: str, nonce: bytes, *, run: str = "", version: str = VERSION) -> None:
        super().__init__(token, nonce)
        self._run, self._version = run, version
        self._theirs: bytes | None = None
        self._raw = b""
        self.hello: Hello | None = None

    @property
    def _over(self) -> bool:
        return self.refusal is not None or self.hello is not None

    def feed(self, data: bytes) -> bytes:
        """Take what came in; returns what is to be sent."""
        if self._over:
            return b""
        self._buffer += data
        reply = b""
        if self._theirs is None:
            if bytes(self._buffer[:2]) == _TLS_RECORD:
                return _MAGIC + self._refuse(Code.TLS, "it speaks TLS, and this run does not")
            if (message := self._next(_OPEN)) is None:
                return b""
            if message[1][:1] != _PROTOCOL:
                return _MAGIC + self._refuse(Code.PROTOCOL, f"it speaks greeting {message[1][0]}")
            self._theirs = message[1][1:]
            reply = _MAGIC + _message(_CHALLENGE, self._nonce)
        if (message := self._next(_PROOF)) is not None:
            reply += self._judge(message[1])
        return reply

    def answer(self, reason: str | None) -> bytes:
        """The last word, to be sent: welcome (None), or why not."""
        assert self.hello is not None
        if reason is not None:
            return self._refuse(Code.NO, reason)
        return _message(_WELCOME, self._prove(_WELCOME, b""))

    def _judge(self, payload: bytes) -> bytes:
        proof, self._raw = payload[: PROOF], payload[PROOF :]
        assert self._theirs is not None
        if not proven(self._token, proof, b"caller", self._theirs, self._nonce, self._raw):
            return self._refuse(Code.TOKEN, "")
        try:
            # Only the version is read of a hello that may be of another one.
            version = msgspec.msgpack.decode(self._raw, type=_Version).version
            if version != self._version:
                return self._refuse(Code.VERSION, self._version, f"it has {version}, this run has {self._version}")
            hello = msgspec.msgpack.decode(self._raw, type=Hello)
        except (msgspec.DecodeError, RecursionError) as error:
            return self._refuse(Code.HELLO, str(error))
        if hello.run and self._run and hello.run != self._run:
            return self._refuse(Code.RUN, self._run, f"it means run {hello.run}, this is {self._run}")
        self.hello = hello
        return b""

    def _refuse(self, code: Code, text: str, note: str = "") -> bytes:
        self._fail(code, note or text)
        said = text.encode()[:MAX_REASON] if code in _SECURED else b""
        body = bytes([code]) + said
        proof = self._prove(_REFUSED, body) if code in _SECURED else _NO_PROOF
        return _message(_REFUSED, proof + body)

    def _prove(self, kind: int, body: bytes) -> bytes:
        assert self._theirs is not None
        return prove(self._token, b"host", self._theirs, self._nonce, self._raw, bytes([kind]), body)

    @staticmethod
    def turn_away(code: Code) -> bytes:
        """What to send to somebody with whom no greeting can begin."""
        return _MAGIC + _message(_REFUSED, _NO_PROOF + bytes([code]))


class Caller(_Side):
    """The side that calls. Send `opening`, then feed it what comes in and send what it returns, until `wanted` is 0.

    Then it is `welcome`, or `refusal` is set. `impostor` is set where the other side answered without the token.
    """

    def __init__(self, token: str, nonce: bytes, hello: Hello) -> None:
        super().__init__(token, nonce)
        self._hello = msgspec.msgpack.encode(hello)
        if len(self._hello) > MAX_HELLO:
            raise ValueError(f"a hello of {len(self._hello)} bytes: at most {MAX_HELLO}")
        self._theirs: bytes | None = None
        self.opening = _MAGIC + _message(_OPEN, _PROTOCOL + nonce)
        self.welcome = False
        self.impostor = False

    @property
    def _over(self) -> bool:
        return self.refusal is not None or self.welcome

    def feed(self, data: bytes) -> bytes:
        """Take what came in; returns what is to be sent."""
        if self._over:
            return b""
        self._buffer += data
        if self._theirs is None:
            message = self._next(_CHALLENGE, _REFUSED)
            if message is None or message[0] == _REFUSED:
                return self._conclude(message)
            self._theirs = message[1]
            proof = prove(self._token, b"caller", self._nonce, self._theirs, self._hello)
            return _message(_PROOF, proof + self._hello)
        return self._conclude(self._next(_WELCOME, _REFUSED))

    def _conclude(self, message: tuple[int, bytes] | None) -> bytes:
        if message is None:
            return b""
        kind, payload = message
        proof, body = payload[: PROOF], payload[PROOF :]
        if kind == _REFUSED and body[0] not in _SECURED:
            if body[0] in _UNSECURED:
                self._fail(Code(body[0]))
            else:
                self._fail(Code.STRANGER, f"it refused with code {body[0]}")
            return b""
        parts = (b"host", self._nonce, self._theirs or b"", self._hello, bytes([kind]), body)
        if not proven(self._token, proof, *parts):
            self.impostor = True
            self._fail(Code.TOKEN)
        elif kind == _WELCOME:
            self.welcome = True
        else:
            self._fail(Code(body[0]), body[1:].decode(errors="replace"))
        return b""
