"""`run.store` in a process that is alone, and what is asked for in a crew."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from holdfast import join
from holdfast.control.protocol import messages as say
from holdfast.errors import StoreError, UsageError
from holdfast.store import Store, elementwise
from holdfast.train.control_link import ControlLink
from holdfast.train.run import Run
from holdfast.train.run_store import RunStore, portable
from holdfast.transport.link import Link


@pytest.fixture
def run() -> Iterator[Run]:
    run = join(lanes=2)
    yield run
    run.close()


@elementwise
def halve(key: str, stored: Tensor, pushed: Tensor) -> None:
    stored.mul_(0.5).add_(pushed)


def test_alone_it_is_served_by_threads(run: Run) -> None:
    mine = run.store(servers=2, handler=halve)
    assert isinstance(mine, Store) and mine.client == "worker-0"
    mine.init("w", torch.full((3,), 4.0)).wait()
    assert mine.push_pull("w", torch.ones(3)).result().tolist() == [3, 3, 3]
    mine.barrier().wait()
    assert run.store(servers=2, handler=halve) is mine
    run.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("holdfast-store")]


def test_there_is_one_store_in_a_run(run: Run) -> None:
    run.store()
    with pytest.raises(UsageError) as caught:
        run.store(servers=2)
    assert str(caught.value) == (
        "run.store was called with (2, 'holdfast.store.handlers:add', None), and before with (1, "
        "'holdfast.store.handlers:add', None) (servers, handler, memory). There is one store in a run: keep it, or "
        "call run.store with the same arguments."
    )


def test_a_store_without_servers(run: Run) -> None:
    with pytest.raises(UsageError) as caught:
        run.store(servers=0)
    assert str(caught.value) == "A store of 0 servers: there must be at least one."


def test_what_was_not_waited_for_is_waited_for_at_the_end(run: Run) -> None:
    mine = run.store()
    mine.init("w", torch.zeros(3)).wait()
    pushed = mine.push("w", torch.ones(3))
    run.close()
    assert pushed.done


def test_the_launcher_says_why_there_is_none() -> None:
    ours, theirs = Link.pair()
    storing = RunStore(ControlLink(7, ours), 7, 1, "train.py")
    theirs.send(say.encode(say.Pause(3)))
    answering = threading.Thread(target=_answer, args=(theirs,))
    answering.start()
    with pytest.raises(StoreError, match=r"^It cannot be\.$"):
        storing.open(2, "train.py:descend", "1MiB", 5.0)
    answering.join()
    theirs.close()
    ours.close()


def _answer(link: Link) -> None:
    """What the coordinator hears, and says."""
    frame = link.recv()
    assert frame is not None
    assert say.decode_from_worker(frame.data) == say.StoreWanted(7, 2, "<script>:descend", 2**20)
    link.send(say.encode(say.StoreAt(7, "", problem="It cannot be.")))


def test_a_handler_by_a_name_that_other_hosts_understand() -> None:
    assert portable("/a/b/../train.py:f", "/a/train.py") == "<script>:f"
    assert portable("/a/other.py:f", "/a/train.py") == "/a/other.py:f"
    assert portable("module:f", "/a/train.py") == "module:f"


def test_what_lets_a_worker_in_is_not_shown() -> None:
    assert "secret" not in repr(say.StoreAt(1, "10.0.0.5:4000/1/1", credentials="secret"))
