"""Where a late worker enters a loop is found on its host, however far the workers of other hosts are.

A crew of one host steps a scheduler once a turn; a new host has fetched the state, and what comes from the crew since.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch

from holdfast.dataplane.memory.arena_view import ArenaView
from holdfast.dataplane.memory.manifest import read_manifest
from holdfast.dataplane.memory.results import NESTED
from holdfast.dataplane.memory.sections import CELL, CELL_HEAD
from holdfast.dataplane.wire.packing import Packer
from holdfast.dataplane.wire.receiver import Receiver
from holdfast.dataplane.wire.state_transfer import fetch, send_state
from holdfast.train.loop.optimizer_settings import Settings
from holdfast.train.loop.script_position import STEPS
from holdfast.transport.frames import HEADER, Kind
from holdfast.transport.stream import PlainStream
from tests.unit.dataplane.members import Worker

LOOP, EVALUATION, NEXT = 0, 1, 2  # operations of the script
Hook = Callable[[str], None]  # told of every section as it is sent


class Script:
    """What a worker's script does to its scheduler and to the arena."""

    def __init__(self, number: int, *, empty: bool = False) -> None:
        self.worker = Worker(number, number, empty=empty)
        parameter = torch.nn.Parameter(torch.zeros(1))
        self.optimizer = torch.optim.SGD([parameter], lr=1.0)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, gamma=0.5)
        self.optimizer.step()  # torch asks for it before the scheduler's
        self.settings = Settings(self.optimizer, [self.scheduler])
        self.settings.attach(self.worker.arena, number)
        memory = memoryview(self.worker.arena._map)
        manifest = read_manifest(memory)
        assert manifest is not None
        self.view = ArenaView(memory, manifest)
        self.packer = Packer(self.view, 1, range(self.view.manifest.rows), lambda row: True)

    @property
    def rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def begin(self, op: int, step: int, kind: int = STEPS) -> None:
        self.settings.enter(step, op)
        self.worker.board.begin_op(op * NESTED, step, kind)

    def turn(self, op: int, step: int) -> None:
        """The top of a turn."""
        self.settings.enter_turn(step, op * NESTED, step, {}, {"i": str(step)})

    def over(self, op: int, step: int) -> None:
        """The turn before `step` has ended, and with it the loop."""
        self.scheduler.step()
        self.settings.leave_turns(step, op * NESTED, step)

    def late(self, op: int, version: int) -> tuple[int, bool, float]:
        """(step, whether that is the loop's end, rate there) of the place where a late worker enters; step -1: none."""
        place = self.settings.enter_late(op, version)
        return place.step, place.left, self.rate


def take_state(of: Script, to: Script, sent: Hook = lambda section: None) -> None:
    """Have a new host fetch the state."""
    ours, theirs = PlainStream.pair()

    def send(*buffers: Any) -> None:
        ours.send(*buffers)
        sent(msgspec.msgpack.decode(bytes(buffers[0])[HEADER:])[0])

    sending = threading.Thread(target=lambda: send_state(of.view, send, 1, lambda: False))
    sending.start()
    try:
        fetch(to.view, theirs, 1)
    finally:
        sending.join()
        ours.close()
        theirs.close()


def carry(of: Script, to: Script) -> int:
    """Have what has changed in the settings come to another host. Returns how many cells that were."""
    ours, theirs = PlainStream.pair()
    receiver = Receiver(to.view, theirs, 1, lambda: None, lambda: False, set(), lambda step: None)
    buffers = of.packer.changes()
    ours.send(*buffers)
    ours.close()
    with pytest.raises((EOFError, OSError)):
        receiver.run()
    theirs.close()
    return sum(bytes(b[4:5]) == bytes([Kind.SETTINGS]) for b in buffers if bytes(b[:4]) == b"HFD1")


def test_who_stands_in_the_last_turn_of_a_loop_finds_it_when_the_others_are_in_the_next_loop() -> None:
    crew, new = Script(0), Script(1, empty=True)
    crew.begin(LOOP, 0)
    crew.turn(LOOP, 0)
    take_state(crew, new)  # at version 0, which is the last turn's
    assert new.late(LOOP, 0) == (0, False, 1.0)
    crew.over(LOOP, 1)
    carry(crew, new)
    crew.begin(EVALUATION, 1, 3)
    carry(crew, new)
    crew.begin(NEXT, 1)
    crew.turn(NEXT, 1)
    carry(crew, new)
    crew.scheduler.step()
    crew.turn(NEXT, 2)
    carry(crew, new)
    later = Script(2)  # a worker of the new host that has not looked before
    later.settings.attach(new.worker.arena, 2)
    assert later.late(LOOP, 0) == (0, False, 1.0)
    assert later.late(LOOP, 1) == (0, False, 1.0)  # it makes the calls of the turn's end itself
    assert [told["i"] for told in later.settings.told(2, here=[]).values()] == ["2"], "that is here, too"


def test_a_state_holds_the_settings_that_go_with_where_its_script_stands() -> None:
    """The crew's script goes on, from its last turn into the evaluation, in the middle of sending."""
    crew, new = Script(0), Script(1, empty=True)
    crew.begin(LOOP, 0)
    crew.turn(LOOP, 0)

    def go_on(section: str) -> None:
        if section == "settings" and crew.worker.board.op()[0] == LOOP:
            crew.over(LOOP, 1)
            crew.begin(EVALUATION, 1, 3)

    take_state(crew, new, go_on)
    assert crew.worker.board.op()[0] == EVALUATION * NESTED
    if new.worker.board.op()[0] == LOOP:
        assert new.late(LOOP, 1) == (0, False, 1.0), "it makes the calls of the turn's end itself"
    else:
        assert new.late(LOOP, 1) == (1, True, 0.5)


def test_what_was_entered_is_entered_again_where_others_have_written_over_it() -> None:
    """As after a turn that is only rehearsed."""
    crew, late = Script(0), Script(1)
    late.settings.attach(crew.worker.arena, 1)
    crew.begin(LOOP, 0)
    crew.turn(LOOP, 0)
    crew.over(LOOP, 1)
    assert late.late(LOOP, 1) == (1, True, 0.5)
    crew.begin(NEXT, 1)
    for step in (1, 2, 3):
        crew.turn(NEXT, step)
        crew.scheduler.step()
    late.scheduler.step()  # the rehearsal
    assert late.late(LOOP, 1) == (1, True, 0.5)
    assert late.late(EVALUATION, 1)[0] == -1


def test_a_cell_that_is_written_anew_under_the_same_tag_is_sent_anew_and_one_that_is_being_written_later() -> None:
    crew, new = Script(0), Script(1)
    crew.begin(LOOP, 0)
    assert (carry(crew, new), carry(crew, new)) == (1, 0)
    assert new.late(LOOP, 0)[0] == -1
    crew.turn(LOOP, 0)
    assert (carry(crew, new), carry(crew, new)) == (1, 0)
    assert new.late(LOOP, 0) == (0, False, 1.0)
    crew.turn(LOOP, 1)
    cell, head = next((cell, head) for cell, head in crew.view.cells([0]).items() if head.tag >> 32 == 1)
    words = crew.view.section("settings")[cell * CELL :][:CELL_HEAD].cast("q")
    words[0] = 0
    assert crew.view.cell(cell) is None and carry(crew, new) == 0
    words[0] = head.tag
    assert carry(crew, new) == 1
