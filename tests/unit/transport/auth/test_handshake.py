"""Greetings: two machines over a fake line. Who holds the token comes in; nobody else learns anything."""

from __future__ import annotations

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import __version__
from holdfast.transport.auth.handshake import (
    MAX_HELLO,
    MAX_REASON,
    NONCE,
    VERSION,
    Caller,
    Code,
    Greeter,
    HandshakeRefusal,
    Hello,
)
from holdfast.transport.auth.proof import PROOF, prove

TOKEN = "t" * 43
LONG = "it announced a message of 65535 bytes, where 33 to 33 are taken"
OURS, THEIRS = b"a" * NONCE, b"b" * NONCE
WORD = st.text(max_size=8)
FACTS = st.dictionaries(WORD, WORD | st.integers(-(2**63), 2**63 - 1) | st.lists(WORD, max_size=3), max_size=4)


def talk(caller: Caller, greeter: Greeter, reason: str | None = None, cuts: list[int] | None = None) -> bytes:
    """Carry bytes to and fro, cut as asked, until it is over; returns all that the caller said."""
    said, to_host, to_caller = b"", caller.opening, b""
    cuts, answered = list(cuts or []), False
    while to_host or to_caller:
        if to_host:
            size = min(greeter.wanted, cuts.pop() if cuts else len(to_host))
            if not size:
                break
            piece, to_host = to_host[:size], to_host[size:]
            said += piece
            to_caller += greeter.feed(piece)
            if greeter.hello and not answered:
                to_caller, answered = to_caller + greeter.answer(reason), True
        else:
            size = min(caller.wanted, cuts.pop() if cuts else len(to_caller))
            if not size:
                break
            piece, to_caller = to_caller[:size], to_caller[size:]
            to_host += caller.feed(piece)
    return said


def test_the_version_is_the_package_s() -> None:
    assert __version__ == VERSION


@given(st.sampled_from(["join", "peer", "fetch", "probe"]), st.integers(-1, 99), FACTS, st.lists(st.integers(1, 50)))
def test_who_holds_the_token_comes_in_however_the_bytes_are_cut(
    kind: str, host: int, facts: dict[str, str | int | float | list[str]], cuts: list[int]
) -> None:
    hello = Hello(kind, run="r", host=host, generation=3, facts=facts)
    caller, greeter = Caller(TOKEN, OURS, hello), Greeter(TOKEN, THEIRS, run="r")
    talk(caller, greeter, cuts=cuts)
    assert greeter.hello == hello
    assert caller.welcome and caller.refusal is None
    assert caller.wanted == greeter.wanted == 0


@given(st.text(min_size=1, max_size=50), st.lists(st.integers(1, 20)))
def test_the_token_never_travels(secret: str, cuts: list[int]) -> None:
    mine = "a long token: " + secret
    line = talk(Caller(mine, OURS, Hello("join")), Greeter(mine, THEIRS), cuts=cuts)
    assert mine.encode() not in line


def test_a_wrong_token_is_refused_by_a_code_alone() -> None:
    caller, greeter = Caller("x" * 43, OURS, Hello("join")), Greeter(TOKEN, THEIRS)
    talk(caller, greeter)
    assert greeter.refusal == HandshakeRefusal(Code.TOKEN, "")
    assert caller.refusal == HandshakeRefusal(Code.TOKEN, "")
    assert greeter.hello is None and not caller.welcome and not caller.impostor


def test_a_hello_is_not_read_before_its_proof_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(msgspec.msgpack, "decode", lambda *_, **__: pytest.fail("a stranger reached the decoder"))
    greeter = Greeter(TOKEN, THEIRS)
    talk(Caller("x" * 43, OURS, Hello("join")), greeter)
    assert greeter.refusal == HandshakeRefusal(Code.TOKEN, "")


