"""The depot: one store in a run, or a sentence why there is none."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.cli.depot import Depot, differing
from holdfast.coordinator.messages import StoreAt, StoreWanted

ADD = "holdfast.store.handlers:add"


class Host:
    """What the depot needs of one."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.sent: list[StoreAt] = []
        self.answered = asyncio.Event()

    def send(self, worker: int, message: Any) -> None:
        assert message.worker == worker
        self.sent.append(message)
        self.answered.set()


def test_workers_that_ask_for_different_stores() -> None:
    first = StoreWanted(0, 1, ADD)
    assert differing(first, StoreWanted(3, 1, ADD)) == ""
    assert differing(first, StoreWanted(3, 2, "<script>:f", 2**31)) == (
        "Worker 3 asks for a store with servers=2, handler='<script>:f', memory=2GiB, but worker 0 has asked for one "
        "with servers=1, handler='holdfast.store.handlers:add', and there is one store in a run. Call run.store with "
        "the same arguments in every worker."
    )


def test_who_asks_for_another_store_is_told_at_once() -> None:
    async def ask() -> None:
        depot, host = Depot("train.py", 2), Host(0)
        try:
            depot.wanted(StoreWanted(0, 1, "nowhere:nothing"), host)  # type: ignore[arg-type]
            assert not host.sent
            depot.wanted(StoreWanted(1, 2, ADD), host)  # type: ignore[arg-type]
            assert "there is one store in a run" in host.sent.pop().problem
            host.answered.clear()
            await asyncio.wait_for(host.answered.wait(), 60.0)
            (answer,) = host.sent
            assert (answer.worker, answer.address) == (0, "")
            assert answer.problem == (
                "The run's store cannot be started. The handler 'nowhere:nothing' could not be loaded: "
                "ModuleNotFoundError: No module named 'nowhere'. Give 'module:function' or 'path/to/file.py:function'."
            )
        finally:
            depot.close()

    asyncio.run(ask())


def test_a_run_without_a_store_has_nothing_to_end() -> None:
    Depot("train.py", 2).close()
