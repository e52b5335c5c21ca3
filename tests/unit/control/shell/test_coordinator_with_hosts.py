"""The coordinator's shell with several hosts of a few lines each: whom it tells what, and whom it lets go."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from holdfast.config.limits import CrewConfig
from holdfast.control.machine import Machine
from holdfast.control.membership.roster import CrewLimits
from holdfast.control.protocol.commands import EndRun, FailRun, ReleaseHost
from holdfast.control.protocol.events import HostLeaving, HostLevel, HostLost, HostUnreached, Measured, WorkerLost
from holdfast.control.protocol.messages import Install, Pause, Ready, Seeded, Stop, ToWorker, Welcome
from holdfast.control.protocol.ports import HostListener, WatchOrder
from holdfast.control.shell.coordinator import Coordinator
from holdfast.errors import RunError
from tests.contract.fakes import FakeStoryWriter

Play = Callable[[Coordinator, "list[FakeHost]"], Awaitable[None]]


class FakeHost:
    """Writes down what it is told; the test says what happens there."""

    def __init__(self, number: int, slots: int = 1) -> None:
        self.number, self.name, self.slots, self.refills = number, f"name-{number}", slots, True
        self.ear: HostListener | None = None
        self.started: list[int] = []
        self.arenas: list[int] = []
        self.said: list[tuple[int, ToWorker]] = []
        self.killed: list[int] = []
        self.sights: list[WatchOrder] = []
        self.ends: list[EndRun | FailRun | ReleaseHost | None] = []

    def open(self, ear: HostListener) -> None:
        self.ear = ear

    def start(self, worker: int, row: int) -> None:
        self.started.append(worker)

    def kill(self, worker: int) -> None:
        self.killed.append(worker)

    def make_arena(self, size: int) -> None:
        self.arenas.append(size)

    def send(self, worker: int, message: ToWorker) -> None:
        self.said.append((worker, message))

    async def look(self, sight: WatchOrder, now: float) -> None:
        self.sights.append(sight)

    def close(self, end: EndRun | FailRun | ReleaseHost | None) -> None:
        self.ends.append(end)

    def tell(self, *events: object) -> None:
        assert self.ear is not None
        for event in events:
            self.ear.heard(self.number, event)  # type: ignore[arg-type]

    def heard(self, kind: type) -> list[int]:
        """The workers here that were told something of this kind."""
        return [worker for worker, message in self.said if isinstance(message, kind)]


def ready(worker: int) -> Ready:
    return Ready(worker, {"torch": "2"}, "golden", "model", 4096)


def serve(
    play: Play, *, hosts: int = 2, early: bool = False
) -> tuple[list[FakeHost], FakeStoryWriter, EndRun | FailRun]:
    """Run a server beside `play`, with host 0 from the beginning and others that join."""
    story_writer = FakeStoryWriter()
    some = [FakeHost(number) for number in range(hosts)]

    async def both() -> EndRun | FailRun:
        limits = CrewLimits(lanes=4, workers=1, hosts=hosts, listening=True, crew=CrewConfig(exit_grace=0.2))
        server = Coordinator(limits, story_writer=story_writer)
        if early:
            for host in some[1:]:
                server.admit(host)
        run = asyncio.ensure_future(server.run(some[:1]))
        await asyncio.sleep(0)
        for host in some[1:] if not early else ():
            server.admit(host)
        try:
            await asyncio.wait_for(play(server, some), 5)
        finally:
            end = await asyncio.wait_for(run, 5)
        return end

    end = asyncio.run(both())
    return some, story_writer, end


def begin(hosts: list[FakeHost]) -> None:
    """Everybody is ready; the first host's worker seeds."""
    first, *others = hosts
    first.tell(ready(first.started[0]))
    first.tell(Seeded(first.started[0]), HostLevel(0, 0))
    for host in others:
        host.tell(ready(host.started[0]))


@pytest.mark.parametrize("early", [False, True])
def test_each_host_is_told_what_is_its_own(early: bool) -> None:
    async def play(server: Coordinator, hosts: list[FakeHost]) -> None:
        assert [host.started for host in hosts] == [[0], [1]]
        begin(hosts)
        assert [len(host.arenas) for host in hosts] == [1, 1]
        assert hosts[0].heard(Welcome) == [0] and hosts[1].heard(Welcome) == [1]
        assert hosts[0].heard(Install) == [0] and hosts[1].heard(Install) == [1]
        server.abort("enough")

    hosts, story_writer, end = serve(play, early=early)
    assert end == FailRun("Stopped", "enough")
    assert [host.ends for host in hosts] == [[end], [end]], "each is told how it ended, once"
    assert [host.heard(Stop) for host in hosts] == [[0], [1]]
    assert any("a host that is silent for 1.5 s counts as lost" in sentence for sentence in story_writer.sentences)


