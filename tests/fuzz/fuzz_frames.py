"""Fuzzing of what reads bytes from the network before it knows anybody: guided by coverage in `make fuzz`, which needs
atheris, and without it in `make test` (tests/unit/transport/test_fuzz_targets.py).

The first byte of an input chooses what is fuzzed, the rest is what comes in. Checksums and proofs would stop every
input at the door, so half of the targets have them made right: those look behind the door. What counts as a crash is
an exception that is not a FrameError, more memory than is promised, or somebody who came in without a proof.
"""

from __future__ import annotations

import contextlib
import struct
import sys
import zlib

import msgspec

try:
    import atheris
except ImportError:  # as in `make test`
    instrumented = contextlib.nullcontext()
else:
    instrumented = atheris.instrument_imports(include=["holdfast.transport"])

with instrumented:
    from holdfast.transport.auth.handshake import MAX_HELLO, MAX_REASON, NONCE, VERSION, Caller, Greeter, Hello
    from holdfast.transport.auth.proof import PROOF, prove
    from holdfast.transport.frames import HEADER, MAX_BODY, MAX_META, FrameParser, pack, unpack

from holdfast.errors import FrameError

TOKEN = "t" * 43
OURS, THEIRS = b"a" * NONCE, b"b" * NONCE
#: No message of a greeting is longer: magic, head, proof and hello.
MOST = 11 + PROOF + max(MAX_HELLO, MAX_REASON + 1)


def right_header(data: bytes) -> bytes:
    """The first bytes as a header with the right magic and checksum."""
    fields = b"HFD1" + data[:24].ljust(24, b"\0")
    return fields + struct.pack("<I", zlib.crc32(fields))


def header(data: bytes) -> None:
    """One header, as it comes, and with its checksum made right."""
    for line in (data[:HEADER], right_header(data)):
        try:
            found = unpack(line)
        except FrameError:
            continue
        assert found.meta <= MAX_META and found.body <= MAX_BODY[found.kind]
        assert pack(found.kind, found.generation, bytes(found.meta), found.body)[:HEADER] == line


def parse(data: bytes) -> None:
    """A stream of bytes in pieces: the first byte says how large they are."""
    size, line = 1 + data[0] if data else 1, data[1:]
    parser = FrameParser()
    try:
        for begin in range(0, len(line), size):
            for frame in parser.feed(line[begin : begin + size]):
                assert len(frame.meta) == frame.header.meta and len(frame.body) == frame.header.body
            assert parser.wanted > 0
    except FrameError:
        assert not parser._buffer


def parse_right(data: bytes) -> None:
    """The same, behind a right header."""
    parse(data[:1] + right_header(data[1:25]) + data[25:] + right_header(data[-24:]))


def feed(side: Greeter | Caller, data: bytes) -> None:
    """All of it, in pieces of what is wanted, and then of any size."""
    while data and side.wanted:
        piece, data = data[: side.wanted], data[side.wanted :]
        side.feed(piece)
        assert len(side._buffer) <= MOST
    side.feed(data)
    assert side.wanted >= 0


def greet(data: bytes) -> None:
    """A stranger at the door, from its first byte and after a right opening."""
    opening = Caller(TOKEN, OURS, Hello("join")).opening
    guess = data[:PROOF].ljust(PROOF, b"\0") + msgspec.msgpack.encode(Hello("join"))
    for line in (data, b"HOLDFAST" + data, opening + data, opening + struct.pack("<BH", 3, len(guess)) + guess):
        greeter = Greeter(TOKEN, THEIRS)
        feed(greeter, line)
        assert greeter.hello is None, "came in without a proof"


def greet_right(data: bytes) -> None:
    """A hello of any kind from somebody who holds the token: it reaches the decoder, also with the right version."""
    raw = data[:MAX_HELLO]
    if data[:1] < b"\x80":
        version = VERSION.encode()
        fields = bytes([0x80 | (data[0] & 15 if data else 0)])  # a map of so many fields
        raw = (fields + b"\xa7version" + bytes([0xA0 | len(version)]) + version + data[1:])[:MAX_HELLO]
    proof = prove(TOKEN, b"caller", OURS, THEIRS, raw)
    greeter = Greeter(TOKEN, THEIRS, run="r")
    feed(greeter, Caller(TOKEN, OURS, Hello("join")).opening)
    feed(greeter, struct.pack("<BH", 3, len(proof + raw)) + proof + raw)
    assert (greeter.hello is None) != (greeter.refusal is None)
    if greeter.hello is not None:
        assert len(greeter.answer(data[:64].decode(errors="replace"))) <= MOST


def call(data: bytes) -> None:
    """Whoever answers a call, from the first byte and after a challenge."""
    challenge = b"HOLDFAST" + struct.pack("<BH", 2, NONCE) + THEIRS
    guess = data[:PROOF].ljust(PROOF, b"\0")
    for line in (data, b"HOLDFAST" + data, challenge + data, challenge + struct.pack("<BH", 4, len(guess)) + guess):
        caller = Caller(TOKEN, OURS, Hello("join"))
        feed(caller, line)
        assert not caller.welcome, "believed somebody without a proof"


def call_right(data: bytes) -> None:
    """A refusal with any text from a host that holds the token."""
    hello = Hello("join")
    caller = Caller(TOKEN, OURS, hello)
    said = caller.feed(b"HOLDFAST" + struct.pack("<BH", 2, NONCE) + THEIRS)
    body = (data or b"\0")[: 1 + MAX_REASON]
    raw = said[3 + PROOF :]
    proof = prove(TOKEN, b"host", OURS, THEIRS, raw, b"\x05", body)
    feed(caller, struct.pack("<BH", 5, len(proof + body)) + proof + body)
    assert caller.refusal is not None and not caller.welcome and not caller.impostor


TARGETS = (header, parse, parse_right, greet, greet_right, call, call_right)


def one_input(data: bytes) -> None:
    """What atheris calls."""
    if data:
        TARGETS[data[0] % len(TARGETS)](data[1:])


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
