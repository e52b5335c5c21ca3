"""Several hosts give the bits of one: real peer sessions over socket pairs, workers stepped by hand."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
import pytest

from holdfast.dataplane.memory import board as cells
from holdfast.dataplane.memory.arena_view import ArenaView
from holdfast.dataplane.memory.manifest import read_manifest
from holdfast.dataplane.reduce import early
from holdfast.dataplane.wire.packing import Packer
from holdfast.dataplane.wire.receiver import Receiver
from holdfast.dataplane.wire.state_transfer import fetch, serve
from holdfast.errors import FrameError
from holdfast.transport import frames
from holdfast.transport.frames import Kind, pack
from holdfast.transport.stream import PlainStream, name_of
from tests.unit.dataplane.hosted import Host, Lab
from tests.unit.dataplane.members import LANES, Worker, install, step, work_of

STEPS = 5


def reference(steps: int = STEPS, **options: Any) -> list[bytes]:
    """The state after every step, on one host with one worker."""
    worker = Worker(0, 0, **options)
    install([worker], [0] * LANES)
    states = []
    for number in range(steps):
        step([worker], work_of(number))
        states.append(worker.state())
    return states


def hosts(shape: tuple[int, ...], **options: Any) -> Lab:
    """Hosts with so many workers each; the first holds the state."""
    made, number = [], 0
    for index, count in enumerate(shape):
        first = Worker(number, number, empty=index > 0, **options)
        others = [Worker(number + i, number + i, first.arena, **options) for i in range(1, count)]
        made.append(Host(index, [first, *others]))
        number += count
    return Lab(made)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("session")]


def drive(lab: Lab, numbers: list[int], driver: list[int], sources: dict[int, int]) -> list[Worker]:
    lab.install(numbers, driver, sources)
    return [worker for number in numbers for worker in lab.hosts[number].workers]


@pytest.mark.parametrize("clip", [0.0, 0.5])
@pytest.mark.parametrize(
    ("shape", "driver"),
    [
        ((1, 1), [0, 0, 1, 1]),
        ((1, 1), [0, 1, 1, 1]),
        ((1, 1), [1, 1, 1, 1]),
        ((2, 1), [0, 1, 2, 2]),
        ((2, 2), [0, 1, 2, 3]),
        ((1, 1, 1), [0, 0, 1, 2]),
        ((1, 2, 1), [0, 1, 2, 3]),
        ((3, 1), [0, 1, 2, 3]),
    ],
)
def test_hosts_give_the_bits_of_one(shape: tuple[int, ...], driver: list[int], clip: float) -> None:
    golden = reference(clip=clip)
    lab = hosts(shape, clip=clip)
    chance = random.Random(str((shape, driver)))
    numbers = list(range(len(shape)))
    workers = drive(lab, numbers, driver, dict.fromkeys(numbers[1:], 0))
    try:
        for number in range(STEPS):
            counts = (3, 3, 3, 3)
            lab.step(workers, work_of(number, counts), chance)
            for worker in workers:
                assert worker.state() == golden[number], f"worker {worker.worker} after step {number}"
        assert all("has come from host 0" in said for said in lab.said), lab.said
    finally:
        lab.close()


@pytest.mark.parametrize("seed", range(25))
def test_a_host_that_is_lost_at_any_moment_changes_nothing(seed: int) -> None:
    """One host vanishes after some actions of a step; the others go on from what they have, or fetch what one has."""
    chance = random.Random(seed)
    golden = reference()
    lab = hosts((1, 1, 1))
    workers = drive(lab, [0, 1, 2], [0, 0, 1, 2], {1: 0, 2: 0})
    lost, at = chance.randrange(3), chance.randrange(STEPS)
    try:
        for number in range(STEPS):
            if number != at:
                left = [w for w in workers if not w.through(number)]
                lab.step(left, work_of(number), chance)
                for worker in workers:
                    assert worker.state() == golden[number]
                continue
            lab.step(workers, work_of(number), chance, actions=chance.randrange(9))
            numbers = [host for host in range(3) if host != lost]
            for host in lab.hosts.values():
                host.session.close()  # the fence comes before levels are asked for
            levels = {host: lab.hosts[host].level() for host in numbers}
            best = max(levels, key=levels.__getitem__)
            sources = {host: best for host in numbers if levels[host] < levels[best]}
            heirs = [numbers[0], numbers[0], numbers[1], numbers[1]]
            workers = drive(lab, numbers, heirs, sources)
            left = [w for w in workers if not w.through(number)]
            lab.step(left, work_of(number), chance)
            for worker in workers:
                assert worker.state() == golden[number], f"worker {worker.worker}, lost {lost} in step {at}: {levels}"
    finally:
        lab.close()


def test_a_host_joins_a_run_of_one_in_the_middle_of_a_step() -> None:
    golden = reference()
    for actions in range(8):
        chance = random.Random(actions)
        lab = hosts((2, 1))
        try:
            first = drive(lab, [0], [0, 0, 1, 1], {})
            lab.step(first, work_of(0), chance)
            lab.step(first, work_of(1), chance, actions=actions)
            assert lab.hosts[1].level() == -1
            workers = drive(lab, [0, 1], [0, 1, 2, 2], {1: 0})
            for number in range(1, STEPS):
                left = [w for w in workers if not w.through(number)]
                lab.step(left, work_of(number), chance)
                for worker in workers:
                    assert worker.state() == golden[number], (actions, number, worker.worker)
        finally:
            lab.close()


def test_a_small_last_batch_leaves_lanes_without_work() -> None:
    golden = Worker(0, 0)
    install([golden], [0] * LANES)
    lab = hosts((1, 1))
    try:
        workers = drive(lab, [0, 1], [0, 0, 1, 1], {1: 0})
        for number, counts in enumerate([(3, 3, 3, 3), (4, 3, 3, 3), (2, 2, 2, 0), (2, 0, 0, 0), (3, 3, 3, 3)]):
            step([golden], work_of(number, counts))
            lab.step(workers, work_of(number, counts), random.Random(number))
            assert [w.state() == golden.state() for w in workers] == [True, True], (number, counts)
    finally:
        lab.close()


def test_a_host_that_missed_sums_of_a_lost_host_fetches_the_state_from_one_that_has_them() -> None:
    """Host 2 is lost after its sums have reached host 0 and not host 1: one is a step ahead of the other."""
    golden = reference()
    for seed in range(6):
        chance = random.Random(seed)
        lab = hosts((1, 1, 1))
        try:
            lab.dams[2, 1] = threading.Event()
            lab.dams[2, 1].set()
            workers = drive(lab, [0, 1, 2], [0, 0, 1, 2], {1: 0, 2: 0})
            lab.step(workers, work_of(0), chance)
            lab.dams[2, 1].clear()
            ahead = [w for w in workers if w.worker != 1]
            late = workers[1]
            while not lab.step(ahead, work_of(1), chance, actions=3):
                late.turn(work_of(1))
            lab.step(ahead, work_of(2), chance, actions=seed)  # its slots are used for the next step already
            for host in lab.hosts.values():
                host.session.close()
            assert [lab.hosts[host].level() for host in (0, 1)] == [2, 1]
            workers = drive(lab, [0, 1], [0, 0, 1, 1], {1: 0})
            assert late.turn(work_of(1)) == "done"  # the step it missed has come to it whole
            assert late.state() == golden[1]
            for number in range(2, STEPS):
                lab.step(workers, work_of(number), chance)
                assert [w.state() == golden[number] for w in workers] == [True, True], (seed, number)
        finally:
            lab.close()


def test_a_fetch_that_breaks_off_leaves_the_older_state_whole() -> None:
    golden = reference()
    chance = random.Random(0)
    lab = hosts((1, 1))
    try:
        workers = drive(lab, [0, 1], [0, 0, 1, 1], {1: 0})
        lab.step(workers, work_of(0), chance)
        lab.step(drive(lab, [0], [0, 0, 0, 0], {}), work_of(1), chance)  # host 1 is left out for a step
        behind = lab.hosts[1]
        ours, theirs = PlainStream.pair()
        server = threading.Thread(target=_half_a_state, args=(lab.hosts[0], theirs))
        server.start()
        manifest = read_manifest(behind.memory)
        assert manifest is not None
        with pytest.raises((EOFError, OSError)):
            fetch(ArenaView(behind.memory, manifest), ours, 9)
        server.join()
        ours.close()
        assert behind.level() == 1
        assert behind.workers[0].state() == golden[0]
    finally:
        lab.close()


def _half_a_state(host: Host, stream: PlainStream) -> None:
    class Half(PlainStream):
        sent = 0

        def send(self, *buffers: Any) -> None:
            Half.sent += 1
            if Half.sent > 4:
                stream.close()
                raise OSError("it broke")
            stream.send(*buffers)

    manifest = read_manifest(host.memory)
    assert manifest is not None
    with pytest.raises(OSError, match="broke"):
        serve(ArenaView(host.memory, manifest), Half.__new__(Half), 9, lambda: False, 2)


def test_a_state_with_a_flipped_bit_is_refused() -> None:
    lab = hosts((1, 1))
    try:
        ours, theirs = PlainStream.pair()
        manifests = [read_manifest(lab.hosts[n].memory) for n in (0, 1)]
        assert manifests[0] is not None
        assert manifests[1] is not None
        source = ArenaView(lab.hosts[0].memory, manifests[0])

        class Flipping:
            peer = "host 0"

            def send(self, head: bytes, body: bytes = b"") -> None:
                theirs.send(head, bytes([body[0] ^ 1]) + body[1:] if body else b"")

        def send_state() -> None:
            with contextlib.suppress(OSError):
                serve(source, Flipping(), 5, lambda: False, 0)  # type: ignore[arg-type]

        server = threading.Thread(target=send_state)
        server.start()
        with pytest.raises(FrameError, match=r"the hash of 'parameters/float32' from byte 0 on is wrong"):
            fetch(ArenaView(lab.hosts[1].memory, manifests[1]), ours, 5)
        ours.close()
        server.join()
        theirs.close()
        assert lab.hosts[1].level() == -1
    finally:
        lab.close()


def test_workers_are_let_go_when_all_is_ready_and_nothing_they_write_is_wiped(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    real = ArenaView.begin

    def begin(view: ArenaView, lanes: frozenset[int], given: frozenset[int] | None = None) -> None:
        begun.append(view.board.current())
        real(view, lanes, given)

    monkeypatch.setattr(ArenaView, "begin", begin)
    lab = hosts((1, 1))
    try:
        (_, fetching) = drive(lab, [0, 1], [0, 0, 1, 1], {1: 0})
        assert fetching.board.current() == lab.generation
        assert begun[-1] < lab.generation, "what it makes ready is wiped before its workers begin"
        count = len(begun)
        lab.until(lambda: "the state at step 0 has come from host 0" in " ".join(lab.said))
        assert len(begun) == count
    finally:
        lab.close()


@pytest.mark.parametrize("clip", [0.0, 0.5])
@pytest.mark.parametrize("changed", [(), (0,), (-1,), (0, 1, 2, 3)])
def test_gradients_leave_before_the_unit_ends_and_again_if_the_script_changes_them(
    changed: tuple[int, ...], clip: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early, "_TOLD", 1)
    alone = Worker(0, 0, clip=clip)
    alone.meddle = partial(_halve, changed)
    install([alone], [0] * LANES)
    lab = hosts((1, 1), clip=clip)
    came: list[int] = []
    try:
        workers = drive(lab, [0, 1], [0, 0, 1, 1], {1: 0})

        def meddle(me: Worker, other: Worker, trainable: Any) -> None:
            """Between backward and optimizer.step(): wait until the other host has what backward made."""
            number = me.member._work.step
            if me.board.early([me.board.row], number) is not None:
                theirs = [index for index, home in enumerate(me.member.at.home or ()) if not home]
                lab.until(lambda: all(other.gradients.pieces.nodes(number, index) for index in theirs))
                came.append(number)
            _halve(changed, trainable)

        for me, other in (workers, workers[::-1]):
            me.meddle = partial(meddle, me, other)
        for number in range(STEPS):
            step([alone], work_of(number))
            lab.step(workers, work_of(number), random.Random(number))
            assert [w.state() == alone.state() for w in workers] == [True, True], number
        assert sorted(came) == sorted(2 * list(range(STEPS)))
    finally:
        lab.close()


def _halve(which: tuple[int, ...], trainable: Any) -> None:
    for index in which:
        trainable[index].grad.mul_(0.5)


@pytest.mark.parametrize("where", ["sending", "landing"])
def test_what_nobody_has_thought_of_is_told_and_ends_no_thread_in_silence(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("a body of 70000000 bytes")

    lab = hosts((1, 1))
    try:
        workers = drive(lab, [0, 1], [0, 0, 1, 1], {1: 0})
        if where == "sending":
            monkeypatch.setattr(Packer, "transfer", fail)
        else:
            monkeypatch.setattr(ArenaView, "land_facts", fail)
        with contextlib.suppress(AssertionError):
            lab.step(workers, work_of(0), random.Random(0), actions=40)
        lab.until(lambda: any(isinstance(error, ValueError) for _, error in lab.broken))
        assert {str(error) for _, error in lab.broken if isinstance(error, ValueError)} == {"a body of 70000000 bytes"}
        assert {host for host, error in lab.broken if isinstance(error, ValueError)} <= {0, 1}
    finally:
        lab.close()


def test_what_is_larger_than_a_frame_comes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts of lanes hold the buffers that they changed, and nobody knows how large those are."""
    monkeypatch.setitem(frames.MAX_BODY, Kind.FACTS, 100)
    monkeypatch.setitem(frames.MAX_BODY, Kind.PART, 150)
    golden, lab = reference(), hosts((1, 1))
    parts: list[int] = []
    gather = Receiver._gather
    monkeypatch.setattr(Receiver, "_gather", lambda self, header: parts.append(header.body) or gather(self, header))
    try:
        workers = drive(lab, [0, 1], [0, 0, 1, 1], {1: 0})
        for number in range(STEPS):
            lab.step(workers, work_of(number), random.Random(number))
            assert [w.state() == golden[number] for w in workers] == [True, True]
        assert len(parts) > 4 * STEPS and max(parts) == 150
    finally:
        lab.close()


