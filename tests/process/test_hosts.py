"""Several hosts on one machine, over loopback: the same weights, whoever joins, leaves, dies or is cut off."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from holdfast.transport.auth.credentials import secrets_for
from tests.process.harness import TRAIN, Launch, environment, golden, holdfast, until
from tests.process.joined import LOOPBACK, Joined, listening
from tests.process.six_epochs import finished, go, slow

pytestmark = [pytest.mark.process, pytest.mark.sharing]


# ---------------------------------------------------------------- the same weights


@pytest.mark.parametrize(
    "model", ["normed", *(pytest.param(other, marks=pytest.mark.chaos) for other in ("lenet", "transformer"))]
)
def test_two_hosts_of_which_one_has_a_clock_that_is_hours_off(tmp_path: Path, model: str) -> None:
    off = tmp_path / "clock" / "sitecustomize.py"
    off.parent.mkdir()
    off.write_text("import time\nright = time.time\ntime.time = lambda: right() - 5 * 3600\n")
    path = f"{off.parent}:{environment()['PYTHONPATH']}"
    with Launch(tmp_path, model, *LOOPBACK, "--hosts", 2, "--workers", 1) as run, \
            Joined(tmp_path, run, workers=2, PYTHONPATH=path) as other:  # fmt: skip
        assert run.end() == 0, run.err
        assert other.end() == 0, other.err
    assert run.sha256 == golden(model, 4)
    run.trace.audit(samples=484, steps_of_epoch=16, epochs=3)
    assert run.summary["workers_lost"] == 0
    assert "the run has ended (the script has ended)" in other.err


@pytest.mark.chaos
def test_three_hosts_and_a_coordinator_without_workers(tmp_path: Path) -> None:
    with Launch(tmp_path, "normed", *LOOPBACK, "--hosts", 3, "--workers", 0) as run, \
            Joined(tmp_path, run, name="a") as a, Joined(tmp_path, run, name="b") as b, \
            Joined(tmp_path, run, name="c") as c:  # fmt: skip
        assert run.end() == 0, run.err
        assert [one.end() for one in (a, b, c)] == [0, 0, 0]
    assert run.sha256 == golden("normed", 4)
    assert "weights_sha256 " + run.sha256 in run.out, "what the lead prints, wherever it is"
    assert not (run.dir / "token").exists() and not (run.dir / "address").exists()


@pytest.mark.parametrize(
    "given", [False, pytest.param(True, marks=pytest.mark.chaos)], ids=["made by the run", "of a file"]
)
def test_encrypted_over_ipv6(given: bool, tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="making certificates needs cryptography (holdfast[tls])")
    more: tuple[object, ...] = ()
    if given:  # as in the pods of a Kubernetes job
        secrets_for("given", None, tls=True).theirs.write(tmp_path / "credentials")
        more = ("--token-file", tmp_path / "credentials")
    with Launch(tmp_path, "normed", "--listen", "[::1]:0", "--hosts", 2, "--workers", 1, "--tls", *more) as run, \
            Joined(tmp_path, run) as other:  # fmt: skip
        assert listening(run).startswith("[::1]:")
        assert os.stat(run.dir / "credentials").st_mode & 0o777 == 0o600
        assert run.end() == 0, run.err
        assert other.end() == 0, other.err
    assert run.sha256 == golden("normed", 4)


# ---------------------------------------------------------------- hosts come and go


def test_a_host_joins_in_the_middle_and_its_output_is_brought_back(tmp_path: Path) -> None:
    with Launch(tmp_path, "normed", *LOOPBACK, "--workers", 1, args=slow(tmp_path)) as run:
        run.at_step(2)
        assert os.stat(run.dir / "token").st_mode & 0o777 == 0o600
        with Joined(tmp_path, run) as other:
            run.told("host 1 (")
            run.crew_of(2)
            status = run.status()
            assert [worker["host_number"] for worker in status["workers"]] == [0, 1]
            assert [(there["host"], there["slots"]) for there in status["hosts"]] == [(0, 1), (1, 1)]
            assert status["hosts"][1]["address"].startswith("127.0.0.1:")
            shown = holdfast("status", run.dir).stdout
            assert f"host 1 ({socket.gethostname()}): 127.0.0.1:" in shown
            go(tmp_path)
            finished(run)
            assert other.end() == 0, other.err
    fetched = [line for line in run.story if "host 1: the state at step" in line]
    assert fetched and "while the run goes on" in fetched[0] and "verified" in fetched[0], run.story
    assert any("counts as lost" in line for line in run.story), "the limit of silence is told"
    assert run.summary["workers_lost"] == 0


def test_all_processes_of_a_host_are_killed(tmp_path: Path) -> None:
    with Launch(tmp_path, "normed", *LOOPBACK, "--hosts", 3, "--workers", 1, args=slow(tmp_path)) as run, \
            Joined(tmp_path, run, name="a") as one, Joined(tmp_path, run, name="b") as other:  # fmt: skip
        run.at_step(5)
        assert one.kill_all() >= 3, "agent, forkserver and worker"
        run.told("lost (the other side closed the connection)")
        go(tmp_path)
        finished(run)
        assert other.end() == 0, other.err
    assert run.summary["workers_lost"] == 1


@pytest.mark.chaos
def test_only_the_agent_is_killed_and_its_processes_follow(tmp_path: Path) -> None:
    with Launch(tmp_path, "normed", *LOOPBACK, "--hosts", 2, "--workers", 1, args=slow(tmp_path)) as run, \
            Joined(tmp_path, run, workers=2) as other:  # fmt: skip
        run.at_step(5)
        other.process.kill()
        other.process.wait()
        until(lambda: not other.processes(), "the end of its forkserver and workers", 2.0)
        assert len(other.left()) == 1, "it had no time to sweep up"
        holdfast("join", "127.0.0.1:1", "--token-file", run.dir / "token", TMPDIR=str(other.temp))
        assert not other.left(), "the next one does"
        go(tmp_path)
        finished(run)
    assert run.summary["workers_lost"] == 2


def test_leaving_drains(tmp_path: Path) -> None:
    with Launch(tmp_path, "normed", *LOOPBACK, "--hosts", 2, "--workers", 1, args=slow(tmp_path)) as run, \
            Joined(tmp_path, run) as other:  # fmt: skip
        run.at_step(5)
        other.process.send_signal(signal.SIGTERM)
        assert other.end() == 0, other.err
        assert "SIGTERM: leaving the run when others have taken over" in other.err and "left the run" in other.err
        run.crew_of(1)
        go(tmp_path)
        finished(run)
        assert run.trace.tries <= len(run.trace.units) + 4, "what it did of the step at hand may go with it, no more"
    assert any("is to leave (SIGTERM)" in line for line in run.story)
    assert run.summary["workers_lost"] == 0


@pytest.mark.chaos
def test_the_host_with_the_only_state_hands_it_over_before_it_leaves(tmp_path: Path) -> None:
    with Launch(tmp_path, "normed", *LOOPBACK, "--workers", 0, args=slow(tmp_path)) as run, \
            Joined(tmp_path, run, name="a") as first:  # fmt: skip
        run.at_step(5)
        first.process.send_signal(signal.SIGINT)
        run.told("it goes on until another host has the state of the run")
        with Joined(tmp_path, run, name="b") as second:
            assert first.end() == 0, first.err
            go(tmp_path)
            finished(run)
            assert second.end() == 0, second.err


def test_a_host_that_falls_silent_is_lost_and_joins_again(tmp_path: Path) -> None:
    with Launch(tmp_path, "normed", *LOOPBACK, "--hosts", 2, "--workers", 1, args=slow(tmp_path)) as run, \
            Joined(tmp_path, run) as other:  # fmt: skip
        run.at_step(5)
        other.process.send_signal(signal.SIGSTOP)
        run.told("host 1 lost (no sign of life for ")
        at = run.trace.read().step
        run.at_step(at + 5)
        other.process.send_signal(signal.SIGCONT)
        run.told("host 2 (")
        run.crew_of(2)
        go(tmp_path)
        finished(run)
        assert other.end() == 0, other.err
    assert "trying again" in other.err.lower()
    assert "as host 2" in other.err


def test_the_launcher_is_killed(tmp_path: Path) -> None:
    with Launch(tmp_path, "normed", *LOOPBACK, "--hosts", 2, "--workers", 1, args=slow(tmp_path)) as run, \
            Joined(tmp_path, run, "--patience", "1s") as other:  # fmt: skip
        run.at_step(5)
        run.process.kill()
        run.process.wait()
        until(lambda: len(other.processes()) == 1, "the end of its workers", 3.0)
        assert other.end(20) == 10, other.err
        assert "Nothing listens at" in other.err
        holdfast("status", run.dir)
        assert not (run.dir / "token").exists(), "no secret is left behind"


@pytest.mark.chaos
def test_ctrl_c_at_the_launcher_ends_all(tmp_path: Path) -> None:
    with Launch(tmp_path, "normed", *LOOPBACK, "--hosts", 2, "--workers", 1, args=slow(tmp_path)) as run, \
            Joined(tmp_path, run) as other:  # fmt: skip
        run.at_step(5)
        run.send(signal.SIGINT)
        assert run.end() == 130, run.err
        assert other.end() == 130, other.err
    assert run.summary["outcome"] == "stopped" and 5 <= run.summary["steps"] < 96
    assert f"weights_sha256 {run.sha256}" in run.out


# ---------------------------------------------------------------- who does not fit


def test_a_machine_of_another_numerics_class_is_refused_and_told_what_differs(tmp_path: Path) -> None:
    with Launch(tmp_path, "normed", *LOOPBACK, "--workers", 1, args=slow(tmp_path)) as run:
        run.at_step(1)
        with Joined(tmp_path, run, ATEN_CPU_CAPABILITY="default") as other:
            assert other.end() == 11, other.err
            assert "instructions is DEFAULT, but " in other.err and "golden computation" in other.err
        go(tmp_path)
        finished(run)


@pytest.mark.chaos
def test_the_script_travels_where_it_is_not_the_same(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    shutil.copy(TRAIN, script)
    (tmp_path / "beside.py").write_text("WORD = 'from beside'\n")
    script.write_text(script.read_text().replace("import holdfast as hf\n", "import holdfast as hf\nimport beside\n"))
    with script.open("a") as file:
        file.write("    print(beside.WORD, __file__)\n")
    with Launch(tmp_path, script, *LOOPBACK, "--hosts", 2, "--workers", 1, args="normed") as run:
        listening(run)
        run.wait(lambda s: s["workers"] and s["workers"][0]["state"] != "starting", "a worker that has read the script")
        (tmp_path / "beside.py").write_text("WORD = 'from elsewhere'\n")
        with Joined(tmp_path, run) as other:
            assert run.end() == 0, run.err
            assert other.end() == 0, other.err
    assert run.sha256 == golden("normed", 4)
    printed = (run.dir / "logs" / "worker-1.log").read_text()
    assert printed.startswith(f"from beside {other.temp}/holdfast-"), printed
    assert "was sent along: this machine has not the same" in other.err


# ---------------------------------------------------------------- workers elsewhere


@pytest.mark.chaos
def test_a_worker_and_a_forkserver_elsewhere_are_killed_and_replaced(tmp_path: Path) -> None:
    with Launch(tmp_path, "normed", *LOOPBACK, "--hosts", 2, "--workers", 1, args=slow(tmp_path)) as run, \
            Joined(tmp_path, run) as other:  # fmt: skip
        run.at_step(5)
        (victim,) = [worker["pid"] for worker in run.status()["workers"] if worker["host_number"] == 1]
        run.strike(victim)
        run.told("worker 1 on host 1 lost (signal 9)")
        run.crew_of(2)
        (forkserver,) = [pid for pid, command in other.processes().items() if _parent(pid) == other.process.pid]
        run.strike(forkserver)
        run.told("worker 2 on host 1 lost (signal 9)")
        run.crew_of(2)
        go(tmp_path)
        finished(run)
        assert other.end() == 0, other.err
    assert run.summary["workers_lost"] == 2


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.chaos
def test_a_script_that_fails_elsewhere_is_told_here_with_its_output(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text("import holdfast as hf\nrun = hf.join()\nprint('so far')\nraise KeyError('a column')\n")
    with Launch(tmp_path, script, *LOOPBACK, "--workers", 0) as run, Joined(tmp_path, run) as other:
        assert run.end() == 1, run.err
        assert other.end() == 1, other.err
    assert "KeyError: 'a column' at fails.py:4" in run.err
    assert "the run has failed (ScriptFailed: worker 0 failed with KeyError" in other.err
    assert (run.dir / "logs" / "worker-0.log").read_text().startswith("so far\nTraceback ")
    assert "Traceback" not in run.out + run.err


# ---------------------------------------------------------------- connections


def test_a_connection_between_hosts_breaks_and_both_are_well(tmp_path: Path) -> None:
    """Only the data connection: the run makes new ones, and loses nobody."""
    options = (*LOOPBACK, "--hosts", 2, "--workers", 1, "--set", "crew.settle=10m")  # no lane moves for speed
    with Launch(tmp_path, "normed", *options, args=slow(tmp_path)) as run, \
            Joined(tmp_path, run) as other:  # fmt: skip
        run.at_step(5)
        port = listening(run).rpartition(":")[2]
        control = run.status()["hosts"][1]["address"]
        (data,) = [peer for peer in _connected(port) if peer != control]
        _break(port, data)
        run.told("has lost a connection")
        go(tmp_path)
        finished(run)
        assert other.end() == 0, other.err
    assert run.summary["workers_lost"] == 0 and run.summary["generations"] == 2


@pytest.mark.chaos
def test_the_connection_to_the_coordinator_breaks_and_the_host_joins_again(tmp_path: Path) -> None:
    with Launch(tmp_path, "normed", *LOOPBACK, "--hosts", 2, "--workers", 1, args=slow(tmp_path)) as run, \
            Joined(tmp_path, run) as other:  # fmt: skip
        run.at_step(5)
        _break(listening(run).rpartition(":")[2], run.status()["hosts"][1]["address"])
        run.told("host 1 lost (the connection broke: ")
        run.told("host 2 (")
        run.crew_of(2)
        go(tmp_path)
        finished(run)
        assert other.end() == 0, other.err
    assert run.summary["workers_lost"] == 1


def _connected(port: str) -> list[str]:
    """Who is connected to this port of ours."""
    if shutil.which("ss") is None:
        pytest.skip("there is no `ss` to break a connection with (Debian: apt install iproute2)")
    command = ["ss", "-Htn", "state", "established", f"sport = :{port}"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [line.split()[3] for line in listed.splitlines()]


def _break(port: str, peer: str) -> None:
    """Have the kernel end a connection, as a lost route would."""
    assert peer in _connected(port)
    subprocess.run(["ss", "-K", "state", "established", f"dst {peer}"], capture_output=True, check=False)
    if peer in _connected(port):
        pytest.skip("this kernel, or this user, may not break a connection (ss -K)")