def test_a_replayed_greeting_meets_another_nonce() -> None:
    recorded = talk(Caller(TOKEN, OURS, Hello("join")), Greeter(TOKEN, THEIRS))
    greeter = Greeter(TOKEN, b"c" * NONCE)
    greeter.feed(recorded)
    assert greeter.refusal == HandshakeRefusal(Code.TOKEN, "")
    same = Greeter(TOKEN, THEIRS)  # what was recorded is right, for the nonce it was made for
    same.feed(recorded)
    assert same.hello is not None


def test_a_proof_thrown_back_is_of_no_use() -> None:
    """Somebody without the token answers a caller with what another host said, or with the caller's own proof."""
    caller = Caller(TOKEN, OURS, Hello("join"))
    challenge = b"HOLDFAST" + struct.pack("<BH", 2, NONCE) + THEIRS
    proof = caller.feed(challenge)[3:][: PROOF]
    caller.feed(struct.pack("<BH", 4, PROOF) + proof)
    assert caller.impostor and not caller.welcome
    assert caller.refusal == HandshakeRefusal(Code.TOKEN, "")


@pytest.mark.parametrize("code", [Code.NO, Code.VERSION, Code.RUN, Code.HELLO])
def test_a_text_without_proof_is_not_believed(code: Code) -> None:
    caller = Caller(TOKEN, OURS, Hello("join"))
    lie = bytes(PROOF) + bytes([code]) + b"Type your password."
    caller.feed(b"HOLDFAST" + struct.pack("<BH", 5, len(lie)) + lie)
    assert caller.impostor
    assert caller.refusal == HandshakeRefusal(Code.TOKEN, "")


def test_another_version_is_refused_and_both_are_named() -> None:
    caller, greeter = Caller(TOKEN, OURS, Hello("join", "0.9")), Greeter(TOKEN, THEIRS, version="1.0")
    talk(caller, greeter)
    assert greeter.refusal == HandshakeRefusal(Code.VERSION, "it has 0.9, this run has 1.0")
    assert caller.refusal == HandshakeRefusal(Code.VERSION, "1.0")


def test_another_version_may_have_another_hello() -> None:
    """A hello of the future has other fields of other types; only its version is read."""
    greeter = Greeter(TOKEN, THEIRS, version="1.0")
    greeter.feed(Caller(TOKEN, OURS, Hello("join")).opening)
    raw = msgspec.msgpack.encode({"version": "2.0", "kind": 5, "facts": [1]})
    proof = prove(TOKEN, b"caller", OURS, THEIRS, raw)
    greeter.feed(struct.pack("<BH", 3, len(proof + raw)) + proof + raw)
    assert greeter.refusal == HandshakeRefusal(Code.VERSION, "it has 2.0, this run has 1.0")


@pytest.mark.parametrize(
    ("theirs", "ours", "refused"), [("a", "b", True), ("a", "a", False), ("", "b", False), ("a", "", False)]
)
def test_another_run_is_refused_where_both_say_which(theirs: str, ours: str, refused: bool) -> None:
    caller, greeter = Caller(TOKEN, OURS, Hello("join", run=theirs)), Greeter(TOKEN, THEIRS, run=ours)
    talk(caller, greeter)
    assert (greeter.refusal, caller.refusal) == (
        (HandshakeRefusal(Code.RUN, "it means run a, this is b"), HandshakeRefusal(Code.RUN, "b"))
        if refused
        else (None, None)
    )


def test_the_run_may_say_why_not() -> None:
    caller, greeter = Caller(TOKEN, OURS, Hello("join")), Greeter(TOKEN, THEIRS)
    talk(caller, greeter, reason="Torch differs: 2.8 here, 2.9 there.")
    assert caller.refusal == HandshakeRefusal(Code.NO, "Torch differs: 2.8 here, 2.9 there.")
    assert not caller.impostor


