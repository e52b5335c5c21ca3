"""The store service: one store in a run, or a sentence why there is none."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.cli.launch.store_service import StoreService, crew_of, differing
from holdfast.control.membership.roster import CrewStatus, HostStatus, WorkerStatus
from holdfast.control.protocol.messages import StoreAt, StoreWanted
from holdfast.store.server.rounds import Clients

ADD = "holdfast.store.handlers:add"


class Host:
    """What the store service needs of one."""

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


def test_a_server_that_asks_for_another_store_is_called_one() -> None:
    told = differing(StoreWanted(0, 1, ADD), StoreWanted(3, 2, ADD), servers=[3])
    assert told.startswith("Server 3 asks for a store with servers=2, ")
    assert "but worker 0 has asked for one" in told


def crew(generation: int, *stages: str, hosts: int = 1, wanted: int = 1) -> CrewStatus:
    people = [WorkerStatus(10 + row, 1, row, stage, []) for row, stage in enumerate(stages)]
    views = [HostStatus(number, "h", 1, 0) for number in range(hosts)]
    return CrewStatus(generation, 0, 1, [], [], people, 0, False, [], False, views, hosts_wanted=wanted)


def test_before_the_first_step_all_who_were_started_meet() -> None:
    everybody = ("worker-0", "worker-1")
    assert crew_of(crew(0, "starting", "ready")) == Clients(everybody, complete=True)
    assert crew_of(crew(0, "starting", "doomed")) == Clients(("worker-0",), complete=True)
    assert not crew_of(crew(0)).complete, "nobody was started yet"


def test_before_the_first_step_machines_that_are_awaited_are_waited_for() -> None:
    assert not crew_of(crew(0, "starting", wanted=2)).complete
    assert crew_of(crew(0, "starting", "starting", hosts=2, wanted=2)).complete


def test_then_the_members_meet_and_who_comes_or_goes_is_not_waited_for() -> None:
    seen = crew_of(crew(3, "member", "leaving", "starting", "finished", "member", "waiting", "dismissed", "doomed"))
    assert seen == Clients(("worker-0", "worker-4"), ("worker-2", "worker-5"), complete=True)


def test_who_asks_for_another_store_is_told_at_once() -> None:
    async def ask() -> None:
        store_service, host = StoreService("train.py", 2), Host(0)
        try:
            store_service.wanted(StoreWanted(0, 1, "nowhere:nothing"), host)  # type: ignore[arg-type]
            assert not host.sent
            store_service.wanted(StoreWanted(1, 2, ADD), host)  # type: ignore[arg-type]
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
            store_service.close()

    asyncio.run(ask())


def test_a_run_without_a_store_has_nothing_to_end() -> None:
    StoreService("train.py", 2).close()
