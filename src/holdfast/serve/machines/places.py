"""The places of replicas: this machine, and others that have joined. To a model's service they are all the same.

Which machine a replica goes to is decided in `dispatch.placement`. While there is no machine at all that has room (a
server that computes nothing itself, before the first has joined), replicas wait here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.config.limits import SERVING
from holdfast.serve.dispatch.placement import MachineRoom, choose, relieve
from holdfast.serve.machines.gateway_process import GatewayProcess
from holdfast.serve.models.replica_processes import ReplicaProcesses
from holdfast.serve.remote import messages as said
from holdfast.transport.link import Link

__all__ = ["Places"]

_HERE = -1


@dataclass(slots=True)
class _Machine:
    name: str
    slots: int
    replicas: set[int] = field(default_factory=set)
    failed: int = 0  # replicas that could not start there, one after the other
    avoided_until: float = 0.0


@dataclass(slots=True)
class _Replica:
    started: Callable[[int], None]
    gone: Callable[[str], None]
    machine: int | None = None  # None: it waits for one
    local: int = -1  # its number among the processes of this machine
    link: Link | None = None  # the end that is for a machine, as long as it waits
    moving: bool = False


class Places:
    """Starts replicas where there is room. See `replica_processes.ReplicaStarter`.

    Args:
        here: how many replicas this machine has room for; 0: it computes nothing.
        say: takes sentences for people.
        move: asks a replica's service to have it replaced; whether that is going to be.
    """

    def __init__(
        self, local: ReplicaProcesses, here: int, say: Callable[[str], None], move: Callable[[int, str], bool]
    ) -> None:
        self._local, self._say, self._move = local, say, move
        self._loop = asyncio.get_running_loop()
        self._machines = {_HERE: _Machine("this machine", here)}
        self._replicas: dict[int, _Replica] = {}
        self._numbers = 0
        self._joined = 0.0  # when the last machine did
        self._gateway: GatewayProcess | None = None

    @property
    def slots(self) -> int:
        """Replicas that all machines have room for."""
        return sum(one.slots for one in self._machines.values())

    def connect(self, gateway: GatewayProcess) -> None:
        """There is a way to other machines."""
        self._gateway = gateway

    # ------------------------------------------------------------ replicas

    def start(self, started: Callable[[int], None], gone: Callable[[str], None]) -> tuple[int, Link]:
        """Start a replica somewhere: its number, and our end of its link. See `ReplicaProcesses.start`."""
        number, self._numbers = self._numbers, self._numbers + 1
        one = self._replicas[number] = _Replica(started, gone)
        if self._choose() == _HERE:
            one.machine = _HERE
            self._machines[_HERE].replicas.add(number)
            one.local, link = self._local.start(started, lambda how: self._gone(number, how))
            return number, link
        link, one.link = Link.pair()
        link.setblocking(False)
        self._place_waiting()
        return number, link

    def kill(self, number: int) -> None:
        """End a replica at once."""
        one = self._replicas.get(number)
        if one is None:
            return
        if one.machine == _HERE:
            self._local.kill(one.local)
        elif one.machine is None:
            self._loop.call_soon(self._gone, number, "it was ended before there was a machine for it")
        elif self._gateway is not None:
            self._gateway.end_if_stopped()
            self._gateway.kill(number)

    def _place_waiting(self) -> None:
        """Send replicas that wait to machines."""
        gathering = time.monotonic() < self._joined + SERVING.gather
        for number, one in self._replicas.items():
            if one.machine is not None or one.link is None or self._gateway is None:
                continue
            machine = self._choose()
            if machine is None or machine == _HERE:
                return
            if gathering and len(self._machines[machine].replicas) >= self._machines[machine].slots:
                return
            one.machine, link, one.link = machine, one.link, None
            self._machines[machine].replicas.add(number)
            # To the front door it is the gateway's process: that is what it sees of it on this machine.
            self._loop.call_soon(one.started, self._gateway.pid)
            self._gateway.place(number, machine, link)

    def _choose(self) -> int | None:
        return choose(self._room())

    def _room(self) -> list[MachineRoom]:
        now = time.monotonic()
        return [
            MachineRoom(number, one.slots, len(one.replicas), one.avoided_until > now)
            for number, one in self._machines.items()
        ]

    def _gone(self, number: int, how: str, fate: said.Fate = "lost") -> None:
        one = self._replicas.pop(number, None)
        if one is None:
            return
        if one.link is not None:
            one.link.close()
        machine = self._machines.get(one.machine) if one.machine is not None else None
        if machine is not None:
            machine.replicas.discard(number)
        if machine is not None and one.machine != _HERE:
            how = f"{machine.name}: {how}"
            machine.failed = machine.failed + 1 if fate == "not started" else 0
            if fate != "let go":
                wait = SERVING.avoided * 2.0 ** min(machine.failed, SERVING.doublings)
                machine.avoided_until = time.monotonic() + wait
        one.gone(how)

    # ------------------------------------------------------------ machines

    def told(self, message: said.FromGateway) -> None:
        """The gateway says what has happened elsewhere."""
        if isinstance(message, said.MachineJoined):
            self._machines[message.machine] = _Machine(message.name, message.slots)
            self._say(f"{message.name} has joined, with room for {message.slots} replicas")
            self._joined = time.monotonic()
            self._place_waiting()
        elif isinstance(message, said.MachineLeaving):
            self._machines[message.machine].slots = 0
            self._say(f"{self._machines[message.machine].name} is to leave; its replicas are replaced elsewhere first")
        elif isinstance(message, said.MachineLost):
            self._lose(message.machine, message.reason)
        elif isinstance(message, said.ReplicaGone):
            self._gone(message.replica, message.how, message.fate)
        elif isinstance(message, said.Complaint):
            self._say(message.sentence)

    def _lose(self, number: int, reason: str) -> None:
        machine = self._machines[number]
        machine.slots = 0  # its replicas are told one by one; nothing goes there any more
        self._say(f"{machine.name} is gone ({reason}); {len(machine.replicas)} replicas were there")
        for replica in list(machine.replicas):
            self._gone(replica, reason)
        del self._machines[number]

    def gateway_lost(self, reason: str) -> None:
        """The gateway is gone, and all machines with it for now."""
        self._say(reason)
        for number in [number for number in self._machines if number != _HERE]:
            self._lose(number, reason)

    async def watch(self) -> None:
        """Move replicas from where there are too many to where there is room; for ever."""
        while True:
            await asyncio.sleep(SERVING.look)
            if self._gateway is not None:
                self._gateway.end_if_stopped()
            self._place_waiting()
            self._relieve()

    def _relieve(self) -> None:
        room = self._room()
        for number, one in self._machines.items():
            if one.slots == 0 and number != _HERE and any(other.slots for other in room):
                self._move_some(number, len(one.replicas), f"{one.name} is to leave")
        if not any(one.moving for one in self._replicas.values()) and (crowded := relieve(room)) is not None:
            name = self._machines[crowded].name
            self._move_some(crowded, 1, f"{name} has more replicas than room, and another machine has less")

    def _move_some(self, machine: int, most: int, reason: str) -> None:
        for number in sorted(self._machines[machine].replicas)[::-1][:most]:
            one = self._replicas[number]
            if not one.moving:
                one.moving = self._move(number, reason)

    def close(self) -> None:
        """Forget everything. The processes are ended by who has started them."""
        for one in self._replicas.values():
            if one.link is not None:
                one.link.close()
        self._replicas.clear()