def test_numbers_are_never_given_twice() -> None:
    async def play(server: Coordinator, hosts: list[FakeHost]) -> None:
        assert [server.number(), server.number()] == [1, 2]
        server.abort("enough")

    serve(play, hosts=1)


def test_a_lost_host_is_closed_and_the_others_go_on() -> None:
    async def play(server: Coordinator, hosts: list[FakeHost]) -> None:
        begin(hosts)
        hosts[1].tell(HostLost(1, "its link was cut"))
        assert hosts[0].heard(Pause) == [0]
        assert hosts[1].ends == [None]
        hosts[1].tell(WorkerLost(1, "exit", 0))
        assert server.snapshot().lost == 1, "nothing more is heard of it"
        server.abort("enough")

    hosts, _, end = serve(play)
    assert hosts[0].ends == [end] and hosts[1].ends == [None]


def test_a_host_that_leaves_is_released() -> None:
    async def play(server: Coordinator, hosts: list[FakeHost]) -> None:
        hosts[1].tell(HostLeaving(1, "SIGTERM"))
        hosts[1].tell(WorkerLost(1, "exit", 0))
        server.abort("enough")

    hosts, _, _ = serve(play)
    (released,) = hosts[1].ends
    assert isinstance(released, ReleaseHost) and "SIGTERM" in released.reason


def test_the_machine_gets_one_report_of_all_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[Measured] = []
    handle = Machine.handle

    def listen(self: Machine, event: object, now: float) -> object:
        if isinstance(event, Measured):
            reports.append(event)
        return handle(self, event, now)  # type: ignore[arg-type]

    monkeypatch.setattr(Machine, "handle", listen)

    async def play(server: Coordinator, hosts: list[FakeHost]) -> None:
        hosts[0].tell(Measured(4, {0: 0.1}, {0: (8, 0.5)}))
        assert reports == []
        hosts[1].tell(Measured(5, {1: 0.3}, {1: (4, 0.5)}))
        assert reports == [Measured(5, {0: 0.1, 1: 0.3}, {0: (8, 0.5), 1: (4, 0.5)})]
        hosts[0].tell(Measured(6, {0: 0.2}))
        hosts[0].tell(Measured(7, {0: 0.2}))
        assert reports[1:] == [Measured(6, {0: 0.2})], "who has nothing to say is not waited for"
        hosts[1].tell(HostLost(1, "gone"))
        hosts[0].tell(Measured(8, {0: 0.2}))
        assert [report.step for report in reports] == [5, 6, 7, 8]
        server.abort("enough")

    serve(play)


def test_each_host_is_looked_at_with_its_own_workers_in_sight() -> None:
    async def play(server: Coordinator, hosts: list[FakeHost]) -> None:
        begin(hosts)
        for host in hosts:
            host.sights.clear()
        while not all(host.sights for host in hosts):
            await asyncio.sleep(0.01)
        assert [host.sights[0] for host in hosts] == [WatchOrder([0], [], 1.5), WatchOrder([1], [], 1.5)]
        server.abort("enough")

    serve(play)


def test_a_host_that_another_cannot_reach_is_let_go_aloud_and_the_run_goes_on() -> None:
    async def play(server: Coordinator, hosts: list[FakeHost]) -> None:
        begin(hosts)
        hosts[1].ear.told(1, "the state has come")  # type: ignore[union-attr]
        hosts[0].tell(HostUnreached(0, 1, "host 0 cannot reach host 1: a firewall"))
        assert not server.over
        assert hosts[0].heard(Pause) == [0], "it goes on without it"
        server.abort("enough")

    hosts, story_writer, _ = serve(play)
    (released,) = hosts[1].ends
    assert isinstance(released, ReleaseHost) and released.kind == "lost"
    assert released.reason.startswith("host 0 cannot reach host 1: a firewall. Let the port through the firewalls ")
    assert "host 1: the state has come" in story_writer.sentences
    (said,) = [sentence for sentence in story_writer.aloud if "a firewall" in sentence]
    assert said.startswith("host 0 cannot reach host 1: a firewall; host 1 is let go (host 0 cannot reach it) with ")


def test_other_failures_of_a_host_here_end_the_run_and_everybody_hears_why() -> None:
    async def play(server: Coordinator, hosts: list[FakeHost]) -> None:
        assert hosts[0].ear is not None
        hosts[0].ear.broke(0, RunError("The forkserver does not start."))

    hosts: list[FakeHost] = []

    async def keep(server: Coordinator, some: list[FakeHost]) -> None:
        hosts.extend(some)
        await play(server, some)

    with pytest.raises(RunError, match="The forkserver does not start"):
        serve(keep)
    assert [host.ends for host in hosts] == [[FailRun("RunError", "The forkserver does not start.")]] * 2
