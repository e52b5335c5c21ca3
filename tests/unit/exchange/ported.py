"""A host's arena whose lanes need not keep step, worked on by hand."""

from __future__ import annotations

import torch

from holdfast.config.run import board_rows
from holdfast.core.clocks import Taken, docket, parse
from holdfast.exchange import annex, buffers, chart, optimizer, slots
from holdfast.exchange.board import Board, StepFacts, board_bytes
from holdfast.exchange.hold import Hold
from holdfast.exchange.pushes import Pushes, Record
from holdfast.exchange.schema import pin, probe
from holdfast.exchange.space import Space, dtype_name
from holdfast.exchange.tender import Tender
from holdfast.train import evaluation, schedule
from holdfast.transport.arena import Arena, Sections

from .crewed import adam, model_of

__all__ = ["GENERATION", "LANES", "MINE", "THEIRS", "Port", "Replay"]

LANES = 4
MODE = parse("async")
ROWS = board_rows(LANES)
MINE, THEIRS = (0, 1), (2, 3)  #: lanes driven at home, and by the other host
GENERATION = 5


class Replay:
    """A connection over which all of this has come."""

    peer = "10.0.0.9:4000"

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    def recv_into(self, view: memoryview) -> None:
        if len(self._data) < len(view):
            raise EOFError
        view[:], self._data = self._data[: len(view)], self._data[len(view) :]


class Port:
    """One host's arena, with a state in it if it is the home."""

    def __init__(self, *, home: bool) -> None:
        model = model_of()
        user = adam(model)
        pin(user)
        space = Space([model], user)
        schemas = {
            (group, dtype_name(torch.float32)): probe(user, group, torch.float32)
            for group in range(len(user.param_groups))
        }
        sections = Sections()
        sections.add("board", board_bytes(LANES, ROWS, len(space.layout.slices)))
        optimizer.add_sections(sections, space, schemas, ROWS)
        slots.add_sections(sections, space, LANES)
        buffers.add_sections(sections, space, LANES)
        room = space.room(LANES)
        annex.add_sections(sections, room, MODE)
        schedule.add_sections(sections, ROWS)
        evaluation.add_sections(sections)
        data = chart.add_section(sections, space, room, ROWS, paced=True)
        self.arena = Arena(sections)
        self.board = Board(self.arena.section("board"), LANES, ROWS, len(space.layout.slices))
        if home:
            self.board.format()
        chart.write_chart(self.arena, self.board, data)
        memory = memoryview(self.arena._map)
        found = chart.read_chart(memory)
        assert found is not None
        self.hold = Hold(memory, found)
        self.tender = Tender(self.hold)

    @property
    def pushes(self) -> Pushes:
        return self.tender.pushes

    def push(self, lane: int, value: int) -> Taken:
        """A worker here computes the lane's next unit."""
        push = Taken(lane, self.pushes.pushed(lane))
        for part in self.tender.parts(push, 0, 1 << 20):
            self.tender.part(part)[:] = bytes([value]) * (part.end - part.begin)
        self.pushes.push(lane, Record(push.step, min(self.board.versions()), 8, 0.5, 0.0, 0.0))
        return push

    def publish(self, value: int) -> list[Taken]:
        """The owners here take the next docket, if there is one; all parameters become `value`."""
        version = min(self.board.versions())
        found = docket(MODE, self.pushes.clocks(version, 100))
        if found is None:
            return []
        self.pushes.decide(version, found)
        self.board.put_step(version + 1, StepFacts(0.25, 8 * (version + 1), 0.0))
        for index in range(len(self.hold.chart.slices)):
            place = self.hold.run("parameters", index, index + 1)
            place[:] = bytes([value]) * place.nbytes
            self.board.publish(index, version + 1)
        return list(found)

    def shown(self) -> set[int]:
        """Which values the parameters have."""
        count = len(self.hold.chart.slices)
        return {byte for index in range(count) for byte in bytes(self.hold.run("parameters", index, index + 1))}
