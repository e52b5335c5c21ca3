"""When a worker that has gone on means that the others wait for ever, and when it does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.core.standing import Standing as Place
from holdfast.errors import OutOfSync
from holdfast.train.training import Training


class Bound:
    """A crew of which worker 2 has gone on to operation 4."""

    class member:
        at = Place(worker=0, local=(0, 2))

    def ops(self) -> Iterator[tuple[int, int]]:
        yield from ((0, 3), (2, 4))


class Standing:
    """A worker in operation 3."""

    op, step, bound, _apart = 3, 482, Bound(), None
    _for_long = Training._for_long


def check(come: bool) -> None:
    standing: Any = Standing()
    Training.check_together(standing, lambda: come)


def test_who_goes_on_while_its_part_is_missing_is_out_of_step() -> None:
    with pytest.raises(OutOfSync, match=r"Worker 2 is further on .* worker 0 waits for it at step 482"):
        check(come=False)


def test_who_goes_on_after_showing_its_part_is_not() -> None:
    """It may enter the next loop between our look at the board and our decision to wait."""
    check(come=True)


def test_who_goes_on_on_another_host_may_be_ahead_of_its_part_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """The news that it went on and what it sent come by different ways."""
    monkeypatch.setattr(Bound.member, "at", Place(worker=0, local=(0,)))
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    standing: Any = Standing()
    Training.check_together(standing, lambda: False)
    now = 104.0
    Training.check_together(standing, lambda: False)
    now = 106.0
    with pytest.raises(OutOfSync, match=r"Worker 2 is further on"):
        Training.check_together(standing, lambda: False)


def test_a_server_is_called_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bound.member, "at", Place(worker=0, local=(0, 2), servers=(2,)))
    with pytest.raises(OutOfSync, match=r"^Server 2 is further on .* worker 0 waits for it at step 482"):
        check(come=False)
