"""Catch-up, as a host does it: threads, connections and their ends around `dataplane.wire.donor`.

A host that joins a run which is going follows one of the others (its donor) until it has caught up. Neither belongs
to a generation, so both are ended by name: a `CatchUp` when its host is taken into the crew, a donor when its follower
hangs up, and both when their host ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from holdfast.config.limits import NETWORK
from holdfast.dataplane.memory.arena_view import ArenaView
from holdfast.dataplane.memory.host_memory import await_view
from holdfast.dataplane.wire.donor import Donor, follow
from holdfast.dataplane.wire.state_transfer import Fetched
from holdfast.errors import FrameError
from holdfast.transport.stream import Stream

__all__ = ["CatchUp", "Donors"]


class CatchUp:
    """Follows a donor in a thread of its own.

    Args:
        find: gives the memory of this host, once it is laid out.
        dial: reaches the donor; may block, and raises OSError.
        came: told, in a sentence, that the state has come. In the thread, as is `ended`.
        ended: told, in a sentence, that following has ended though nobody closed it.

    Resources: `close` ends the thread and the connection; afterwards nothing is written to the arena any more.
    """

    def __init__(
        self, find: Callable[[], ArenaView | None], donor: int, generation: int, rows: frozenset[int], *,
        dial: Callable[[], Stream], ring: Callable[[], None], came: Callable[[str], None], ended: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._find, self._donor, self._generation, self._rows = find, donor, generation, rows
        self._dial, self._ring, self._came, self._ended = dial, ring, came, ended
        self.fetched = False  #: the state has come
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._stream: Stream | None = None
        self._thread = threading.Thread(target=self._run, name="holdfast-follow", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it. May be called twice."""
        with self._lock:
            self._closing.set()
            stream = self._stream
        if stream is not None:
            stream.close()
        self._thread.join()

    def _run(self) -> None:
        reason = "it hung up"
        try:
            view = await_view(self._find, self._closing.is_set)
            if view is not None and (stream := self._reach()) is not None:
                follow(
                    view, stream, self._generation, ring=self._ring, closing=self._closing.is_set, came=self._told,
                    rows=self._rows,
                )  # fmt: skip
        except Exception as error:  # whatever it is: the run waits for this host, or goes on without it
            reason = _told(error)
        if not self._closing.is_set():
            self._ended(f"host {self._donor} gives no more ({reason})")

    def _told(self, got: Fetched) -> None:
        self.fetched = True
        self._came(
            f"the state at step {got.version} has come from host {self._donor} while the run goes on ({got.told()})"
        )

    def _reach(self) -> Stream | None:
        until = time.monotonic() + NETWORK.donor
        while not self._closing.is_set():
            try:
                stream = self._dial()
            except OSError:
                if time.monotonic() > until:
                    raise
                self._closing.wait(NETWORK.donor_poll)
                continue
            with self._lock:
                if not self._closing.is_set():
                    self._stream = stream
                    return stream
            stream.close()
        return None


class Donors:
    """Whom this host donors: one at a time, the newest. `tell` is told what goes wrong here.

    Resources: `close` ends all of them.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._turn = threading.Lock()  # held by the one that donors: what it holds back is one word on the board
        self._donors: dict[Donor, tuple[int, threading.Thread]] = {}  #: whom it donors, and where it runs
        self._closed = False

    def add(self, host: int, view: ArenaView | None, stream: Stream, generation: int, ring: Callable[[], None]) -> None:
        """Guide the host at the other end of this connection, until it hangs up. `view` is what there is to show."""
        if view is None or self._closed:
            stream.close()
            return
        donor = Donor(view, stream, generation, ring)
        thread = threading.Thread(target=self._run, args=(donor,), name="holdfast-donor", daemon=True)
        with self._lock:
            others = list(self._donors)
            self._donors[donor] = host, thread
        for other in others:
            other.close()
        thread.start()

    def forget(self, host: int) -> None:
        """This host is guided no more."""
        with self._lock:
            donors = [donor for donor, (whom, _) in self._donors.items() if whom == host]
        for donor in donors:
            donor.close()

    def _run(self, donor: Donor) -> None:
        with self._turn:
            try:
                donor.run()
            except (OSError, EOFError, FrameError):
                pass  # the follower sees it too, and says it
            except Exception as error:  # the follower sees an end, and not why
                self._tell(f"a new host is not guided any more: {_told(error)}")
        with self._lock:
            self._donors.pop(donor, None)

    def close(self) -> None:
        """End all of them. May be called twice."""
        self._closed = True
        with self._lock:
            donors = dict(self._donors)
        for donor in donors:
            donor.close()
        for _, thread in donors.values():
            thread.join()


def _told(error: Exception) -> str:
    """What went wrong; of what is no fault of the network also what it is."""
    if isinstance(error, OSError | EOFError | FrameError):
        return str(error) or type(error).__name__
    return f"{type(error).__name__}: {error}"
