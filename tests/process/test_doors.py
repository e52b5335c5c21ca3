"""Where a run listens, and what becomes of strangers who come there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from holdfast.transport.auth.credentials import Credentials
from holdfast.transport.endpoint import parse
from tests.hosts.strangers import KINDS, Strangers, recorded
from tests.process.harness import Launch
from tests.process.joined import LOOPBACK, Joined, listening
from tests.process.six_epochs import finished, go, slow

pytestmark = [pytest.mark.process, pytest.mark.sharing]


def listeners(pids: Iterable[int]) -> set[str]:
    """The addresses, as the kernel writes them, at which these processes listen over TCP."""
    held = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            held |= {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and f"socket:[{rest[5]}]" in held:
                found.add(local.partition(":")[0])
    return found


def test_a_run_on_one_machine_listens_nowhere(tmp_path: Path) -> None:
    with Launch(tmp_path, "normed", "--workers", 2, args=slow(tmp_path)) as run:
        run.at_step(2)
        assert len(run.processes()) >= 3
        assert listeners(run.processes()) == set()
        go(tmp_path)
        finished(run)


def test_strangers_at_the_door_are_turned_away_and_the_run_does_not_notice(tmp_path: Path) -> None:
    options = (*LOOPBACK, "--hosts", 2, "--workers", 1, "--set", "crew.settle=10m")  # no lane moves for speed
    with Launch(tmp_path, "normed", *options, args=slow(tmp_path)) as run, \
            Joined(tmp_path, run) as other:  # fmt: skip
        run.at_step(2)
        where = listeners([*run.processes(), *other.processes()])
        assert where == {"0100007F"}, "127.0.0.1 and nowhere else, as they were told to"
        door = parse(listening(run))
        strangers = Strangers(door, recorded(door, Credentials.read(run.dir / "token")))
        strangers.come(300)
        assert run.trace.read().step < 95, "they came while it was training"
        go(tmp_path)
        finished(run)
        assert other.end() == 0, other.err
        strangers.leave()
    assert strangers.told == dict.fromkeys(KINDS, (50, 50))
    told = [line.partition(": ")[2] for line in run.story if line.startswith("Refused a connection from 127.0.0.1:")]
    for reason in (
        "it closed the connection before it had said who it is.", "it does not hold the run's token.",
        "it is not a Holdfast (it began with ", "it is not a Holdfast (it announced a message of 65535 bytes, ",
    ):  # fmt: skip
        assert sum(sentence.startswith(reason) for sentence in told) == 1, f"{reason!r} once, in {told}"
    counted = [line for line in run.story if line.startswith("connections that were turned away at the door: ")]
    # Those who have begun to greet, and are waited for when the run ends, are let go uncounted.
    assert len(counted) == 1 and 250 <= int(counted[0].rpartition(" ")[2]) <= 300, run.story[-5:]
    assert (run.summary["workers_lost"], run.summary["generations"]) == (0, 1)
