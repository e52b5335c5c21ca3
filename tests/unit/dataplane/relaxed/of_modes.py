"""A worker with all lanes and slices in relaxed modes, in the middle of a pass."""

from __future__ import annotations

from holdfast.core.roles import Assignment
from holdfast.core.shares import Share
from holdfast.core.sync.modes import parse
from holdfast.core.sync.staleness import Staleness
from holdfast.dataplane.memory.arena import Arena
from holdfast.dataplane.memory.sections import lay_out_mode, passing
from holdfast.dataplane.reduce import optimizer
from holdfast.dataplane.relaxed.inner_state import InnerState
from holdfast.dataplane.relaxed.local_sgd import LocalMember, outer_optimizer
from holdfast.dataplane.relaxed.push_gradients import PushGradients
from holdfast.dataplane.relaxed.pushes import Pushes
from holdfast.dataplane.relaxed.relaxed_member import RelaxedMember
from tests.unit.dataplane.members import LANES, Worker

PLAIN = Staleness()
ALL = Share(0, LANES)


def relaxed_of(mode: str = "async", steps: int = 4, staleness: Staleness = PLAIN) -> RelaxedMember:
    """Three steps into a pass that goes on in another mode."""
    one = Worker(0, 0)
    sections = lay_out_mode(one.space.room(LANES, reads=staleness.compensates), parse(mode))
    room = Arena(sections)
    relaxed = RelaxedMember(one.space, one.board, one.gradients, one.slices, one.buffers, one.controls)
    pushes = Pushes(room.section("pushes"), LANES)
    pushes.go_on_from(3)
    pushes.begin(0, steps, 3, done=3)
    for index in range(len(one.space.layout.slices)):
        one.board.publish(index, 3)
    gradients = PushGradients(one.space, room, LANES)
    relaxed.set_pace(parse(mode), staleness, pushes, gradients, lambda step: one.member.hyper)
    relaxed.install(0, Assignment([0], [0], [0] * LANES))
    return relaxed


def drive(member: RelaxedMember, *lanes: int) -> None:
    """It drives these lanes from now on, and owns all slices; another worker drives the rest."""
    driver = [0 if lane in lanes else 1 for lane in range(LANES)]
    member.at = type(member.at)(worker=0, owner=[0] * len(member.at.owner), driver=driver, members=(0, 1))


def local_of(steps: int = 10) -> LocalMember:
    """Rounds of three steps; three steps of the pass were made in another mode, and 20 before it."""
    one, mode = Worker(0, 0), parse("local:3")
    sections = lay_out_mode(one.room, mode)
    room = Arena(sections)
    on_host = LocalMember(one.space, one.board, one.gradients, one.slices, one.buffers, one.controls)
    pushes = Pushes(room.section("pushes"), LANES)
    pushes.go_on_from(23)
    pushes.begin(0, steps, 7, done=3, rounds=True)
    for index in range(len(one.space.layout.slices)):
        one.board.publish(index, 7)
    on_host.set_pace(mode, Staleness(), pushes, PushGradients(one.space, room, LANES), lambda step: one.member.hyper)
    sizes = optimizer.state_sizes(one.space, one.schemas)
    inner = InnerState(lambda name: (room if passing(name) else one.arena).section(name), sizes)
    inner.begin(7)
    on_host.set_inner(one.user, one.schemas, inner, outer_optimizer(one.user, 0.5, 0.5), lambda views: None)
    on_host.hyper = one.member.hyper
    on_host.install(0, Assignment([0], [0], [0] * LANES))
    return on_host
