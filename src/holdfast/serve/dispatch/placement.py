"""On which machine a replica is to be. Pure.

Every machine has room for a number of replicas; a new one goes where there is most room for what is there already. No
replica is refused for want of room: for the time of a new version there are more than there is room for. When room
comes, as a machine joins, replicas of those that have too many are replaced there, one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["MachineRoom", "choose", "relieve"]


class MachineRoom(NamedTuple):
    """A machine, as far as it matters to where replicas go."""

    number: int
    slots: int  #: replicas that it has room for; 0: none is to be there
    replicas: int  #: that are there, or about to be
    avoided: bool = False  #: a replica was lost or could not start there a moment ago


def choose(machines: Sequence[MachineRoom]) -> int | None:
    """The machine for one more replica; None: there is none. One that is avoided is better than none.

    >>> choose([MachineRoom(0, 2, 1), MachineRoom(1, 4, 1), MachineRoom(2, 8, 0, avoided=True)])
    1
    """
    able = [one for one in machines if one.slots]
    if not able:
        return None
    return min(able, key=lambda one: (one.avoided, (one.replicas + 1) / one.slots, one.number)).number


def relieve(machines: Sequence[MachineRoom]) -> int | None:
    """A machine with more replicas than it has room for, one of which fits elsewhere; None: there is none.

    >>> relieve([MachineRoom(0, 2, 3), MachineRoom(1, 4, 1)]), relieve([MachineRoom(0, 2, 2), MachineRoom(1, 4, 0)])
    (0, None)
    """
    over = [one for one in machines if one.replicas > one.slots]
    room = any(one.replicas < one.slots and not one.avoided for one in machines)
    # Who is to have none at all is relieved also where nobody has room to spare: somebody takes them.
    leaving = [one for one in over if not one.slots]
    if leaving and any(one.slots for one in machines):
        return leaving[0].number
    if not over or not room:
        return None
    return max(over, key=lambda one: one.replicas / max(1, one.slots)).number
