"""A new host catches up with a crew that goes on stepping, and then takes its place without fetching anything."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator

import pytest

from holdfast.core.roles import Assignment
from holdfast.dataplane.memory.arena_view import ArenaView
from holdfast.dataplane.memory.board import H_CURRENT
from holdfast.dataplane.memory.manifest import read_manifest
from holdfast.dataplane.wire.donor import Donor, FellBehind, LostTrack, follow
from holdfast.dataplane.wire.packing import Packer
from holdfast.dataplane.wire.state_transfer import Fetched
from holdfast.transport.stream import PlainStream
from tests.unit.dataplane.hosted import Host, Lab
from tests.unit.dataplane.members import LANES, Worker, work_of
from tests.unit.dataplane.wire.test_session import hosts, reference


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith(("session", "donor", "follow"))]
    assert not left


def hold_of(host: Host) -> ArenaView:
    manifest = read_manifest(host.memory)
    assert manifest is not None
    return ArenaView(host.memory, manifest)


class Following:
    """A new host that follows a donor, both in threads."""

    def __init__(self, lab: Lab, donor: int, new: int, most: int | None = None) -> None:
        self.worker: Worker = lab.hosts[new].workers[0]
        self.came: list[Fetched] = []
        self.problem: list[Exception] = []
        self._lab, self._closed, self._steps = lab, threading.Event(), 0
        ours, theirs = PlainStream.pair()
        self._stream = theirs
        self.donor = Donor(hold_of(lab.hosts[donor]), ours, lab.generation, lab.moved.set, most)
        new_hold = hold_of(lab.hosts[new])

        def follow_it() -> None:
            try:
                follow(
                    new_hold, theirs, lab.generation, ring=lab.moved.set, closing=self._closed.is_set,
                    came=self.came.append, rows=frozenset({self.worker.board.row}),
                )  # fmt: skip
            except (OSError, EOFError) as error:
                if not self._closed.is_set():
                    self.problem.append(error)

        def donor_it() -> None:
            try:
                self.donor.run()
            except OSError as error:
                if not self._closed.is_set():
                    self.problem.append(error)

        self._threads = [threading.Thread(target=act, name=f"follow-{act.__name__}") for act in (follow_it, donor_it)]
        for thread in self._threads:
            thread.start()

    def arrived(self, crew: list[Worker], driver: list[int]) -> bool:
        """Take my place as one who follows, once the state is here."""
        if not self.came:
            return False
        if self.worker.member.at.worker < 0:
            self.worker.buffers.load(min(self.worker.board.versions()), everything=True)
            members = [*(w.worker for w in crew), self.worker.worker]
            rows = [*(w.board.row for w in crew), self.worker.board.row]
            places = [0] * len(crew) + [1]
            self.worker.member.install(self.worker.worker, Assignment(members, rows, driver, places, following=True))
            self._steps = min(self.worker.board.versions())
        return True

    def go_on(self, golden: list[bytes], crew: list[Worker], driver: list[int]) -> None:
        """Finish the steps that have come."""
        while self.arrived(crew, driver) and self._steps < len(golden):
            if self.worker.turn(work_of(self._steps)) != "done":
                return
            assert self.worker.state() == golden[self._steps], f"after step {self._steps}"
            self._steps += 1

    def close(self) -> None:
        self._closed.set()
        self.donor.close()
        self._stream.close()
        for thread in self._threads:
            thread.join()


@pytest.mark.parametrize("pace", [0, 1, 3])
def test_a_new_host_catches_up_while_the_crew_steps(pace: int) -> None:
    """It may act at every turn, at some, or only when the crew has gone far ahead."""
    steps = 14
    golden = reference(steps)
    lab = hosts((2, 1))
    chance = random.Random(pace)
    driver = [0, 0, 1, 1]
    lab.install([0], driver, summed=True)
    crew = lab.hosts[0].workers
    following: Following | None = None
    try:
        for number in range(12):
            lab.step(crew, work_of(number), chance)
            assert crew[0].state() == golden[number]
            if number == 2:
                following = Following(lab, 0, 1)
            if following is not None and pace and number % pace == 0:
                following.go_on(golden, crew, driver)
            if number == 8:  # a state has come by then, and steps follow it
                assert following is not None
                came = following.came
                lab.until(came.__len__)
        assert following is not None
        lab.until(lambda: following.go_on(golden, crew, driver) or lab.hosts[1].level() == 12)
        assert following.came[0].version < 12
        assert not following.problem
        following.close()
        assert following.worker.units == []  # it has computed nothing, and knows everything
        assert [lab.hosts[number].level() for number in (0, 1)] == [12, 12]
        lab.install([0, 1], [0, 1, 2, 2])  # nobody fetches anything
        for number in (12, 13):
            lab.step([*crew, following.worker], work_of(number), chance)
            assert [w.state() == golden[number] for w in (*crew, following.worker)] == [True] * 3
        assert lab.said == []
    finally:
        if following is not None:
            following.close()
        lab.close()


def test_who_is_too_slow_is_given_up_and_the_crew_goes_on() -> None:
    golden = reference(8)
    lab = hosts((1, 1))
    chance = random.Random(1)
    lab.install([0], [0] * LANES, summed=True)
    crew = lab.hosts[0].workers
    following = Following(lab, 0, 1, most=1)
    try:
        lab.until(lambda: following.came)  # what follows the state that it is sent
        for number in range(8):  # the new host never acts, so what it is sent piles up
            lab.step(crew, work_of(number), chance)
            assert crew[0].state() == golden[number]
        lab.until(lambda: any(isinstance(problem, FellBehind) for problem in following.problem))
    finally:
        following.close()
        lab.close()


def test_the_sentence_of_one_who_is_too_slow() -> None:
    assert str(FellBehind(200 << 20, 64 << 20)) == (
        "200 MiB of finished steps wait for the new host, and 64 MiB may: it or its network is slower than the crew"
    )


def test_a_donor_that_missed_a_step_itself_says_so_and_sends_nothing_of_it() -> None:
    golden = reference(8)
    lab = hosts((1, 1))
    chance = random.Random(3)
    lab.install([0], [0] * LANES, summed=True)
    crew = lab.hosts[0].workers
    following = Following(lab, 0, 1)
    try:
        for number in range(3):
            lab.step(crew, work_of(number), chance)
        lab.until(lambda: following.go_on(golden, crew, [0] * LANES) or lab.hosts[1].level() == 3)
        crew[0].board.words[H_CURRENT] = 99  # as if it had fetched the state in generation 99
        lab.step(crew, work_of(3), chance)
        lab.until(lambda: any(isinstance(problem, LostTrack) for problem in following.problem))
        assert str(LostTrack(3)) == "the donor's own host came past step 3 without its sums"
        assert lab.hosts[1].level() == 3
    finally:
        following.close()
        lab.close()


def test_a_donor_that_fails_for_a_reason_nobody_has_thought_of_lets_the_new_host_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("a body of 70000000 bytes")

    lab = hosts((1, 1))
    lab.install([0], [0, 0, 0, 0], summed=True)
    monkeypatch.setattr(Packer, "transfer", fail)
    ours, theirs = PlainStream.pair()
    donor = Donor(hold_of(lab.hosts[0]), ours, lab.generation, lab.moved.set)
    raised: list[Exception] = []

    def run() -> None:
        try:
            donor.run()
        except ValueError as error:
            raised.append(error)

    running = threading.Thread(target=run, name="donor-test", daemon=True)
    running.start()
    reading = threading.Thread(target=_read_to_the_end, args=(theirs,), name="follow-test", daemon=True)
    reading.start()
    try:
        crew = lab.hosts[0].workers
        for number in range(50):
            lab.step(crew, work_of(number), random.Random(number))
            reading.join(0.05)  # it begins at any of these steps
        assert not reading.is_alive(), "the new host sees the end"
        running.join(20)
        assert [str(error) for error in raised] == ["a body of 70000000 bytes"]
        assert crew[0].board.recorded(9), "and nobody waits for what it would have written down"
    finally:
        donor.close()
        theirs.close()
        lab.close()


def _read_to_the_end(stream: PlainStream) -> None:
    with contextlib.suppress(OSError):
        while stream._socket.recv(1 << 20):
            pass
