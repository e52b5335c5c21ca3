"""What goes beside gradients and parameters (FACTS, PUSHED, CLOCKS): whole, or refused before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.transfers import Facts
from holdfast.dataplane.memory.arena_view import ArenaView
from holdfast.dataplane.wire.packing import framed
from holdfast.dataplane.wire.primary_inbound import FromPrimary, Inbound, ToPrimary
from holdfast.dataplane.wire.receiver import Receiver
from holdfast.errors import FrameError
from holdfast.transport import frames
from holdfast.transport.frames import HEADER, MAX_BODY, Kind, pack, unpack
from tests.unit.dataplane.wire.ports import GENERATION, LANES, THEIRS, Port, Replay

WORD = st.integers(-(1 << 63), (1 << 63) - 1)
NUMBER = st.integers(-(1 << 63), (1 << 64) - 1)
FLOAT = st.floats()


class Place:
    """An arena that is as it was at the beginning of each example."""

    def __init__(self, port: Port, relaxed: Callable[[Port], Inbound] | None = None) -> None:
        self.view: ArenaView = port.view
        self._relaxed = relaxed(port) if relaxed else None
        self._was = bytes(self.view.memory)

    def land(self, data: bytes) -> str:
        """Land what has come; why it was refused, if so."""
        self.view.memory[:] = self._was
        receiver = Receiver(
            self.view, Replay(data), GENERATION, lambda: None, lambda: False, set(), lambda step: None,
            relaxed=self._relaxed,
        )  # type: ignore[arg-type]  # fmt: skip
        try:
            receiver.run()
        except EOFError:
            return ""
        except FrameError as error:
            return error.what
        raise AssertionError("there is no end to it")

    @property
    def untouched(self) -> bool:
        return bytes(self.view.memory) == self._was


@pytest.fixture(scope="module")
def exact() -> Place:
    return Place(Port(primary=True))


@pytest.fixture(scope="module")
def primary() -> Place:
    port = Port(primary=True)
    port.pushes.begin(0, 100, 0)
    return Place(port, lambda port: ToPrimary(port.primary_sync, THEIRS))


@pytest.fixture(scope="module")
def mirror() -> Place:
    port = Port(primary=True)
    return Place(port, lambda port: FromPrimary(port.primary_sync, THEIRS, row=0))


def frame(kind: Kind, meta: object, body: bytes) -> bytes:
    return b"".join(bytes(part) for part in framed(kind, GENERATION, msgspec.msgpack.encode(meta), body))


def changed(body: bytes, data: st.DataObject) -> bytes:
    """The same, cut off, longer, or with other bytes here and there."""
    made = bytearray(body)
    for at, value in data.draw(st.lists(st.tuples(st.integers(0, len(body) - 1), st.integers(0, 255)), max_size=4)):
        made[at] = value
    cut = data.draw(st.integers(0, len(made)))
    return bytes(data.draw(st.sampled_from([made, made[:cut], made + made[:cut], made[cut:]])))


def facts_of(place: Place, step: int, lanes: tuple[int, ...]) -> bytes:
    """What these lanes say of a step, all buffers changed."""
    view = place.view
    view.memory[:] = place._was
    flags = len(view.manifest.buffers)
    for lane in lanes:
        record = step % 2 * LANES + lane
        view._records._changed[record * flags : (record + 1) * flags] = b"\1" * flags
        view.board.facts_words(lane, step)[0] = step + 1
    return b"".join(view.facts(Facts(step, lanes)))


def test_facts_land_as_they_are(exact: Place) -> None:
    body = facts_of(exact, 4, (1, 2))
    assert exact.land(frame(Kind.FACTS, 4, body)) == ""
    assert exact.view.board.known(4) == [1, 2]
    assert b"".join(exact.view.facts(Facts(4, (1, 2)))) == body


def test_facts_of_which_the_second_lane_is_cut_off_leave_the_first_as_it_was(exact: Place) -> None:
    body = facts_of(exact, 4, (1, 2))
    assert exact.land(frame(Kind.FACTS, 4, body[:-1])) == (
        f"its facts have {len(body) - 1} bytes, where {len(body)} are due (it came from 10.0.0.9:4000)"
    )
    assert exact.untouched
    assert exact.land(frame(Kind.FACTS, 6, body)) == (
        "facts of step 6 are marked as those of step 4 (it came from 10.0.0.9:4000)"
    )
    assert exact.untouched


@given(st.data())
def test_facts_are_whole_or_refused(exact: Place, data: st.DataObject) -> None:
    body = changed(facts_of(exact, 4, (1, 2)), data)
    step = data.draw(st.just(4) | NUMBER)
    if exact.land(frame(Kind.FACTS, step, body)):
        assert exact.untouched


@given(st.binary(max_size=300))
def test_facts_of_any_bytes_are_refused(exact: Place, body: bytes) -> None:
    assert exact.land(frame(Kind.FACTS, 4, body)) or not body
    assert exact.untouched


RECORD = st.tuples(st.just(0) | NUMBER, NUMBER, NUMBER, FLOAT, FLOAT, FLOAT, st.integers(0, LANES + 1) | NUMBER)


def pushed_of(place: Place) -> bytes:
    manifest = place.view.manifest
    return bytes(manifest.entries) + b"\1" * len(manifest.buffers) + bytes(sum(size for _, size in manifest.buffers))


def test_a_push_counts_as_it_is(primary: Place) -> None:
    assert primary.land(frame(Kind.PUSHED, [2, (0, 0, 8, 0.5, 0.0, 0.0)], pushed_of(primary))) == ""
    assert not primary.untouched


@given(st.data(), st.sampled_from(range(-1, LANES + 1)) | NUMBER, RECORD)
def test_a_push_is_whole_or_refused(primary: Place, data: st.DataObject, lane: int, record: tuple[Any, ...]) -> None:
    if primary.land(frame(Kind.PUSHED, [lane, record], changed(pushed_of(primary), data))):
        assert primary.untouched


def clocks_of(version: int, pushed: list[int], **other: int) -> list[object]:
    told = [version, other.get("op", 1), other.get("total", 100), 0, 0, pushed, pushed, pushed, True]
    return [told, (0.5, 8, 0.0, 0)]


def buffers_of(place: Place) -> bytes:
    return bytes(place.view.manifest.sections["buffers-versions"][1] + place.view.manifest.buffers_size)


def test_clocks_are_shown_as_they_are(mirror: Place) -> None:
    assert mirror.land(frame(Kind.CLOCKS, clocks_of(0, [1] * LANES), buffers_of(mirror))) == ""
    assert not mirror.untouched


def test_a_clock_that_fits_into_no_word_moves_none_of_them(mirror: Place) -> None:
    clocks = clocks_of(0, [1] * (LANES - 1) + [1 << 63])
    refused = mirror.land(frame(Kind.CLOCKS, clocks, buffers_of(mirror)))
    assert refused.startswith("its meta is not what a CLOCKS has: Expected `int` <= 274877906943")
    assert refused.endswith("(it came from 10.0.0.9:4000)")
    assert mirror.untouched


@given(st.data(), NUMBER, st.lists(NUMBER, min_size=LANES - 1, max_size=LANES + 1), NUMBER, NUMBER)
def test_clocks_are_whole_or_refused(
    mirror: Place, data: st.DataObject, version: int, pushed: list[int], op: int, total: int
) -> None:
    meta = clocks_of(version, pushed, op=op, total=total)
    if mirror.land(frame(Kind.CLOCKS, meta, changed(buffers_of(mirror), data))):
        assert mirror.untouched


@given(st.data())
def test_slices_are_whole_or_refused(mirror: Place, data: st.DataObject) -> None:
    sizes = mirror.view.manifest.sizes()
    first, versions = data.draw(st.integers(-1, len(sizes)) | NUMBER), data.draw(st.lists(NUMBER, max_size=3))
    body = bytes(sum(sizes[max(0, min(first, len(sizes))) : max(0, min(first, len(sizes)) + len(versions))]))
    if mirror.land(frame(Kind.SLICES, [first, versions], changed(body, data) if body else b"")):
        assert mirror.untouched


# ---------------------------------------------------------------- parts


def test_two_lanes_with_33_mb_of_buffers_each_are_two_frames() -> None:
    body = bytes(66 << 20)
    buffers = framed(Kind.FACTS, 3, b"m", body)
    headers = [unpack(bytes(part[:HEADER])) for part in buffers[::2]]
    assert [(header.kind, header.meta, header.body) for header in headers] == [
        (Kind.PART, 0, 64 << 20), (Kind.FACTS, 1, 2 << 20),
    ]  # fmt: skip
    assert sum(len(part) for part in buffers[1::2]) == len(body)
    assert len(framed(Kind.FACTS, 3, b"m", bytes(MAX_BODY[Kind.FACTS]))) == 2
    assert len(framed(Kind.CLOCKS, 3, b"m", b"")) == 1


@contextmanager
def _small() -> Iterator[None]:
    """Frames of a few bytes."""
    with pytest.MonkeyPatch.context() as patch:
        for kind in (Kind.FACTS, Kind.PUSHED, Kind.CLOCKS, Kind.PART):
            patch.setitem(frames.MAX_BODY, kind, 64)
        yield


def test_each_of_them_lands_from_parts_as_from_one_frame(exact: Place, primary: Place, mirror: Place) -> None:
    for place, kind, meta, body in (
        (exact, Kind.FACTS, 4, facts_of(exact, 4, (1, 2))),
        (primary, Kind.PUSHED, [2, (0, 0, 8, 0.5, 0.0, 0.0)], pushed_of(primary)),
        (mirror, Kind.CLOCKS, clocks_of(0, [1] * LANES), buffers_of(mirror)),
    ):
        assert place.land(frame(kind, meta, body)) == ""
        whole = bytes(place.view.memory)
        with _small():
            parts = frame(kind, meta, body)
            assert parts.count(b"HFD1") > 2
            assert place.land(parts) == ""
        assert bytes(place.view.memory) == whole and not place.untouched


def test_parts_have_a_bound_and_belong_to_what_may_be_large(exact: Place) -> None:
    most = exact.view.most_facts()
    part = pack(Kind.PART, GENERATION, b"", most) + bytes(most)
    assert exact.land(part) == ""
    assert exact.land(part + pack(Kind.PART, GENERATION, b"", 1)) == (
        f"parts of {most + 1} bytes, where {most} are the most there can be (it came from 10.0.0.9:4000)"
    )
    assert exact.land(part + pack(Kind.ROWS, GENERATION, msgspec.msgpack.encode([]))) == (
        "a ROWS comes after parts, and has none (it came from 10.0.0.9:4000)"
    )
    assert exact.untouched