class ByTcp(Lab):
    """Hosts that are joined by real connections."""

    def pair(self) -> tuple[socket.socket, socket.socket]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ours = socket.create_connection(listener.getsockname())
            return ours, listener.accept()[0]


def test_a_frame_of_an_old_generation_is_refused_told_once_with_its_address_and_harms_nobody() -> None:
    golden, chance = reference(), random.Random(0)
    lab = ByTcp(list(hosts((1, 1)).hosts.values()))
    try:
        recorded: list[bytes] = []
        workers = drive(lab, [0, 1], [0, 0, 1, 1], {1: 0})
        lab.step(workers, work_of(0), chance)
        recorded.append(pack(Kind.ROWS, lab.generation, msgspec.msgpack.encode([(0, 7, 7, 7, 0, 0, 0)])))
        workers = drive(lab, [0, 1], [0, 0, 1, 1], {})
        lab.step(workers, work_of(1), chance)
        lab.broken.clear()
        other = lab.hosts[1].session
        assert other is not None
        ((_, stream),) = other._streams
        stream.send(recorded[0])
        lab.until(lambda: any(isinstance(error, FrameError) for _, error in lab.broken))
        (refused,) = [(host, error) for host, error in lab.broken if isinstance(error, FrameError)]
        address = name_of(stream._socket.getsockname())  # type: ignore[attr-defined]
        assert refused[0] == 1
        assert str(refused[1]) == (
            "What came over the connection is no frame of this run: it is of generation 1, on a connection of "
            f"generation 2 (it came from {address}). The connection is closed; if it happens again, look for a proxy "
            "or a broken network card between the two hosts."
        )
        lab.until(lambda: any(host == 0 for host, _ in lab.broken))  # it is closed, not only left alone
        for host in lab.hosts.values():
            assert host.session is not None
            host.session.close()
        assert workers[0].board.cell(0, 2) != 7
        levels = {number: lab.hosts[number].level() for number in (0, 1)}
        best = max(levels, key=levels.__getitem__)
        workers = drive(lab, [0, 1], [0, 0, 1, 1], {n: best for n in levels if levels[n] < levels[best]})
        for number in range(2, STEPS):
            lab.step([w for w in workers if not w.through(number)], work_of(number), chance)
            assert [w.state() == golden[number] for w in workers] == [True, True], number
    finally:
        lab.close()


