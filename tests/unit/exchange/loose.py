"""A worker with all lanes and slices where lanes need not keep step, in the middle of a pass."""

from __future__ import annotations

from holdfast.core.clocks import parse
from holdfast.core.staleness import Staleness
from holdfast.core.standing import Crewed
from holdfast.exchange import annex, optimizer
from holdfast.exchange.inner import Inner
from holdfast.exchange.local import Local, outer_optimizer
from holdfast.exchange.paced import Paced
from holdfast.exchange.pushes import Pushes
from holdfast.exchange.pushslots import PushSlots
from holdfast.transport.arena import Arena, Sections
from tests.unit.exchange.crewed import LANES, Worker

PLAIN = Staleness()


def paced_of(mode: str = "async", steps: int = 4, staleness: Staleness = PLAIN) -> Paced:
    """Three steps into a pass that goes on in another mode."""
    one = Worker(0, 0)
    sections = Sections()
    annex.add_sections(sections, one.space.room(LANES, reads=staleness.compensates), parse(mode))
    room = Arena(sections)
    paced = Paced(one.space, one.board, one.slots, one.slices, one.buffers, one.controls)
    pushes = Pushes(room.section("pushes"), LANES)
    pushes.go_on_from(3)
    pushes.begin(0, steps, 3, done=3)
    for index in range(len(one.space.layout.slices)):
        one.board.publish(index, 3)
    slots = PushSlots(one.space, room, LANES)
    paced.set_pace(parse(mode), staleness, pushes, slots, lambda step: one.member.hyper)
    paced.install(0, Crewed([0], [0], [0] * LANES))
    return paced


def local_of(steps: int = 10) -> Local:
    """Rounds of three steps; three steps of the pass were made in another mode, and 20 before it."""
    one, mode = Worker(0, 0), parse("local:3")
    sections = Sections()
    annex.add_sections(sections, one.room, mode)
    room = Arena(sections)
    local = Local(one.space, one.board, one.slots, one.slices, one.buffers, one.controls)
    pushes = Pushes(room.section("pushes"), LANES)
    pushes.go_on_from(23)
    pushes.begin(0, steps, 7, done=3, rounds=True)
    for index in range(len(one.space.layout.slices)):
        one.board.publish(index, 7)
    local.set_pace(mode, Staleness(), pushes, PushSlots(one.space, room, LANES), lambda step: one.member.hyper)
    sizes = optimizer.state_sizes(one.space, one.schemas)
    inner = Inner(lambda name: (room if annex.passing(name) else one.arena).section(name), sizes)
    inner.begin(7)
    local.set_inner(one.user, one.schemas, inner, outer_optimizer(one.user, 0.5, 0.5), lambda views: None)
    local.hyper = one.member.hyper
    local.install(0, Crewed([0], [0], [0] * LANES))
    return local
