"""The generator of load: one process, one thread, one core, plain sockets and epoll.

    python -m benchmarks.serving.load --plan PLAN.json --out DIR

*Open loop* (`rate`): requests are sent when the schedule says so, over connections that are kept; where none is free, a
request waits here, and its latency counts from when it should have been sent. *Closed loop* (no `rate`): each
connection sends its next request when it has its answer, which finds the most that a server can do, and says little
about latency.

A generator that is busy measures itself: over 60% of its core the figures are void (`Busy`). DIR/load.json has the
figures, DIR/samples.npy each request (times of CLOCK_MONOTONIC, which all processes of a machine share).
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import math
import os
import select
import socket
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy

from benchmarks.harness import Failed, environment, finish, started
from benchmarks.serving import exchange, schedule
from benchmarks.serving.exchange import DIFFERENT, Answer, Request, Target, Unreadable
from benchmarks.serving.schedule import Outcome, Sample, Window

__all__ = ["BUSY", "Busy", "Load", "Plan", "begun", "load", "load_found"]

#: The share of its core that the generator may use.
BUSY = 0.6
_SWEEP = 0.05  #: seconds between two looks for requests whose time is over
_PR_SET_TIMERSLACK = 29


class Busy(Failed):
    """The generator had so much to do that its figures are void."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be sent."""

    target: Target
    connections: int
    seconds: float
    warm: float = 2.0  #: seconds of the same load before that
    rate: float = 0.0  #: requests a second; 0: as many as are answered
    poisson: bool = False
    objective: float = 0.05  #: seconds within which an answer is worth something
    patience: float = 10.0  #: seconds after which nobody waits any more
    seed: int = 1
    core: int | None = None
    #: For each of the different requests, what the first output has to be; none: any numbers will do.
    expected: list[list[float]] | None = None
    #: Each answer has to be a version three times over (see `benchmarks.serving.swaps`).
    versions: bool = False


@dataclass(frozen=True, slots=True)
class Load:
    """What came of a plan."""

    figures: dict[str, Any]
    samples: list[Sample]
    window: Window


@dataclass(slots=True, eq=False)
class _Connection:
    """A connection that is kept, with at most one request under way."""

    socket: socket.socket
    number: int = -1  #: of the request that is under way
    got: bytes = b""
    left: memoryview | None = None  #: of the request, what the kernel would not take yet
    sends: int = 0


@dataclass(slots=True)
class _Tally:
    intended: list[float] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)
    done: list[float] = field(default_factory=list)
    outcome: list[int] = field(default_factory=list)
    version: list[int] = field(default_factory=list)