def test_where_a_host_s_own_workers_stand_is_for_nobody_else_to_say() -> None:
    lab = hosts((1, 1))
    try:
        workers = drive(lab, [0, 1], [0, 0, 1, 1], {1: 0})
        lab.step(workers, work_of(0), random.Random(0))
        before, other = workers[0].board.cell(0, cells.R_ARRIVED), lab.hosts[1].session
        assert other is not None
        (stream,) = [one for _, one in other._streams if not one._closed]  # type: ignore[attr-defined]
        rows = msgspec.msgpack.encode([(workers[0].board.row, 0, 7, 7, 0, 0, 0), (9, 9, 7, 7, 0, 0, 0)])
        stream.send(pack(Kind.ROWS, lab.generation, rows))
        lab.until(lambda: workers[0].board.cell(9, cells.R_ARRIVED) == 7)
        assert workers[0].board.cell(0, cells.R_ARRIVED) == before != 7
    finally:
        lab.close()


def test_a_connection_over_which_nothing_comes_through_is_ended_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = hosts((1, 1))
    try:
        drive(lab, [0, 1], [0, 0, 1, 1], {1: 0})
        session = lab.hosts[1].session
        assert session is not None
        lab.until(lambda: len(session._streams) == 2)
        session.look()
        assert lab.broken == [], "all is well"
        monkeypatch.setattr(PlainStream, "unanswered", lambda stream: 5)
        session.look()
        assert lab.broken == [], "a few are lost at times"
        monkeypatch.setattr(PlainStream, "unanswered", lambda stream: 6)
        session.look()
        host, error = lab.broken[0]
        assert (host, str(error)) == (0, "host 0 does not answer any more") and isinstance(error, TimeoutError)
        lab.until(lambda: any(host == 1 for host, _ in lab.broken))  # the other side sees the end
    finally:
        lab.close()
    session.look()
