"""What the screen says before the first step, and whose output it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli.launch.display import Display, awaited, heard
from holdfast.control.membership.roster import CrewStatus, HostStatus, WorkerStatus


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
    snapshot = CrewStatus(
        generation=0, step=0, wanted=2, members=[], drivers=[], lost=0, changing=False, waiting=[], stopping=False,
        people=[WorkerStatus(number, 100, number, "starting", [], server=number == 2) for number in starting],
        hosts_wanted=wanted,
        hosts=[HostStatus(number, "there", 1, -1) for number in range(hosts)],
    )  # fmt: skip
    assert awaited(snapshot) == said


def of(*stages: str, members: list[int] | None = None) -> CrewStatus:
    return CrewStatus(
        generation=0, step=0, wanted=2, members=members or [], drivers=[], lost=0, changing=False, waiting=[],
        stopping=False, people=[WorkerStatus(number, 100, number, stage, []) for number, stage in enumerate(stages)],
    )  # fmt: skip


def test_a_run_without_a_step_is_heard_at_its_end() -> None:
    ended = of("refused", "finished", "finished")
    assert heard(ended, last=False) == -1, "there may still be a lead"
    assert heard(ended, last=True) == 1
    assert heard(of("starting"), last=True) == -1, "it failed, and that is told"
    assert heard(of("member", "member", members=[0, 1]), last=False) == 0


class Server:
    """As much of a coordinator as a display looks at."""

    def __init__(self) -> None:
        self.crew, self.failed = of("member", "member", members=[0, 1]), set[int]()

    def snapshot(self) -> CrewStatus:
        return self.crew


class Heard:
    """A screen that notes what it echoes."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def echo(self, text: str) -> None:
        self.lines.append(text)


def test_a_lead_that_ends_soon_is_heard_from_when_it_became_one(tmp_path: Path) -> None:
    server, screen = Server(), Heard()
    display = Display(screen, server, None, tmp_path)  # type: ignore[arg-type]
    (tmp_path / "worker-0.log").write_text("begun\n")
    (tmp_path / "worker-1.log").write_text("begun\n")
    display.echo()
    server.crew = of("lost", "member", members=[1])
    server.before_generation()  # type: ignore[attr-defined]
    with (tmp_path / "worker-1.log").open("a") as log:
        log.write("the end\n")
    display.echo(last=True)
    assert screen.lines == ["begun", "the end"]
