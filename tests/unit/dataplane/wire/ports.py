"""A host's arena of a relaxed mode, worked on by hand."""

from __future__ import annotations

import torch

from holdfast.config.run_config import board_rows
from holdfast.core.sync.modes import TakenPush, commit_set, parse
from holdfast.dataplane.memory import manifest
from holdfast.dataplane.memory.arena import Arena
from holdfast.dataplane.memory.arena_view import ArenaView
from holdfast.dataplane.memory.board import Board, StepFacts
from holdfast.dataplane.memory.sections import lay_out, measure
from holdfast.dataplane.memory.space import Space, dtype_name
from holdfast.dataplane.reduce import optimizer
from holdfast.dataplane.reduce.schema import pin, probe
from holdfast.dataplane.relaxed.pushes import Pushes, PushRecord
from holdfast.dataplane.wire.primary_sync import PrimarySync
from tests.unit.dataplane.members import adam, model_of

__all__ = ["GENERATION", "LANES", "MINE", "THEIRS", "Port", "Replay"]

LANES = 4
MODE = parse("async")
ROWS = board_rows(LANES)
MINE, THEIRS = (0, 1), (2, 3)  #: lanes driven at the primary, and by the other host
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
    """One host's arena, with a state in it if it is the primary."""

    def __init__(self, *, primary: bool) -> None:
        model = model_of()
        user = adam(model)
        pin(user)
        space = Space([model], user)
        schemas = {
            (group, dtype_name(torch.float32)): probe(user, group, torch.float32)
            for group in range(len(user.param_groups))
        }
        room, state = space.room(LANES), optimizer.state_sizes(space, schemas)
        undo = optimizer.undo_bytes(space, schemas)
        sections = lay_out(measure(space, room, ROWS, state=state, undo=undo), MODE)
        data = manifest.add_section(sections, space, room, ROWS, relaxed=True)
        self.arena = Arena(sections)
        self.board = Board(self.arena.section("board"), LANES, ROWS, len(space.layout.slices))
        if primary:
            self.board.format()
        manifest.write_manifest(self.arena, self.board, data)
        memory = memoryview(self.arena._map)
        found = manifest.read_manifest(memory)
        assert found is not None
        self.view = ArenaView(memory, found)
        self.primary_sync = PrimarySync(self.view)

    @property
    def pushes(self) -> Pushes:
        return self.primary_sync.pushes

    def push(self, lane: int, value: int, lanes: int = 1) -> TakenPush:
        """A worker here computes the next unit of a lane, or of several from that one on."""
        push = TakenPush(lane, self.pushes.pushed(lane))
        for part in self.primary_sync.parts(push, 0, 1 << 20):
            self.primary_sync.part(part)[:] = bytes([value]) * (part.end - part.begin)
        self.pushes.push(lane, PushRecord(push.step, min(self.board.versions()), 8 * lanes, 0.5, 0.0, 0.0, lanes))
        return push

    def publish(self, value: int) -> list[TakenPush]:
        """The owners here take the next commit set, if there is one; all parameters become `value`."""
        version = min(self.board.versions())
        found = commit_set(MODE, self.pushes.clocks(version, 100))
        if found is None:
            return []
        self.pushes.decide(version, found)
        self.board.put_step(version + 1, StepFacts(0.25, 8 * (version + 1), 0.0))
        for index in range(len(self.view.manifest.slices)):
            place = self.view.run("parameters", index, index + 1)
            place[:] = bytes([value]) * place.nbytes
            self.board.publish(index, version + 1)
        return list(found)

    def shown(self) -> set[int]:
        """Which values the parameters have."""
        count = len(self.view.manifest.slices)
        return {byte for index in range(count) for byte in bytes(self.view.run("parameters", index, index + 1))}
