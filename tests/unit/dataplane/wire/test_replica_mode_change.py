"""What becomes of a replica's copy when the mode changes: just what becomes of the state at the primary, bit by bit."""

from __future__ import annotations

import pytest

from holdfast.dataplane.memory import board as cells
from holdfast.dataplane.memory.arena_view import ArenaView
from holdfast.dataplane.relaxed.inner_state import SINCE
from holdfast.dataplane.relaxed.pushes import ToldClocks
from holdfast.dataplane.wire.primary_sync import PrimarySync
from holdfast.dataplane.wire.replica import Replica
from tests.unit.dataplane.members import LANES
from tests.unit.dataplane.memories import Stepped, inner_of, make_a_round, parameters_of, state_of

GENERATION = 4


def copied(view: ArenaView, version: int) -> Replica:
    """A replica that has all of a version."""
    replica = Replica()
    replica.keep(view, GENERATION, version, 10 * version)
    assert replica.version == version
    return replica


class Elsewhere(Stepped):
    """The memory of another host, which mirrors the primary."""

    def __init__(self) -> None:
        super().__init__()
        self.map_state(7)
        view = self.host_memory.view()
        assert view is not None
        view.board.words[cells.H_MIRROR] = 1

    def map_state(self, byte: int) -> None:
        """Nothing of what is here may be taken for what came."""
        view = self.host_memory.view()
        assert view is not None
        for name in view.manifest.whole():
            view.section(name)[:] = bytes([byte]) * view.manifest.sections[name][1]


def everything(view: ArenaView) -> dict[str, bytes]:
    """The state, without what nobody reads: lanes' optimizers before the first round, and in other turns."""
    version = min(view.board.versions())
    found = {name: bytes(view.section(name)) for name in view.manifest.whole() if not name.startswith("inner/")}
    if view.manifest.rounds:
        inner = inner_of(view)
        found[SINCE] = bytes(view.section(SINCE))
        for lane in range(LANES):
            found |= {f"{lane}/{name}": bytes(data) for name, data in inner.at(lane, version).items()}
    return found


def clocks(view: ArenaView, version: int) -> ToldClocks | None:
    return PrimarySync(view).pushes.told(version) if view.manifest.relaxed else None


@pytest.mark.parametrize("sync", ["exact", "bounded:2"])
@pytest.mark.parametrize("made", [0, 1, 2])
def test_after_local_steps_a_copy_has_the_mean_of_the_lanes_as_the_primary_has(sync: str, made: int) -> None:
    primary, other = Stepped(), Elsewhere()
    view, version = primary.turn(1, "local:4", 1), 1 + made
    other.turn(1, "local:4", 1)
    for at in range(1, version):
        make_a_round(view, at)
    view.section("outer/ready")[0] = 1
    owners = state_of(view)
    replica = copied(view, version)
    now, then = primary.turn(2, sync, version), other.turn(2, sync, version)
    other.map_state(9)
    replica.install(then)
    assert everything(then) == everything(now) and then.board.level() == now.board.level() == version
    assert (state_of(then) != owners) == (made > 0) and not then.board.words[cells.H_MIRROR]
    assert clocks(then, version) == _unsettled(clocks(now, version))


@pytest.mark.parametrize("sync", ["exact", "async"])
def test_where_local_steps_begin_a_copy_begins_with_what_the_owners_had(sync: str) -> None:
    """And with no outer momentum, whatever lies in the memory of that host."""
    primary, other = Stepped(), Elsewhere()
    view = primary.turn(1, sync, 1)
    other.turn(1, sync, 1)
    replica = copied(view, 1)
    now, then = primary.turn(2, "local:4", 1), other.turn(2, "local:4", 1)
    other.map_state(9)
    replica.install(then)
    assert everything(then) == everything(now) and inner_of(then).since == 1
    assert not any(any(then.section(name)) for name in then.manifest.whole() if name.startswith("outer/"))
    assert clocks(then, 1) == _unsettled(clocks(now, 1))


def test_rounds_of_another_length_go_on_with_what_lanes_and_owners_have_in_the_copy() -> None:
    """But not with the clocks: those count rounds."""
    primary, other = Stepped(), Elsewhere()
    view = primary.turn(1, "local:4", 1)
    other.turn(1, "local:4", 1)
    PrimarySync(view).pushes.begin(0, 90, 1, done=5, rounds=True)
    make_a_round(view, 1)
    view.section("outer/ready")[0] = 1
    replica = copied(view, 2)
    now, then = primary.turn(2, "local:9", 2), other.turn(2, "local:9", 2)
    other.map_state(9)
    replica.install(then)
    assert everything(then) == everything(now)
    assert inner_of(then).since == 1 and then.section("outer/ready")[0] == 1
    assert clocks(then, 2) == _unsettled(clocks(now, 2))


@pytest.mark.parametrize("between", ["exact", "bounded:0"])
def test_from_local_steps_to_local_steps_without_a_step_in_between(between: str) -> None:
    """A copy that says it holds what the primary begins with takes each mode up: then it does."""
    primary, other = Stepped(), Elsewhere()
    view = primary.turn(1, "local:4", 1)
    other.turn(1, "local:4", 1)
    make_a_round(view, 1)
    view.section("outer/ready")[0] = 1
    replica = copied(view, 2)
    for serial, sync in ((2, between), (3, "local:4"), (4, between), (5, "local:2")):
        now, then = primary.turn(serial, sync, 2), other.turn(serial, sync, 2)
        replica.take_up(then)
    replica.take_up(then)
    other.map_state(9)
    replica.install(then)
    assert everything(then) == everything(now) and inner_of(then).since == 2
    assert not any(then.section("outer/ready"))
    make_a_round(now, 2)
    make_a_round(then, 2)
    now, then = primary.turn(6, "exact", 3), other.turn(6, "exact", 3)
    assert state_of(then) == state_of(now) and parameters_of(then) == parameters_of(now)


def test_a_copy_of_another_mode_is_not_taken_for_one_of_this() -> None:
    """How far lanes are in it would not be known."""
    primary, other = Stepped(), Elsewhere()
    view = primary.turn(1, "local:4", 1)
    make_a_round(view, 1)
    replica = copied(view, 2)
    with pytest.raises(AssertionError, match="a copy of version 2 is of another mode than ModeRecord"):
        replica.install(other.turn(2, "bounded:2", 5))


def _unsettled(told: ToldClocks | None) -> ToldClocks | None:
    """Whoever inherits shows nothing before other replicas hold as much."""
    return None if told is None else ToldClocks(*(getattr(told, name) for name in told.__struct_fields__[:-1]), False)
