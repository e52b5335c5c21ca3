"""On which machine a replica is to be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.serve.dispatch.placement import MachineRoom, choose, relieve

ROOM = st.builds(MachineRoom, st.integers(0, 99), st.integers(0, 8), st.integers(0, 12), st.booleans())
MACHINES = st.lists(ROOM, max_size=6, unique_by=lambda one: one.number)


def test_a_replica_goes_where_most_room_is_left_for_what_is_there():
    assert choose([MachineRoom(0, 2, 0), MachineRoom(1, 4, 0)]) == 1
    assert choose([MachineRoom(0, 2, 0), MachineRoom(1, 4, 2)]) == 0
    assert choose([MachineRoom(0, 0, 0), MachineRoom(1, 1, 5)]) == 1, "there may be more than there is room for"
    assert choose([MachineRoom(0, 0, 0)]) is None


def test_a_machine_that_has_failed_is_better_than_none():
    assert choose([MachineRoom(0, 1, 3), MachineRoom(1, 9, 0, avoided=True)]) == 0
    assert choose([MachineRoom(1, 9, 0, avoided=True)]) == 1


def test_only_a_machine_with_too_many_gives_away_and_only_where_there_is_room():
    assert relieve([MachineRoom(0, 2, 3), MachineRoom(1, 2, 1)]) == 0
    assert relieve([MachineRoom(0, 2, 2), MachineRoom(1, 2, 0)]) is None
    assert relieve([MachineRoom(0, 2, 3), MachineRoom(1, 2, 2)]) is None
    assert relieve([MachineRoom(0, 2, 3), MachineRoom(1, 2, 1, avoided=True)]) is None


def test_a_machine_that_is_to_leave_gives_all_it_has_whether_or_not_there_is_room():
    assert relieve([MachineRoom(0, 1, 1), MachineRoom(1, 0, 2)]) == 1
    assert relieve([MachineRoom(1, 0, 2)]) is None, "nobody is there to take them"


@given(MACHINES)
def test_moving_comes_to_an_end(machines):
    """Each replica that is moved goes where it is chosen to, and stays."""
    for _ in range(sum(one.replicas for one in machines) + 1):
        crowded = relieve(machines)
        if crowded is None:
            return
        goes = choose(machines)
        assert goes is not None and goes != crowded
        machines = [
            one._replace(replicas=one.replicas + (one.number == goes) - (one.number == crowded)) for one in machines
        ]
    raise AssertionError(f"it goes on: {machines}")
