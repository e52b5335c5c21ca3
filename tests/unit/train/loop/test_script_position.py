"""When a worker that has gone on means that the others wait for ever, and when it does not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.core.roles import Role as Place
from holdfast.dataplane.memory.results import NESTED
from holdfast.errors import OutOfSync
from holdfast.train.loop.script_position import ScriptPosition


class Bound:
    """A crew of which worker 2 has gone on to operation 4."""

    class member:
        at = Place(worker=0, on_host=(0, 2))

    def ops(self) -> Iterator[tuple[int, int]]:
        yield from ((0, 3), (2, 4))

    def line(self, worker: int) -> int:
        return 17


def together() -> ScriptPosition:
    return ScriptPosition(Bound())


def check(come: bool) -> None:
    together().check(3, 482, lambda: come)


def test_who_goes_on_while_its_part_is_missing_is_out_of_step() -> None:
    text = r"Worker 2 is further on in the script \(line 17\), while worker 0 waits for it at step 482"
    with pytest.raises(OutOfSync, match=text):
        check(come=False)


def test_who_goes_on_after_showing_its_part_is_not() -> None:
    """It may enter the next loop between our look at the board and our decision to wait."""
    check(come=True)


def test_who_goes_on_on_another_host_may_be_ahead_of_its_part_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """The news that it went on and what it sent come by different ways."""
    monkeypatch.setattr(Bound.member, "at", Place(worker=0, on_host=(0,)))
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    standing = together()
    standing.check(3, 482, lambda: False)
    now = 104.0
    standing.check(3, 482, lambda: False)
    now = 106.0
    with pytest.raises(OutOfSync, match=r"Worker 2 is further on"):
        standing.check(3, 482, lambda: False)


def test_a_server_is_called_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bound.member, "at", Place(worker=0, on_host=(0, 2), servers=(2,)))
    with pytest.raises(OutOfSync, match=r"^Server 2 is further on .* worker 0 waits for it at step 482"):
        check(come=False)


def test_a_loop_where_others_evaluate_is_out_of_step() -> None:
    together().check_kind(3 * NESTED, 4, 4)
    with pytest.raises(OutOfSync) as caught:
        together().check_kind(3 * NESTED + 1, 0, 4)
    assert str(caught.value) == (
        "Worker 0 begins a loop over the loader where others began an evaluation of 4 parts (operation 3 of the "
        "script). Every worker must make the same loops and evaluations: use run.lead only to print, save and plot."
    )
