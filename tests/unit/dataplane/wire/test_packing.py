"""What is packed for another host, and that nothing is forgotten when the script goes on quickly."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.dataplane.memory import board as cells
from holdfast.dataplane.memory.arena_view import ArenaView
from holdfast.dataplane.memory.manifest import read_manifest
from holdfast.dataplane.wire.packing import Buffers, Packer
from holdfast.train.evaluation import Table
from holdfast.transport.frames import HEADER, Kind, unpack
from tests.unit.dataplane.members import Worker


@pytest.fixture
def worker() -> Worker:
    return Worker(0, 0)


def packer_of(worker: Worker, rows: range = range(2)) -> Packer:
    memory = memoryview(worker.arena._map)
    manifest = read_manifest(memory)
    assert manifest is not None
    return Packer(ArenaView(memory, manifest), 3, rows, lambda row: row % 2 == 0)


def table_rows(buffers: Buffers) -> list[int]:
    """The rows of the table among what was packed."""
    heads = [bytes(b) for b in buffers if bytes(b[:4]) == b"HFD1"]
    packed = [head[HEADER:] for head in heads if unpack(head[:HEADER]).kind is Kind.TABLE]
    return [row for meta in packed for row in msgspec.msgpack.decode(meta)[1]]


def test_rows_of_an_evaluation_are_packed_once_and_only_those_computed_here(worker: Worker) -> None:
    packer, table = packer_of(worker), Table(worker.arena)
    worker.board.begin_op(0, 0, 4)
    assert table_rows(packer.changes()) == []
    for row in (0, 1, 2):
        table.put(row, 1, 10, {"loss": 0.5})
    assert table_rows(packer.changes()) == [0, 2]
    table.put(3, 1, 10, {"loss": 0.5})
    assert table_rows(packer.changes()) == []


def test_rows_are_packed_also_when_the_script_has_gone_on_before_we_looked(worker: Worker) -> None:
    packer, table = packer_of(worker), Table(worker.arena)
    worker.board.begin_op(0, 0, 4)
    for row in range(4):
        table.put(row, 1, 10, {"loss": 0.5})
    worker.board.begin_op(1, 0, 0)  # a loop over the loader
    assert table_rows(packer.changes()) == [0, 2]
    assert table_rows(packer.changes()) == []


def test_rows_that_are_there_when_a_generation_begins_are_packed_whoever_computed_them(worker: Worker) -> None:
    table = Table(worker.arena)
    worker.board.begin_op(0, 0, 3)
    for row in (0, 1):
        table.put(row, 1, 10, {"loss": 0.5})
    packer = packer_of(worker)
    assert table_rows(packer.changes()) == [0, 1]
    table.put(2, 1, 10, {"loss": 0.5})
    assert table_rows(packer.changes()) == [2]


def test_the_next_evaluation_begins_with_nothing_sent(worker: Worker) -> None:
    packer, table = packer_of(worker), Table(worker.arena)
    for op in (0, 1):
        worker.board.begin_op(op, 0, 2)
        table.put(0, op + 1, 10, {"loss": 0.5})
        assert table_rows(packer.changes()) == [0]


def test_where_workers_stand_is_packed_when_it_changes(worker: Worker) -> None:
    packer = packer_of(worker)
    assert len(packer.where(tuple(map(packer.view.row, packer.rows)))) == 1
    assert packer.where(tuple(map(packer.view.row, packer.rows))) == []
    worker.board.put(2, 7)  # R_ARRIVED
    (frame,) = packer.where(tuple(map(packer.view.row, packer.rows)))
    assert msgspec.msgpack.decode(bytes(frame)[HEADER:])[0] == [0, 0, 7, -1, 0, 0, 0]
    worker.board.put(cells.R_LINE, 12)
    worker.board.put(cells.R_ENDED, 3)
    assert packer.where(tuple(map(packer.view.row, packer.rows))) == [], "it goes with the next arrival"
    worker.board.put(cells.R_ARRIVED, 8)
    (frame,) = packer.where(tuple(map(packer.view.row, packer.rows)))
    assert msgspec.msgpack.decode(bytes(frame)[HEADER:])[0] == [0, 0, 8, -1, 12, 3, 0]
