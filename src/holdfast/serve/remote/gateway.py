"""The gateway: a process beside a front door that holds its connections to other machines, and carries over them.

It listens at the one address that machines dial, knows which are there, and has a `GatewayReplica` for each replica on
one of them. It decides nothing: the front door says where replicas are to be, and hears what becomes of them. What
machines and replicas do is told to one thread, which alone changes what is known; carrying is done in threads of their
own. When the front door ends, so does this.

Run as `python -m holdfast.serve.remote.gateway`, by `door.gateway_process` only.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from holdfast.config.limits import AGENT, SERVING
from holdfast.errors import HoldfastError
from holdfast.serve.remote import messages as say
from holdfast.serve.remote.gateway_replica import GatewayReplica
from holdfast.transport.auth.credentials import Credentials
from holdfast.transport.auth.handshake import Hello
from holdfast.transport.auth.listener import Listener
from holdfast.transport.channel import Channel
from holdfast.transport.frames import Frame, Kind
from holdfast.transport.link import Link
from holdfast.transport.processes import die_with_parent
from holdfast.transport.stream import Stream

__all__ = ["main"]

_KINDS = frozenset({Kind.CONTROL})


@dataclass(slots=True)
class _Machine:
    name: str
    channel: Channel


@dataclass(slots=True)
class _Replica:
    machine: int
    link: Link
    ticket: str
    asked: float
    carried: GatewayReplica | None = None


class Gateway:
    """All of it; use `serve`."""

    def __init__(self, door: Link, told: say.Listen) -> None:
        self._door = door
        self._machines: dict[int, _Machine] = {}
        self._replicas: dict[int, _Replica] = {}
        self._numbers = 0
        self._news: deque[Callable[[], None]] = deque()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._beat = say.encode(say.Beat())
        self._listener = Listener(
            (told.host, told.port), Credentials.parse(told.credentials, "the front door"), run=told.run,
            admit=self._admit, came=lambda hello, stream: self._later(lambda: self._came(hello, stream)),
            complain=lambda sentence: self._later(lambda: self._tell(say.Complaint(sentence))),
        )  # fmt: skip
        self._tell(say.Listening(*self._listener.address))

    def serve(self) -> None:
        """Until the front door is gone."""
        poll, beat = select.poll(), 0.0
        for readable in (self._door.fileno(), self._bell):
            poll.register(readable, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll(1000 * SERVING.look)}
            if self._bell in ready:
                os.eventfd_read(self._bell)
                while self._news:
                    self._news.popleft()()
            if self._door.fileno() in ready and not self._hear():
                break
            if (now := time.monotonic()) >= beat:
                self._look(now)
                beat = now + SERVING.beat
        self._end()

    def _end(self) -> None:
        """The server ends: machines are told, so that they do not look for it."""
        self._listener.close()
        for machine in self._machines.values():
            machine.channel.send(say.encode(say.Over()))
        for one in self._replicas.values():
            if one.carried is not None:
                one.carried.close("the server has ended")
        for machine in self._machines.values():
            machine.channel.close()

    # ------------------------------------------------------------ other threads

    def _later(self, work: Callable[[], None]) -> None:
        """Have it done by the one thread that knows what there is."""
        self._news.append(work)
        with contextlib.suppress(OSError):
            os.eventfd_write(self._bell, 1)

    def _admit(self, hello: Hello) -> str | None:
        """Why somebody who holds the token may not come in; called by the listener."""
        if hello.kind == "join":
            return "this is a server, and no training run: add the machine with `holdfast replica`."
        if hello.kind == "replica":
            tickets = [one.ticket for one in list(self._replicas.values()) if one.carried is None]
            known = any(secrets.compare_digest(ticket, str(hello.facts.get("ticket", ""))) for ticket in tickets)
            return None if known else "nobody has asked for this replica, or not any more."
        if hello.kind != "machine":
            return f"nothing of the kind {hello.kind!r} is taken here."
        slots = hello.facts.get("slots")
        if type(slots) is not int or not 0 < slots <= AGENT.slots:
            return f"room for {slots} replicas cannot be."
        return None

    # ------------------------------------------------------------ machines

    def _came(self, hello: Hello, stream: Stream) -> None:
        if hello.kind == "machine":
            self._join(hello, stream)
            return
        ticket = str(hello.facts.get("ticket", ""))
        for number, one in self._replicas.items():
            if one.ticket == ticket and one.carried is None:
                one.carried = GatewayReplica(one.link, stream, partial(self._carried_ended, number))
                return
        stream.close()  # it was killed meanwhile

    def _join(self, hello: Hello, stream: Stream) -> None:
        number, self._numbers = self._numbers, self._numbers + 1
        name = f"{str(hello.facts.get('name', ''))[:64]} ({stream.peer.rpartition(':')[0]})"
        channel = Channel(
            stream, lambda frame: self._heard(number, frame),
            lambda reason: self._later(lambda: self._left(number, reason)), kinds=_KINDS,
        )  # fmt: skip
        self._machines[number] = _Machine(name, channel)
        slots = hello.facts["slots"]
        assert isinstance(slots, int), "`_admit` has looked"
        self._tell(say.MachineJoined(number, name, slots))

    def _heard(self, number: int, frame: Frame) -> None:
        if isinstance(say.decode_from_host(frame.body), say.Withdraw):
            self._later(lambda: self._tell(say.MachineLeaving(number)))

    def _left(self, number: int, reason: str) -> None:
        if number not in self._machines:
            return
        machine = self._machines.pop(number)
        self._tell(say.MachineLost(number, reason))
        machine.channel.close()
        for replica, one in list(self._replicas.items()):
            if one.machine == number:
                self._kill(replica, f"{machine.name} is lost: {reason}")

    # ------------------------------------------------------------ replicas

    def _hear(self) -> bool:
        frame = self._door.recv()
        if frame is None:
            return False
        message = say.decode_from_door(frame.data)
        if isinstance(message, say.Place):
            self._place(message, Link.from_fd(frame.fds[0]))
        elif isinstance(message, say.Kill):
            self._kill(message.replica, "it was ended")
        return True

    def _place(self, wanted: say.Place, link: Link) -> None:
        ticket = secrets.token_urlsafe(24)
        self._replicas[wanted.replica] = _Replica(wanted.machine, link, ticket, time.monotonic())
        machine = self._machines.get(wanted.machine)
        if machine is None or not machine.channel.send(say.encode(say.OpenReplica(ticket))):
            self._kill(wanted.replica, "the machine that it was to be on is gone")

    def _kill(self, number: int, reason: str) -> None:
        one = self._replicas.get(number)
        if one is not None and one.carried is not None:
            one.carried.close(reason)  # `_gone` follows
        elif one is not None:
            one.link.close()
            self._gone(number, reason, "not started")

    def _carried_ended(self, number: int, how: str, fate: say.Fate) -> None:
        self._later(lambda: self._gone(number, how, fate))

    def _gone(self, number: int, how: str, fate: say.Fate) -> None:
        self._replicas.pop(number, None)
        self._tell(say.ReplicaGone(number, how, fate))

    # ------------------------------------------------------------ time

    def _look(self, now: float) -> None:
        """Give signs of life, and miss those of others."""
        for machine in list(self._machines.values()):
            machine.channel.send(self._beat)
            silent = now - machine.channel.heard
            if silent > SERVING.silence:
                machine.channel.close(f"it was silent for {silent:.1f} s")
        for number, one in list(self._replicas.items()):
            if one.carried is None and now - one.asked > SERVING.opening:
                self._kill(number, f"the machine did not connect for it within {SERVING.opening:.0f} s")

    def _tell(self, message: say.FromGateway) -> None:
        self._door.send(say.encode(message))


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until the front door is gone."""
    parser = argparse.ArgumentParser(prog="holdfast.serve.remote.gateway")
    parser.add_argument("--control", type=int, required=True, help="descriptor of the link to the front door")
    parser.add_argument("--parent", type=int, required=True, help="pid of the front door")
    options = parser.parse_args(argv)
    die_with_parent(options.parent)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it leaves with the front door, which drains first
    door = Link.from_fd(options.control)
    with contextlib.suppress(ImportError):
        import setproctitle

        setproctitle.setproctitle("holdfast serve: gateway to other machines")
    frame = door.recv()
    if frame is None:
        return 0
    try:
        gateway = Gateway(door, msgspec.msgpack.decode(frame.data, type=say.Listen))
    except HoldfastError as error:
        door.send(say.encode(say.CannotListen(type(error).__name__, str(error))))
        return error.exit_code
    gateway.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
