"""A pytest plugin: threads that begin in a test begin late, and end late (`pytest -p tests.late_threads`).

Such schedules are allowed, and seldom come by themselves. A test that awaits what it needs passes; one that only finds
it in time, on a machine that is not busy, fails here and not some night.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import pytest

#: Seconds, at most.
LATE = 0.1
_chance = random.Random()  # the tests' own is theirs


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[None]:
    """Those of pytest and its plugins are as they were."""
    prompt = threading.Thread.run

    def late(thread: threading.Thread) -> None:
        time.sleep(_chance.uniform(0, LATE))
        try:
            prompt(thread)
        finally:
            time.sleep(_chance.uniform(0, LATE))

    threading.Thread.run = late  # type: ignore[method-assign]
    try:
        return (yield)
    finally:
        threading.Thread.run = prompt  # type: ignore[method-assign]
