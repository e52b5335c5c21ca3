"""The adopting spawner: workers that run already, as ranks of another launcher (torchrun and its like).

It starts nobody. Each rank of this node has one place, in their order; `start` hands the next place's link to the rank
it belongs to, once that has come (see `rank_listener`). Who is lost is not replaced, because only the launcher could
start it anew: a place beyond the ranks there are stays empty, and the run goes on with the others.

What an adopted worker starts itself, its output and its session are the launcher's business, not ours.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from holdfast.config.limits import PROCESS, TORCHRUN
from holdfast.config.worker_spec import WorkerSpec
from holdfast.control.protocol.events import WorkerLost, WorkerStarted
from holdfast.hosts.process_sessions import stuck
from holdfast.hosts.torchrun import rank_messages as say
from holdfast.hosts.torchrun.rank_listener import RankConnection, RankGone, RankListener
from holdfast.transport.link import Link

__all__ = ["RankSpawner", "SignalJudge", "SignalVerdict"]

#: An exit status that nobody knows.
_UNKNOWN = 255


@dataclass(slots=True)
class _Place:
    """A worker that was asked for. It is one with its guest from the moment that has come."""

    worker: int
    row: int
    index: int
    link: Link | None  #: the worker's end, until it is handed over
    guest: RankConnection | None = None


class RankSpawner:
    """Makes workers of ranks. See `control.protocol.ports.Spawner` for the contract.

    Args:
        rank listener: where the ranks come. It stays open when the spawner is closed.
        spec: what a worker is told, but for its number and row.
        ranks: how many there are on this node.
        say: told, in a sentence, when a place stays empty.
        asked: told when a rank was sent a signal that asks it to end.
        grace: seconds that ranks have, when the spawner is closed, to leave by themselves before they are killed.
    """

    def __init__(
        self, rank_listener: RankListener, spec: WorkerSpec, *, ranks: int, say: Callable[[str], None] = lambda _: None,
        asked: Callable[[int, str], None] = lambda *_: None, grace: float = TORCHRUN.exit_grace,
    ) -> None:  # fmt: skip
        self._rank_listener, self._spec, self._ranks, self._grace = rank_listener, spec, ranks, grace
        self._say, self._asked = say, asked
        self._places: dict[int, _Place] = {}  #: by worker, those that are not gone
        self._indices: dict[int, int] = {}  #: index of a rank -> worker, for ever
        self._given = 0
        self._news: deque[WorkerStarted | WorkerLost] = deque()
        self._epoll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._bell, select.EPOLLIN)
        self._epoll.register(rank_listener.fileno(), select.EPOLLIN)
        os.eventfd_write(self._bell, 1)  # somebody may have come before

    def worker(self, index: int) -> int | None:
        """The worker that the rank of this index is, if it is one."""
        worker = self._indices.get(index)
        return worker if worker in self._places else None

    def start(self, worker: int, row: int) -> Link:
        """Give the next place to this worker."""
        ours, theirs = Link.pair()
        ours.setblocking(False)
        theirs.setblocking(False)
        place = self._places[worker] = _Place(worker, row, self._given, theirs)
        self._given += 1
        if place.index < self._ranks:
            self._indices[place.index] = worker
            self._seat(place)
        else:
            self._say(
                f"worker {worker} will not come: the launcher has started {self._ranks} rank{'s' * (self._ranks > 1)} "
                "here, and starts none anew. The others go on without it"
            )
        if place.link is not None:
            self._epoll.register(theirs.fileno(), select.EPOLLIN)
        return ours

    def signal(self, worker: int, number: int) -> None:
        """Send a signal to this worker's process. One that has not come by the time it is to be killed never will."""
        place = self._places.get(worker)
        if place is None:
            return
        if place.guest is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(place.guest.pidfd, number)
        elif number == signal.SIGKILL:
            self._gone(place, -number)

    def fileno(self) -> int:
        """Readable when `events` has something to say."""
        return self._epoll.fileno()

    def events(self) -> list[WorkerStarted | WorkerLost]:
        """What happened since the last call."""
        ready = {fd for fd, _ in self._epoll.poll(0)}
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        self._hear()
        for place in list(self._places.values()):
            if place.link is not None and place.link.fileno() in ready:
                self._told(place)
        news = list(self._news)
        self._news.clear()
        return news

    def close(self) -> None:
        """See to it that no rank has to do with the run any more: it has said so, or it is killed."""
        if self._epoll.closed:
            return
        until = time.monotonic() + self._grace
        while self._busy() and (left := until - time.monotonic()) > 0 and self._wait(left):
            self._hear()
        for place in self._busy():
            self.signal(place.worker, signal.SIGKILL)
        until = time.monotonic() + PROCESS.reap
        while self._busy() and (left := until - time.monotonic()) > 0 and self._wait(left):
            self._hear()
        left_over = [place.guest.pid for place in self._busy() if place.guest is not None]
        for place in self._places.values():
            if place.link is not None:
                place.link.close()
        self._places.clear()
        self._epoll.close()
        os.close(self._bell)
        if left_over:
            raise stuck(left_over)

    # ------------------------------------------------------------ ranks

    def _busy(self) -> list[_Place]:
        return [place for place in self._places.values() if place.guest is not None]

    def _wait(self, seconds: float) -> bool:
        return bool(select.select([self._rank_listener.fileno()], [], [], seconds)[0])

    def _hear(self) -> None:
        for guest, news in self._rank_listener.hear():
            place = self._places.get(self._indices.get(guest.index, -1))
            match news:
                case say.Announced():
                    if place is not None:
                        self._seat(place)
                    elif guest.index in self._indices:
                        late = f"Rank {guest.rank} came too late: the run goes on without it."
                        guest.tell(say.Barred("Stopped", late))
                case say.SignalAsked(name):
                    self._asked(guest.index, name)
                case say.Parted() if place is not None and place.guest is guest:
                    self._gone(place, 0)
                case RankGone(code) if place is not None and place.guest is guest:
                    self._gone(place, code)

    def _seat(self, place: _Place) -> None:
        """Make a worker of the rank that this place belongs to, if it is there."""
        guest = self._rank_listener.guests.get(place.index)
        if guest is None or place.link is None:
            return
        link, place.link, place.guest = place.link, None, guest
        with contextlib.suppress(KeyError, FileNotFoundError):  # it was not registered yet
            self._epoll.unregister(link.fileno())
        spec = msgspec.structs.replace(self._spec, worker=place.worker, row=place.row)
        self._note(guest, place.worker)
        link.setblocking(True)
        with link:
            guest.tell(say.Enlisted(spec), (link.fileno(),))
        self._news.append(WorkerStarted(place.worker, guest.pid))
        os.eventfd_write(self._bell, 1)

    def _note(self, guest: RankConnection, worker: int) -> None:
        """Where somebody looks for the worker's output, say where it is."""
        # The worker's output is not lost without this hint, only not found here.
        with contextlib.suppress(OSError), open(Path(self._spec.dir, "logs", f"worker-{worker}.log"), "a") as log:
            print(
                f"Worker {worker} is rank {guest.rank}, process {guest.pid}: its output is where its launcher puts it "
                "(torchrun: --log-dir and --redirects).", file=log,
            )  # fmt: skip

    def _told(self, place: _Place) -> None:
        """Somebody speaks to a worker that has not come: who never comes can only be told to go."""
        assert place.link is not None
        with contextlib.suppress(BlockingIOError):
            frame = place.link.recv()
            if frame is None:  # our end was closed: nobody wants it any more
                self._epoll.unregister(place.link.fileno())
                return
            for fd in frame.fds:
                os.close(fd)
            self._gone(place, 0)

    def _gone(self, place: _Place, code: int | None) -> None:
        del self._places[place.worker]
        if place.link is not None:
            with contextlib.suppress(KeyError, FileNotFoundError):
                self._epoll.unregister(place.link.fileno())
            place.link.close()
        code = _UNKNOWN if code is None else code
        self._news.append(WorkerLost(place.worker, "signal" if code < 0 else "exit", abs(code)))
        os.eventfd_write(self._bell, 1)


