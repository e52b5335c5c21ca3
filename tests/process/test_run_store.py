"""`run.store` in real runs with real kills: counts outlive workers and servers, and nothing outlives the run."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from holdfast.observe.directory import recover
from tests.process.harness import SCRIPTS, Launch, until
from tests.process.joined import Joined, listening
from tests.process.wiretap import Wiretap
from tests.process.wiretap import why_not as no_wiretap

pytestmark = [pytest.mark.process, pytest.mark.sharing]

SCRIPT = SCRIPTS / "store_in_run.py"


def logged(run: Launch, text: str) -> bool:
    return any(text in path.read_text() for path in (run.dir / "logs").glob("worker-*.log"))


def servers(run: Launch) -> list[int]:
    """Processes of the store that serve or stand by."""
    return [pid for pid, command in run.processes().items() if "holdfast.store.server.server_main" in command]


def pid_of(run: Launch, worker: int) -> int:
    return next(one["pid"] for one in run.status()["workers"] if one["worker"] == worker)


def test_a_worker_and_a_server_are_killed_and_every_push_counts_once(tmp_path: Path) -> None:
    with Launch(tmp_path, SCRIPT, "--workers", "2", args="2000") as run:
        until(lambda: logged(run, "worker-1 at 40\n"), lambda: f"pushes\n{run.err}", 90.0)
        run.strike(pid_of(run, 1))
        os.kill(servers(run)[0], signal.SIGKILL)
        assert run.end(120.0) == 0, run.err
        assert run.summary["workers_lost"] == 1
        assert logged(run, "worker-0 sees 4000 to 4000\n")
        assert logged(run, "worker-1 sees 4000 to 4000\n")


def test_who_was_scaled_away_is_not_waited_for_at_a_barrier(tmp_path: Path) -> None:
    with Launch(tmp_path, SCRIPT, "--workers", "2", args="400") as run:
        until(lambda: logged(run, "worker-1 at 40\n"), lambda: f"pushes\n{run.err}", 90.0)
        run.scale(1)
        assert run.end(60.0) == 0, run.err
        assert logged(run, "worker-0 sees ") and not logged(run, "worker-1 sees ")


@pytest.mark.chaos
def test_no_server_outlives_a_launcher_that_is_killed(tmp_path: Path) -> None:
    with Launch(tmp_path, SCRIPT, "--workers", "2", args="1000000") as run:
        until(lambda: logged(run, "worker-0 at 40\n"), lambda: f"pushes\n{run.err}", 90.0)
        assert servers(run)
        run.process.kill()
        run.process.wait()
        until(lambda: not run.processes(), lambda: f"the end of {run.processes()}")
        recover(run.dir)  # as the next command does


@pytest.mark.skipif(bool(no_wiretap()), reason=no_wiretap())
def test_workers_on_another_host_share_the_store_and_the_token_never_travels(tmp_path: Path) -> None:
    options = ("--listen", "127.0.0.1", "--hosts", "2", "--workers", "1")
    with Launch(tmp_path, SCRIPT, *options, args="300") as run:
        listening(run)
        token, name = (run.dir / "token").read_bytes().strip(), SCRIPT.name.encode()
        with Wiretap(token, name) as tap, Joined(tmp_path, run) as there:
            assert run.end(120.0) == 0, run.err + there.err
            assert there.end() == 0
            assert logged(run, "worker-0 sees 600 to 600\n")
            assert logged(run, "worker-1 sees 600 to 600\n")
        assert tap.heard == {name}, "the script's name is sent: who does not hear that hears nothing"
