from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest

from holdfast.transport.doorbell import Doorbells, ordered_stores, spin_seconds
from tests.unit.transport.lines import nothing_left


@pytest.fixture
def bells() -> Iterator[tuple[Doorbells, Doorbells, int]]:
    """Two workers' bells, and the end by which the coordinator speaks to the first."""
    with nothing_left():
        read, write = os.pipe()
        fds = [os.eventfd(0), os.eventfd(0)]
        one, two = Doorbells(read), Doorbells(read)
        one.replace(fds, 0)
        two.replace([os.dup(fd) for fd in fds], 1)
        yield one, two, write
        one.close()
        two.close()
        os.close(read)
        os.close(write)


def test_nobody_spins_who_has_no_core() -> None:
    assert spin_seconds(2, 2) > 0.0 == spin_seconds(3, 2)


def test_where_stores_are_seen_in_order() -> None:
    assert ordered_stores("x86_64") and not ordered_stores("aarch64")


def test_a_ring_wakes_the_other(bells: tuple[Doorbells, Doorbells, int]) -> None:
    one, two, _ = bells
    seen: list[int] = []

    def other() -> None:
        time.sleep(0.02)
        seen.append(1)
        two.ring()

    thread = threading.Thread(target=other)
    thread.start()
    assert one.wait(lambda: bool(seen), 30.0)
    thread.join()


def test_a_ring_that_came_before_the_wait_is_not_lost(bells: tuple[Doorbells, Doorbells, int]) -> None:
    one, two, _ = bells
    two.ring()
    asked: list[int] = []

    def done() -> bool:  # true only after the bell was heard
        asked.append(1)
        return len(asked) > 1

    one.spin = 0.0
    started = time.perf_counter()
    assert one.wait(done, 30.0)
    assert time.perf_counter() - started < 5.0


def test_the_link_ends_a_wait_at_once(bells: tuple[Doorbells, Doorbells, int]) -> None:
    one, _, write = bells
    os.write(write, b"x")
    assert one.wait(lambda: False, 30.0) is False


def test_a_wait_has_an_end(bells: tuple[Doorbells, Doorbells, int]) -> None:
    assert bells[0].wait(lambda: False, 0.01) is False


def test_spinning_sees_what_needs_no_ring(bells: tuple[Doorbells, Doorbells, int]) -> None:
    bells[0].spin = 1.0
    assert bells[0].wait(lambda: True, 30.0)


def test_a_ring_does_not_wake_oneself(bells: tuple[Doorbells, Doorbells, int]) -> None:
    one, _, _ = bells
    one.ring()
    assert one.wait(lambda: False, 0.01) is False


def test_a_new_generations_bells_close_the_old_ones(bells: tuple[Doorbells, Doorbells, int]) -> None:
    one, _, _ = bells
    old = one._fds
    one.replace([os.eventfd(0)], 0)
    for fd in old:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
    one.ring()  # nobody else is there