# ---------------------------------------------------------------- who is to end


@dataclass(frozen=True, slots=True)
class SignalVerdict:
    """Who is to end: everybody here, or some. `signal` is what they were sent."""

    signal: str
    everybody: bool = False
    some: frozenset[int] = frozenset()


class SignalJudge:
    """Was one rank asked to end, or all that are here? Launchers signal one process after the other. Pure.

    >>> judge = SignalJudge(window=0.5)
    >>> judge.asked(1, "SIGTERM", now=10.0)
    >>> judge.verdict({0, 1}, now=10.1), judge.verdict({0, 1}, now=10.6)
    (None, SignalVerdict(signal='SIGTERM', everybody=False, some=frozenset({1})))
    >>> judge.asked(0, "SIGTERM", now=11.0)
    >>> judge.verdict({0, 1}, now=11.1)
    SignalVerdict(signal='SIGTERM', everybody=True, some=frozenset())
    """

    def __init__(self, window: float = TORCHRUN.exit_window) -> None:
        self._window = window
        self._asked: dict[int, tuple[str, float]] = {}
        self._judged: set[int] = set()
        self._over = False

    def asked(self, index: int, signal: str, now: float) -> None:
        """This rank was sent a signal."""
        self._asked.setdefault(index, (signal, now))

    def verdict(self, here: set[int], now: float) -> SignalVerdict | None:
        """What is to be done now, said once; `here` are the ranks that live."""
        if self._over or not self._asked:
            return None
        name = next(iter(self._asked.values()))[0]
        if here and here <= self._asked.keys():
            self._over = True
            return SignalVerdict(name, everybody=True)
        due = {index for index, (_, at) in self._asked.items() if now - at >= self._window} - self._judged
        if not due & here:
            return None
        self._judged |= due
        return SignalVerdict(name, some=frozenset(due & here))