class _Generator:
    """Sends, reads and notes.

    Resources: `run` closes all sockets at its end.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        inputs = exchange.numbers(plan.target, DIFFERENT, plan.seed)
        self._requests: list[Request] = exchange.requests(plan.target, inputs)
        self._epoll = select.epoll()
        self._connections: dict[int, _Connection] = {}
        self._idle: deque[_Connection] = deque()
        self._backlog: deque[int] = deque()
        self._tally = _Tally()
        self._encoding, self._expected = plan.target.encoding, plan.expected
        self._open = 0  #: requests that nothing has come of yet
        self.reconnects, self.troubles = 0, dict[str, int]()
        self.pairs: set[tuple[str, int]] = set()  #: the version that an answer names, and the one it was computed by

    # -- connections

    def _connect(self) -> None:
        it = socket.create_connection((self._plan.target.host, self._plan.target.port), timeout=1)
        it.setblocking(False)
        it.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(it)
        self._connections[it.fileno()] = connection
        self._epoll.register(it.fileno(), select.EPOLLIN)
        self._idle.append(connection)

    def _drop(self, connection: _Connection) -> None:
        del self._connections[connection.socket.fileno()]
        connection.socket.close()
        if connection.number < 0 and connection in self._idle:
            self._idle.remove(connection)

    def _refill(self) -> None:
        """Open connections in the place of lost ones. While nobody listens it is tried again, sweep by sweep."""
        while len(self._connections) < self._plan.connections:
            try:
                self._connect()
            except OSError as error:
                self._trouble(f"connecting: {error}")
                return
            self.reconnects += 1

    def _trouble(self, what: str) -> None:
        self.troubles[what] = self.troubles.get(what, 0) + 1

    # -- requests

    def _new(self, intended: float) -> int:
        tally = self._tally
        tally.intended.append(intended)
        tally.sent.append(0.0)
        tally.done.append(0.0)
        tally.outcome.append(-1)
        tally.version.append(-1)
        self._open += 1
        return len(tally.intended) - 1

    def _send(self, connection: _Connection, number: int, now: float) -> None:
        wire = self._requests[number % DIFFERENT].wire
        connection.number, connection.got = number, b""
        connection.sends += 1
        self._tally.sent[number] = now
        try:
            taken = connection.socket.send(wire)
        except BlockingIOError:
            taken = 0
        except OSError as error:
            self._lost(connection, f"sending: {error}")
            return
        if taken < len(wire):
            connection.left = memoryview(wire)[taken:]
            self._epoll.modify(connection.socket.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def _send_rest(self, connection: _Connection) -> None:
        assert connection.left is not None
        try:
            connection.left = connection.left[connection.socket.send(connection.left) :]
        except BlockingIOError:
            return
        except OSError as error:
            self._lost(connection, f"sending: {error}")
            return
        if not connection.left:
            connection.left = None
            self._epoll.modify(connection.socket.fileno(), select.EPOLLIN)

    def _end(self, number: int, outcome: Outcome, now: float) -> None:
        self._tally.done[number], self._tally.outcome[number] = now, outcome
        self._open -= 1

    def _lost(self, connection: _Connection, why: str) -> None:
        """A connection broke; whatever was under way has failed."""
        number, now = connection.number, time.monotonic()
        self._drop(connection)
        if number >= 0:
            self._trouble(why)
            self._end(number, Outcome.FAILED, now)
        self._refill()

    def _receive(self, connection: _Connection) -> None:
        try:
            piece = connection.socket.recv(262144)
        except BlockingIOError:
            return
        except OSError as error:
            self._lost(connection, f"receiving: {error}")
            return
        now = time.monotonic()
        if not piece or connection.number < 0:
            self._lost(connection, "closed before the answer" if not piece else "an answer that nobody asked for")
            return
        got = connection.got = connection.got + piece if connection.got else piece
        try:
            answer = exchange.read(got, self._encoding)
        except Unreadable as error:
            self._trouble(str(error)[:300])
            self._end(connection.number, Outcome.WRONG, now)
            self._drop(connection)
            self._refill()
            return
        if answer is None:
            return
        number, connection.number = connection.number, -1
        self._end(number, self._judged(answer, number), now)
        if answer.closing or answer.taken != len(got):
            self._drop(connection)
            self._refill()
        elif not self._plan.rate and now < self._until:
            self._send(connection, self._new(now), now)
        else:
            self._idle.append(connection)

    def _judged(self, answer: Answer, number: int) -> Outcome:
        if answer.status != 200:
            self._trouble(f"status {answer.status}")
            return Outcome.REFUSED if answer.status in (429, 503) else Outcome.FAILED
        if self._plan.versions:
            version = round(answer.numbers[0] / 3) if len(answer.numbers) else -1
            if not exchange.right(answer, [3.0 * version] * len(answer.numbers)):
                self._trouble(f"torn: version {answer.version} gave {list(answer.numbers)[:4]}")
                return Outcome.WRONG
            self._tally.version[number] = version
            self.pairs.add((answer.version, version))
            return Outcome.OK
        if exchange.right(answer, self._expected[number % DIFFERENT] if self._expected else None):
            return Outcome.OK
        self._trouble(f"not the expected numbers: shape {answer.shape}, {list(answer.numbers)[:4]}")
        return Outcome.WRONG

    def _sweep(self, now: float) -> None:
        """Give up what has waited for too long, and replace lost connections."""
        over = now - self._plan.patience
        while self._backlog and self._tally.intended[self._backlog[0]] < over:
            self._end(self._backlog.popleft(), Outcome.UNANSWERED, now)
        for connection in list(self._connections.values()):
            if connection.number >= 0 and self._tally.intended[connection.number] < over:
                self._end(connection.number, Outcome.UNANSWERED, now)
                self._drop(connection)
        self._refill()
        if not self._plan.rate and now < self._until:
            while self._idle:
                self._send(self._idle.popleft(), self._new(now), now)

    # -- the loop

    def run(self) -> tuple[list[Sample], Window, float]:
        """All samples, the window that counts, and the share of its core that this took in it."""
        plan = self._plan
        for _ in range(plan.connections):
            self._connect()
        gc.collect()
        gc.disable()
        begin = time.monotonic() + 0.01
        window = Window(begin + plan.warm, begin + plan.warm + plan.seconds)
        self._until = window.end
        moments: list[float] = []
        if plan.rate:
            total = plan.warm + plan.seconds
            random = Random(plan.seed)
            ticks = schedule.poisson(plan.rate, total, random) if plan.poisson else schedule.fixed(plan.rate, total)
            moments = [begin + tick for tick in ticks]
        at, sweep = 0, begin
        spent = [0.0, 0.0]
        marks = [window.begin, window.end]
        while True:
            now = time.monotonic()
            while marks and now >= marks[0]:
                spent[len(spent) - len(marks)] = time.process_time()
                marks.pop(0)
            while at < len(moments) and moments[at] <= now:
                self._backlog.append(self._new(moments[at]))
                at += 1
            while self._backlog and self._idle:
                self._send(self._idle.popleft(), self._backlog.popleft(), now)
            if now >= sweep:
                self._sweep(now)
                sweep = now + _SWEEP
            if now >= window.end and not self._open and at == len(moments):
                break
            self._wait(min(sweep, moments[at] if at < len(moments) else sweep, marks[0] if marks else sweep))
        for connection in list(self._connections.values()):
            self._drop(connection)
        self._epoll.close()
        tally = self._tally
        columns = (tally.intended, tally.sent, tally.done, tally.outcome, tally.version)
        return [Sample(*row) for row in zip(*columns, strict=True)], window, (spent[1] - spent[0]) / plan.seconds

    def _wait(self, until: float) -> None:
        """Wait for a socket or a moment. epoll counts in milliseconds, select in microseconds."""
        events = self._epoll.poll(0)
        if not events:
            rest = until - time.monotonic()
            if rest > 0:
                select.select([self._epoll.fileno()], [], [], rest)
            events = self._epoll.poll(0)
        for descriptor, event in events:
            connection = self._connections.get(descriptor)
            if connection is None:
                continue
            if event & select.EPOLLOUT and connection.left is not None:
                self._send_rest(connection)
                if connection.socket.fileno() < 0:
                    continue
            if event & ~select.EPOLLOUT:
                self._receive(connection)


def begun(plan: Plan, where: Path) -> Any:
    """The generator as a process, for a `with` block: it goes on by itself (`load` waits for it)."""
    where.mkdir(parents=True, exist_ok=True)
    (where / "plan.json").write_bytes(msgspec.json.encode(plan))
    command = [sys.executable, "-m", "benchmarks.serving.load", "--plan", str(where / "plan.json"), "--out", str(where)]
    return started(command, log=where / "load.log", env=environment())


def load(plan: Plan, where: Path, *, strict: bool = True) -> Load:
    """Send it all. Raises Failed; Busy where the generator was, unless that is taken for granted (not `strict`)."""
    with begun(plan, where) as running:
        finish(running, where / "load.log", plan.warm + plan.seconds + plan.patience + 60)
    return load_found(where, strict=strict)


def load_found(where: Path, *, strict: bool = True) -> Load:
    """What a generator that has ended found. Raises Busy."""
    told: dict[str, Any] = msgspec.json.decode((where / "load.json").read_bytes())
    # JSON has no number for the latency of answers that never came.
    figures = {name: math.inf if value is None else value for name, value in told.items()}
    if strict and figures["cpu"] > BUSY:
        raise Busy(f"the generator used {figures['cpu']:.0%} of its core, more than {BUSY:.0%}: its figures are void")
    rows = numpy.load(where / "samples.npy")
    samples = [Sample(row[0], row[1], row[2], int(row[3]), int(row[4])) for row in rows.tolist()]
    return Load(figures, samples, Window(told["window"][0], told["window"][1]))


def main() -> None:
    """The process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    plan = msgspec.json.decode(options.plan.read_bytes(), type=Plan)
    if plan.core is not None:
        os.sched_setaffinity(0, {plan.core})
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)  # nanoseconds; else each wait is 50 us too long
    generator = _Generator(plan)
    samples, window, cpu = generator.run()
    figures = schedule.figures(samples, window, plan.objective) | {
        "cpu": cpu, "reconnects": generator.reconnects, "troubles": generator.troubles, "window": window,
        "pairs": sorted(generator.pairs),
    }  # fmt: skip
    numpy.save(options.out / "samples.npy", numpy.array(samples, "f8").reshape(-1, len(Sample._fields)))
    (options.out / "load.json").write_bytes(msgspec.json.encode(figures))


if __name__ == "__main__":
    main()