def test_a_reason_is_cut_to_its_bound() -> None:
    caller, greeter = Caller(TOKEN, OURS, Hello("join")), Greeter(TOKEN, THEIRS)
    talk(caller, greeter, reason="ü" * MAX_REASON)
    assert caller.refusal == HandshakeRefusal(Code.NO, "ü" * (MAX_REASON // 2))


@pytest.mark.parametrize(
    "raw", [b"", b"\xc1", b"\x91" * 10_000, msgspec.msgpack.encode({"version": VERSION, "kind": 1})]
)
def test_a_hello_that_makes_no_sense_is_refused(raw: bytes) -> None:
    greeter = Greeter(TOKEN, THEIRS)
    greeter.feed(Caller(TOKEN, OURS, Hello("join")).opening)
    proof = prove(TOKEN, b"caller", OURS, THEIRS, raw)
    greeter.feed(struct.pack("<BH", 3, len(proof + raw)) + proof + raw)
    assert greeter.refusal is not None and greeter.refusal.code is Code.HELLO


@pytest.mark.parametrize(
    ("data", "refusal"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", HandshakeRefusal(Code.STRANGER, "it began with b'GET / HTTP/1.1\\r\\n'")),
        (b"H\x00", HandshakeRefusal(Code.STRANGER, "it began with b'H\\x00'")),
        (b"\x16\x03\x01\x00\xf4", HandshakeRefusal(Code.TLS, "it speaks TLS, and this run does not")),
        (b"HOLDFAST\x03\x21\x00", HandshakeRefusal(Code.STRANGER, "it sent message 3 where 1 was due")),
        (b"HOLDFAST\x01\xff\xff", HandshakeRefusal(Code.LENGTH, LONG)),
        (b"HOLDFAST\x01\x21\x00\x07" + OURS, HandshakeRefusal(Code.PROTOCOL, "it speaks greeting 7")),
    ],
)
def test_what_is_no_greeting_is_refused_as_soon_as_it_can_be(data: bytes, refusal: HandshakeRefusal) -> None:
    greeter = Greeter(TOKEN, THEIRS)
    greeter.feed(data)
    assert greeter.refusal == refusal
    assert greeter.wanted == 0
    assert greeter.feed(b"more") == b""


def test_an_oversized_hello_is_refused_before_it_is_read() -> None:
    greeter = Greeter(TOKEN, THEIRS)
    greeter.feed(Caller(TOKEN, OURS, Hello("join")).opening)
    greeter.feed(struct.pack("<BH", 3, PROOF + MAX_HELLO + 1))
    assert greeter.refusal == HandshakeRefusal(
        Code.LENGTH, "it announced a message of 16417 bytes, where 32 to 16416 are taken"
    )
    with pytest.raises(ValueError, match=f"at most {MAX_HELLO}"):
        Caller(TOKEN, OURS, Hello("join", facts={"x": "y" * MAX_HELLO}))


@given(st.binary(max_size=400), st.booleans())
def test_whatever_comes_in_is_bounded_and_never_raises(data: bytes, after_magic: bool) -> None:
    for side in (Greeter(TOKEN, THEIRS), Caller(TOKEN, OURS, Hello("join"))):
        line = (b"HOLDFAST" if after_magic else b"") + data
        while line and side.wanted:
            piece, line = line[: side.wanted], line[side.wanted :]
            side.feed(piece)
            assert len(side._buffer) <= 11 + PROOF + MAX_HELLO
        assert not getattr(side, "welcome", False) and getattr(side, "hello", None) is None


@given(st.integers(0, 10_000), st.integers(0, 7))
def test_one_bit_that_flipped_on_the_way_lets_nobody_in(place: int, bit: int) -> None:
    recorded = bytearray(talk(Caller(TOKEN, OURS, Hello("join")), Greeter(TOKEN, THEIRS)))
    recorded[place % len(recorded)] ^= 1 << bit
    greeter = Greeter(TOKEN, THEIRS)
    greeter.feed(bytes(recorded))
    assert greeter.hello is None


def test_a_nonce_has_its_length() -> None:
    with pytest.raises(ValueError, match="a nonce of 3 bytes: must be 32"):
        Greeter(TOKEN, b"abc")
