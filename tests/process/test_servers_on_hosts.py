"""The machine that has the servers is lost: in `exact` the others have all it takes, and go on to the same weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.process.harness import Launch
from tests.process.joined import LOOPBACK, Joined
from tests.process.six_epochs import finished, go, slow

pytestmark = [pytest.mark.process, pytest.mark.sharing]


def serving(run: Launch, host: int) -> None:
    """Wait until a server of this host owns the parameters."""
    run.wait(
        lambda s: [(one["host_number"], one["state"]) for one in s["servers"]] == [(host, "member")]
        and s["servers"][0]["share"] and not s["waiting_for"],
        f"a server on host {host}",
    )  # fmt: skip


@pytest.mark.parametrize("who", ["servers", pytest.param("workers", marks=pytest.mark.chaos)])
def test_a_lost_host_of_servers_changes_no_bit(tmp_path: Path, who: str) -> None:
    options = (*LOOPBACK, "--hosts", 2, "--workers", 0, "--servers", 1, "--set", f"optimizer={who}")
    with Launch(tmp_path, "normed", *options, args=slow(tmp_path)) as run, Joined(tmp_path, run) as primary:
        run.told("host 1 (")
        with Joined(tmp_path, run, name="other") as other:
            run.at_step(5)
            serving(run, 1)
            assert primary.kill_all() >= 4, "agent, forkserver, worker and server"
            run.told("host 1 lost (the other side closed the connection) with worker 0 and server 1")
            serving(run, 2)
            go(tmp_path)
            finished(run)
            assert other.end() == 0, other.err
    assert run.summary["workers_lost"] == 2
