"""What the screen says before the first step."""

from __future__ import annotations

import pytest

from holdfast.cli.display import awaited
from holdfast.coordinator.roster import HostView, Person, Snapshot


@pytest.mark.parametrize(
    ("starting", "hosts", "wanted", "said"),
    [
        ([0, 1], 1, 1, "waiting for workers 0 and 1 to reach the first step"),
        ([0, 1, 2], 1, 1, "waiting for workers 0 and 1 and server 2 to reach the first step"),
        ([0], 1, 2, "waiting for worker 0 to reach the first step and for 1 more host to join"),
        ([], 1, 3, "waiting for 2 more hosts to join"),
        ([], 0, 2, "waiting for 2 hosts to join"),
        ([], 0, 1, "waiting for 1 host to join"),
    ],
)
def test_who_is_awaited(starting: list[int], hosts: int, wanted: int, said: str) -> None:
    snapshot = Snapshot(
        generation=0, step=0, wanted=2, members=[], drivers=[], lost=0, changing=False, waiting=[], stopping=False,
        people=[Person(number, 100, number, "starting", [], server=number == 2) for number in starting],
        hosts_wanted=wanted,
        hosts=[HostView(number, "there", 1, -1) for number in range(hosts)],
    )  # fmt: skip
    assert awaited(snapshot) == said
