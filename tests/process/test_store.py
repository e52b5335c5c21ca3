"""The store on real processes with real kills: every push counts once, and no value is ever torn."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast import store
from holdfast.errors import ResourceError, ServerLost, UsageError
from holdfast.store.client.wire import Wire
from holdfast.transport.link import Link
from tests.process.harness import SCRIPTS, alive, environment, until

pytestmark = [pytest.mark.process, pytest.mark.sharing]

WORKER = str(SCRIPTS / "store_worker.py")
HANDLERS = str(SCRIPTS / "store_handlers.py")


@contextlib.contextmanager
def worker(
    group: store.Group, name: str, kind: str, pushes: int, credentials: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    address = group.address if credentials is None else group.far_address
    command = [sys.executable, WORKER, address, name, kind, str(pushes), *map(str, filter(None, [credentials]))]
    child = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def going(child: subprocess.Popen[str]) -> None:
    assert child.stdout is not None
    assert child.stdout.readline() == "going\n"


def total(kind: str, pushes: int) -> torch.Tensor:
    if kind == "dense":
        return torch.full((1_500_000,), float(pushes))
    if kind == "several":
        return torch.full((20, 50), float(pushes))
    value = torch.zeros(400, 50)
    value[::2] = pushes
    return value


def found(mine: store.Store, kind: str) -> torch.Tensor:
    if kind == "several":
        return torch.stack(mine.pull([f"w{i}" for i in range(20)]).result())
    return mine.pull("w").result()


def kill_servers(
    group: Any, dice: random.Random, workers: Sequence[subprocess.Popen[str]], *, most: int, nap: tuple[float, float]
) -> None:
    """Kill one of two servers after the other while all workers go on, until so many were replaced."""
    while all(child.poll() is None for child in workers) and group.replaced < most:
        time.sleep(dice.uniform(*nap))  # a kill may come at any moment; that is the test
        server = dice.randrange(2)
        if pid := group.pids[server]:
            os.kill(pid, signal.SIGKILL)
            until(lambda gone=pid, at=server: group.pids[at] not in (0, gone), "another server")


KINDS = ["rows", "several", *(pytest.param(k, marks=pytest.mark.chaos) for k in ("dense", "spread"))]


@pytest.mark.parametrize("kind", KINDS)
def test_servers_are_killed_and_every_push_counts_once(kind: str) -> None:
    dice, pushes = random.Random(kind), 200 if kind == "several" else 800
    with store.local(servers=2, clients=2, handler="holdfast.store.handlers:add") as group:
        with worker(group, "one", kind, pushes) as one, worker(group, "two", kind, pushes) as two:
            for child in (one, two):
                going(child)
            kill_servers(group, dice, (one, two), most=4, nap=(0.01, 0.15))
            assert [child.wait(60) for child in (one, two)] == [0, 0]
        assert group.replaced >= 1, "a fast machine may be through before the second"
        with group.connect("reader") as mine:
            assert torch.equal(found(mine, kind), total(kind, 2 * pushes))


@pytest.mark.parametrize(
    "kind", ["spread", *(pytest.param(k, marks=pytest.mark.chaos) for k in ("dense", "rows", "several"))]
)
def test_workers_are_killed_and_every_push_counts_once(kind: str) -> None:
    dice, pushes, kills = random.Random(kind), 400, 0
    with store.local(servers=2, clients=2) as group, worker(group, "two", kind, pushes) as two:
        going(two)
        with group.connect("reader") as mine:
            while True:
                with worker(group, "one", kind, pushes) as one:
                    going(one)
                    time.sleep(dice.uniform(0.0, 0.2))
                    if kills < 3 and one.poll() is None:
                        one.kill()
                        one.wait()
                        kills += 1
                        if kind == "dense":
                            assert len(mine.pull("w").result().unique()) == 1  # whole, or not at all
                        continue
                    assert one.wait(60) == 0
                    break
            assert two.wait(60) == 0
            assert torch.equal(found(mine, kind), total(kind, 2 * pushes))
    assert kills >= 1, "a fast machine may be through before the third"


def test_a_handler_that_is_killed_halfway_is_undone_and_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = tmp_path / "once"
    monkeypatch.setenv("STORE_ONCE", str(once))
    with store.local(handler=f"{HANDLERS}:torn") as group, group.connect("a", timeout=30.0) as mine:
        mine.init("w", torch.zeros(1000)).wait()
        mine.init("t", torch.zeros(10, 4)).wait()
        mine.push("w", torch.ones(1000)).wait()
        view = mine.pull("w").result()
        once.touch()
        mine.push("w", torch.ones(1000)).wait()
        assert group.replaced == 1
        assert torch.equal(view, torch.ones(1000))  # what was pulled before is whole
        assert torch.equal(mine.pull("w").result(), torch.full((1000,), 2.0))
        once.touch()
        mine.push("t", store.Rows([1, 2, 3, 4], torch.ones(4, 4))).wait()
        assert group.replaced == 2
        assert torch.equal(mine.pull("t").result().sum(1), torch.tensor([0.0, 4, 4, 4, 4, 0, 0, 0, 0, 0]))


@pytest.mark.chaos
def test_a_push_that_kills_every_server_is_given_up() -> None:
    with store.local(handler=f"{HANDLERS}:deadly") as group:
        mine = group.connect("a", timeout=60.0)
        mine.init("w", torch.zeros(3)).wait()
        with pytest.raises(ServerLost) as caught:
            mine.push("w", torch.ones(3)).wait()
        assert group.replaced == 3
        text = (
            "Server 0 of the store ended 3 times in a row, each time while its handler applied a push of client 'a' on "
            "key 'w', the last time by SIGKILL; it is not started again. That push was not applied; its keys ('w') "
            "cannot be reached any more. See what the handler does with it, correct it, and start the store anew."
        )
        assert str(caught.value) == text
        for one in (mine, group.connect("b", timeout=10.0)):  # also who comes only now
            with pytest.raises(ServerLost) as caught:
                one.init("other", torch.zeros(3)).wait()
            assert str(caught.value) == text
            one.close()


@pytest.mark.chaos
def test_a_handler_that_writes_to_what_is_published_is_stopped_by_the_system() -> None:
    with store.local(handler=f"{HANDLERS}:vandal") as group:
        mine = group.connect("a", timeout=60.0)
        mine.init("w", torch.zeros(3)).wait()
        view = mine.pull("w").result()
        with pytest.raises(ServerLost):
            mine.push("w", torch.ones(3)).wait()
        assert view.tolist() == [0, 0, 0]


@pytest.mark.chaos
def test_a_barrier_outlives_its_server() -> None:
    with store.local(clients=2) as group, group.connect("a") as one, group.connect("b") as two:
        for _ in range(3):
            waiting = one.barrier("x")
            (pid,) = group.pids
            assert not waiting.done
            os.kill(pid, signal.SIGKILL)
            with ThreadPoolExecutor(1) as pool:  # who does not wait does not see that it has to ask again
                end = pool.submit(waiting.wait)
                two.barrier("x").wait()
                end.result()


@pytest.mark.chaos
def test_a_client_that_is_stopped_in_the_middle_of_a_push_stops_nobody_else(tmp_path: Path) -> None:
    size = 25_000_000
    code = (
        "import sys, torch; from holdfast import store\n"
        f"mine, value = store.connect(sys.argv[1], 'slow'), torch.ones({size})\n"
        f"mine.init('w', torch.zeros({size})).wait()\n"
        "print('going', flush=True)\n"
        "while True: mine.push('w', value).wait()"
    )
    with store.local() as group:
        child = subprocess.Popen(
            [sys.executable, "-c", code, group.address], env=environment(), stdout=subprocess.PIPE, text=True
        )
        try:
            going(child)
            with group.connect("a", timeout=20.0) as mine:
                for _ in range(5):
                    time.sleep(0.03)
                    os.kill(child.pid, signal.SIGSTOP)
                    first = mine.pull("w").result()
                    more = mine.push_pull("w", torch.ones(size)).result() - first
                    # Ours, and perhaps one of the other's that was whole when it was stopped.
                    assert more.unique().tolist() in ([1.0], [2.0])
                    os.kill(child.pid, signal.SIGCONT)
                    del first
        finally:
            child.kill()
            child.wait()
            assert child.stdout is not None
            child.stdout.close()


def test_no_value_goes_through_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []
    offer = Link.offer

    def counted(self: Link, data: bytes, fds: object = ()) -> object:
        sent.append(len(data))
        return offer(self, data, fds)  # type: ignore[arg-type]

    size = 5_000_000
    with store.local() as group, group.connect("a") as mine:
        mine.init("w", torch.zeros(size)).wait()
        monkeypatch.setattr(Link, "offer", counted)
        value = torch.ones(size)
        for _ in range(5):
            view = mine.push_pull("w", value).result()
        assert sum(sent) < 20_000  # for 100 MB
        assert isinstance(mine._keyed_requests.wires[0], Wire)
        maps = Path("/proc/self/maps").read_text().splitlines()
        ranges = [line.split() for line in maps if "holdfast-store" in line]
        at = view.data_ptr()
        (where,) = [
            words for words in ranges if int(words[0].split("-")[0], 16) <= at < int(words[0].split("-")[1], 16)
        ]
        assert where[1] == "r--s"  # it is the server's memory, and we can only look


def test_nothing_outlives_whoever_keeps_the_servers() -> None:
    code = (
        "from holdfast import store; import torch, time\n"
        "with store.local(servers=2) as group, group.connect('a') as mine:\n"
        "    mine.init('w', torch.zeros(10)).wait(); print(*group.pids, flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], env=environment(), stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    pids = [int(word) for word in child.stdout.readline().split()]
    assert len(pids) == 2 and all(map(alive, pids))
    child.kill()
    child.wait()
    child.stdout.close()
    until(lambda: not any(map(alive, pids)), "the servers' end")


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (
            "nowhere:nothing",
            "The handler 'nowhere:nothing' could not be loaded: ModuleNotFoundError: No module named 'nowhere'. Give "
            "'module:function' or 'path/to/file.py:function'.",
        ),
        (
            lambda key, stored, pushed: None,
            "The handler 'tests.process.test_store:<lambda>' cannot be found by its name in a server's process: write "
            "a function at the top level of a module, and give it, or its name as 'module:function' or "
            "'path/to/file.py:function'.",
        ),
    ],
    ids=["nowhere", "lambda"],
)
def test_a_handler_that_cannot_be_found(handler: object, text: str) -> None:
    with pytest.raises(UsageError) as caught, store.local(handler=handler):  # type: ignore[arg-type]
        pass
    assert str(caught.value) == text


def test_a_server_without_memory_refuses_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORE_EXTRA", str(800 * 2**20))
    with store.local(handler=f"{HANDLERS}:greedy") as group, group.connect("a", timeout=30.0) as mine:
        (pid,) = group.pids
        mine.init("w", torch.zeros(1000)).wait()
        with pytest.raises(ResourceError) as caught:
            mine.init("large", torch.zeros(300 * 2**20 // 4)).wait()  # twice: what was sent, and what is held
            mine.push("large", torch.zeros(300 * 2**20 // 4)).wait()
        refused = f"The system refused process {pid} 300.0 MiB of shared memory (Cannot allocate memory). Free some "
        assert refused in str(caught.value)
        with pytest.raises(ResourceError) as caught:
            mine.push("w", torch.full((1000,), 2.0)).wait()
        assert str(caught.value).startswith("There was no memory to apply a push of client 'a' on key 'w': Runtime")
        mine.push("w", torch.ones(1000)).wait()
        assert mine.pull("w").result().sum() == 1000
        assert group.pids == [pid] and not group.replaced
