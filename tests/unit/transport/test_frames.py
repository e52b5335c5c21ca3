"""Frames: what is packed is unpacked, in pieces of any size, and everything else is refused with a sentence."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import FrameError
from holdfast.transport.frames import HEADER, MAX_BODY, MAX_META, Frame, FrameParser, Header, Kind, pack, unpack

GENERATIONS = st.integers(0, 2**64 - 1)
KINDS = st.sampled_from(sorted(kind for kind in Kind if MAX_BODY[kind]))
Part = tuple[Kind, int, bytes, bytes]
PARTS = st.lists(st.tuples(KINDS, GENERATIONS, st.binary(max_size=40), st.binary(max_size=90)), max_size=5)


def header(kind: int = 6, zero: int = 0, meta: int = 0, generation: int = 1, body: int = 0, null: int = 0) -> bytes:
    """A header with a right checksum, whatever it says."""
    fields = struct.pack("<4sBBHQQI", b"HFD1", kind, zero, meta, generation, body, null)
    return fields + struct.pack("<I", zlib.crc32(fields))


@given(st.sampled_from(Kind), GENERATIONS, st.binary(max_size=100), st.data())
def test_what_is_packed_is_unpacked(kind: Kind, generation: int, meta: bytes, data: st.DataObject) -> None:
    body = data.draw(st.integers(0, MAX_BODY[kind]))
    packed = pack(kind, generation, meta, body)
    assert packed[HEADER:] == meta
    assert unpack(packed[:HEADER]) == Header(kind, len(meta), generation, body)
    assert unpack(memoryview(packed)[:HEADER], generation=generation).kind is kind


def test_the_layout_is_what_the_docstring_draws() -> None:
    assert pack(Kind.SUM, 3, b"", 7) == header(kind=6, generation=3, body=7)
    assert len(pack(Kind.SUM, 3)) == HEADER


def test_every_kind_has_a_bound() -> None:
    assert set(MAX_BODY) == set(Kind)
    assert [MAX_BODY[kind] for kind in (Kind.CONTROL, Kind.PIECE, Kind.BYE)] == [1 << 20, 64 << 20, 0]


@pytest.mark.parametrize(
    ("kind", "generation", "meta", "body", "why"),
    [
        (Kind.CONTROL, 1, b"x" * (MAX_META + 1), 0, "60001 bytes of meta: at most 60000"),
        (Kind.CONTROL, 1, b"", (1 << 20) + 1, "a body of 1048577 bytes: CONTROL takes 0 to 1048576"),
        (Kind.BYE, 1, b"", 1, "a body of 1 bytes: BYE takes 0 to 0"),
        (Kind.SUM, 1, b"", -1, "a body of -1 bytes: SUM takes 0 to 67108864"),
        (Kind.SUM, -1, b"", 0, "generation -1: must be 0 to 18446744073709551615"),
        (Kind.SUM, 2**64, b"", 0, "generation 18446744073709551616: must be 0 to 18446744073709551615"),
    ],
)
def test_nothing_is_packed_that_would_be_refused(kind: Kind, generation: int, meta: bytes, body: int, why: str) -> None:
    with pytest.raises(ValueError) as raised:
        pack(kind, generation, meta, body)
    assert str(raised.value) == why


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "a header of 0 bytes, where 32 are due"),
        (header() + b"x", "a header of 33 bytes, where 32 are due"),
        (b"GET / HTTP/1.1\r\n" * 2, "it begins with b'GET ', not with b'HFD1'"),
        (header()[:-1] + b"\x00", "the checksum of its header is wrong"),
        (header(zero=1), "a field of its header that must be zero is not"),
        (header(null=1), "a field of its header that must be zero is not"),
        (header(kind=0), "its kind is 0, which nobody knows"),
        (header(kind=99), "its kind is 99, which nobody knows"),
        (header(meta=MAX_META + 1), "it announces 60001 bytes of meta; at most 60000 are taken"),
        (header(kind=1, body=2**63), "it announces a body of 9223372036854775808 bytes; CONTROL takes at most 1048576"),
        (header(generation=4), "it is of generation 4, on a connection of generation 1"),
    ],
)
def test_what_is_no_header_is_refused_with_a_sentence(data: bytes, what: str) -> None:
    with pytest.raises(FrameError) as raised:
        unpack(data, generation=1)
    assert raised.value.what == what


@given(st.binary(min_size=HEADER, max_size=HEADER), st.integers(0, HEADER * 8 - 1))
def test_one_bit_that_flipped_is_seen(body: bytes, bit: int) -> None:
    damaged = bytearray(header(generation=int.from_bytes(body[:8], "little"), body=body[9]))
    damaged[bit // 8] ^= 1 << (bit % 8)
    with pytest.raises(FrameError):
        unpack(damaged)


@given(PARTS, st.lists(st.integers(1, 60), max_size=30))
def test_frames_come_out_whole_however_they_are_cut(parts: list[Part], cuts: list[int]) -> None:
    frames = [Frame(Header(k, len(m), g, len(b)), m, b) for k, g, m, b in parts]
    line = b"".join(pack(f.header.kind, f.header.generation, f.meta, f.header.body) + f.body for f in frames)
    parser, got, place = FrameParser(), [], 0
    for cut in [*cuts, len(line)]:
        got += parser.feed(line[place : place + cut])
        place += cut
    assert got == frames
    assert parser.wanted == HEADER


@given(PARTS)
def test_who_reads_what_is_wanted_never_holds_more_than_one_frame(parts: list[Part]) -> None:
    line = b"".join(pack(k, g, m, len(b)) + b for k, g, m, b in parts)
    parser, place, seen = FrameParser(), 0, 0
    while place < len(line):
        wanted = parser.wanted
        assert wanted > 0
        came = parser.feed(line[place : place + wanted])
        assert len(came) <= 1
        place, seen = place + wanted, seen + len(came)
    assert seen == len(parts)


@given(st.binary(max_size=200))
def test_whatever_comes_is_a_frame_or_an_error_and_nothing_is_kept_after_it(data: bytes) -> None:
    parser = FrameParser()
    try:
        parser.feed(data)
    except FrameError:
        with pytest.raises(FrameError):
            parser.feed(header())
        assert not parser._buffer
    else:
        assert parser.wanted > 0


def test_a_length_is_judged_before_its_bytes_are_waited_for() -> None:
    with pytest.raises(FrameError, match="announces a body of"):
        FrameParser().feed(header(kind=5, body=(64 << 20) + 1))


def test_a_connection_takes_only_its_kinds_and_its_generation() -> None:
    with pytest.raises(FrameError) as raised:
        FrameParser(kinds={Kind.CONTROL}).feed(header())
    assert raised.value.what == "its kind is SUM, which has no business on this connection"
    with pytest.raises(FrameError, match="it is of generation 1, on a connection of generation 2"):
        FrameParser(generation=2).feed(header())
