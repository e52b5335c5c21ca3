"""`holdfast run --listen` and `holdfast join` from outside, with fake workers: bad input, and who is let in."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.cli.rejoin import Patience
from tests.unit.cli.launched import ENVIRONMENT, Launched, holdfast

pytestmark = [pytest.mark.process, pytest.mark.sharing]

LONG = "steps=100000 pace=0.02"


def address(run: Launched) -> str:
    """Wait until a run listens; where."""
    until = time.monotonic() + 20
    while not (run.dir / "address").exists():
        assert time.monotonic() < until and run.process.poll() is None, run.process.communicate()
        time.sleep(0.01)
    return (run.dir / "address").read_text().strip()


@pytest.fixture(scope="module")
def going(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    """A run that listens on loopback."""
    with Launched(tmp_path_factory.mktemp("going"), "--workers", "1", "--listen", "127.0.0.1:0", script=LONG) as run:
        address(run)
        yield run


def join(*words: object, text: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    """Run `holdfast join` to its end; `text` is its standard input."""
    command = [sys.executable, "-m", "holdfast.cli.main", "join", *map(str, words)]
    return subprocess.run(
        command, env={**ENVIRONMENT, **more}, input=text, capture_output=True, text=True, check=False, timeout=60
    )


def refused(done: subprocess.CompletedProcess[str], code: int) -> str:
    """The one sentence that it ended with."""
    assert done.returncode == code, done
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("holdfast: "), done.stderr
    return lines[0]


# ---------------------------------------------------------------- listening


def test_a_run_that_listens_says_how_to_join_it(going: Launched) -> None:
    place = address(going)
    assert place.startswith("127.0.0.1:")
    token = going.dir / "token"
    assert os.stat(token).st_mode & 0o777 == 0o600 and len(token.read_text().strip()) == 43
    recorded = (going.dir / "run.json").read_text() + (going.dir / "story.jsonl").read_text()
    assert token.read_text().strip() not in recorded, "the secret is nowhere else"
    assert json.loads((going.dir / "run.json").read_text())["config"]["listen"] == "127.0.0.1:0"


def test_the_secret_goes_with_the_run(tmp_path: Path) -> None:
    with Launched(tmp_path, "--workers", "1", "--listen", "[::1]", script="steps=20") as run:
        place = address(run)
        assert place.startswith("[::1]:")
        assert run.end() == 0, run.err
    assert f"other machines join with: holdfast join {place} --token-file " in run.err
    assert {path.name for path in run.dir.iterdir()} == {"run.json", "story.jsonl", "summary.json", "logs"}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--listen", "nowhere at all"], "'nowhere at all' is not an address."),
        (["--listen", "127.0.0.1:99999"], "the port is not a number from 0 to 65535"),
        (["--listen", "no-such-host.invalid"], "The host name no-such-host.invalid cannot be resolved"),
        (["--listen", "127.0.0.1", "--token-file", "/no/such/token"], "/no/such/token"),
        (["--hosts", "2"], "hosts = 2: other machines cannot join a run that does not listen (set by --hosts)."),
        (["--dry-run"], "--dry-run prints what a cluster would be told."),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_made(
    tmp_path: Path, options: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").touch()
    assert main(["run", "--dir", str(tmp_path / "run"), *options, str(tmp_path / "train.py")]) == 2
    error = capsys.readouterr().err
    assert told in error and len(error.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        place = f"127.0.0.1:{other.getsockname()[1]}"
        with Launched(tmp_path, "--workers", "1", "--listen", place, script="steps=3") as run:
            assert run.end() == 2
    assert f"Cannot listen at {place}: Address already in use. " in run.err
    assert "a free port, or port 0 for any" in run.err
    assert run.summary["outcome"] == "failed"


def test_a_token_that_others_could_read_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "token").write_text("x" * 40)
    os.chmod(tmp_path / "token", 0o644)
    words = ["run", "--listen", "127.0.0.1", "--token-file", str(tmp_path / "token"), str(tmp_path / "train.py")]
    assert main(words) == 2
    assert f"chmod 600 {tmp_path / 'token'}" in capsys.readouterr().err
    assert main(["join", "127.0.0.1:1", "--token-file", str(tmp_path / "token")]) == 2
    assert f"chmod 600 {tmp_path / 'token'}" in capsys.readouterr().err


def test_a_token_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("y" * 40)
    os.chmod(tmp_path / "mine", 0o600)
    options = ["--workers", "1", "--listen", "127.0.0.1", "--token-file", str(tmp_path / "mine")]
    with Launched(tmp_path, *options, script=LONG) as run:
        place = address(run)
        assert not (run.dir / "token").exists()
        wrong = join(place, text="z" * 40)
        assert "has another token" in refused(wrong, 11)
        run.signal(signal.SIGINT)
        assert run.end() == 130
    assert f"--token-file {tmp_path / 'mine'}" in run.err
    assert "127.0.0.1 was refused" in run.err or "it does not hold the run's token" in run.err
    assert "z" * 40 not in run.err and "y" * 40 not in run.err


# ---------------------------------------------------------------- joining


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["10.0.0.5"], "'10.0.0.5' names no port."),
        (["[::1:4000"], "is not an address"),
        (["127.0.0.1:1", "--workers", "0"], "workers = 0: must be 1 or more (set by --workers)."),
        (["127.0.0.1:1", "--token-file", "/no/such/file"], "/no/such/file"),
        (["127.0.0.1:1", "--token-file", "a", "--credentials", "b"], "--credentials has the token in it."),
        (["127.0.0.1:1", "--patience", "60"], "argument --patience: "),
        (["127.0.0.1:1", "--token", "x"], "--token: holdfast join has no such option. Did you mean --token-file?"),
        ([], "the following arguments are required: ADDRESS"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["join", *words]) == 2
    error = capsys.readouterr().err
    assert told in error and len(error.splitlines()) == 1, error


def test_no_secret_at_all() -> None:
    told = refused(join("127.0.0.1:1"), 2)
    assert "The token from standard input is empty." in told
    assert "The token from HOLDFAST_TOKEN has 5 characters" in refused(join("127.0.0.1:1", HOLDFAST_TOKEN="short"), 2)


def test_a_wrong_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = f"127.0.0.1:{free.getsockname()[1]}"
    told = refused(join(place, text="x" * 40), 10)
    assert told == (
        f"holdfast: Nothing listens at {place}. Check that the run is still going, and that this is the address it "
        "printed."
    )
    assert "cannot be resolved" in refused(join("no-such-host.invalid:4000", text="x" * 40), 10)


def test_patience_tries_again_and_then_says_why() -> None:
    done = join("127.0.0.1:1", "--patience", "600ms", text="x" * 40)
    assert done.returncode == 10
    assert done.stderr.count("; trying again in ") >= 2
    assert done.stderr.splitlines()[-1].startswith("holdfast: Nothing listens at 127.0.0.1:1.")


def test_what_answers_is_no_run() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        place = f"127.0.0.1:{other.getsockname()[1]}"
        command = [sys.executable, "-m", "holdfast.cli.main", "join", place]
        with subprocess.Popen(
            command, env={**ENVIRONMENT, "HOLDFAST_TOKEN": "x" * 40}, stderr=subprocess.PIPE, text=True
        ) as caller:
            connection, _ = other.accept()
            connection.recv(1024)
            connection.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            _, said = caller.communicate(timeout=20)
            connection.close()
    assert caller.returncode == 10
    assert f"What answers at {place} is not a Holdfast run" in said


def test_a_wrong_token(going: Launched) -> None:
    told = refused(join(address(going), HOLDFAST_TOKEN="x" * 43), 11)
    assert f"The run at {address(going)} has another token. Copy the file `token`" in told


def test_another_version(going: Launched) -> None:
    code = (
        "import holdfast, sys; holdfast.__version__ = '9.9'\n"
        "from holdfast.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "join", address(going), "--token-file", str(going.dir / "token")]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=60)
    told = refused(done, 11)
    from holdfast import __version__

    assert f"is of Holdfast {__version__}, and this machine has 9.9. " in told


def test_ctrl_c_while_it_still_looks_for_the_run() -> None:
    command = [sys.executable, "-m", "holdfast.cli.main", "join", "127.0.0.1:1", "--patience", "1h"]
    with subprocess.Popen(
        command, env={**ENVIRONMENT, "HOLDFAST_TOKEN": "x" * 40}, stderr=subprocess.PIPE, text=True
    ) as caller:
        assert caller.stderr is not None
        assert "trying again" in caller.stderr.readline()
        caller.send_signal(signal.SIGINT)
        assert caller.wait(10) == 130


def test_a_run_that_only_coordinates_waits_for_hosts(tmp_path: Path) -> None:
    with Launched(tmp_path, "--workers", "0", "--listen", "127.0.0.1:0", script="steps=3") as run:
        address(run)
        status = run.wait(lambda s: s["state"] == "starting")
        assert status["workers"] == [] and status["hosts"] == []
        run.signal(signal.SIGINT)
        assert run.end() == 130
    assert "the run waits for a host to join: this machine has no workers" in run.err


def test_scaling_and_status_know_of_hosts(going: Launched) -> None:
    status = json.loads(holdfast("status", going.dir, "--json").stdout)
    (only,) = status["hosts"]
    assert (only["host"], only["name"], only["slots"]) == (0, socket.gethostname(), 1)
    assert "host 0" not in holdfast("status", going.dir).stdout, "one host is not worth a line"


# ---------------------------------------------------------------- how long to try


def test_patience_waits_longer_each_time_but_not_for_ever() -> None:
    patience = Patience(limit=60.0)
    now, waits = 0.0, []
    while (wait := patience.failed(now)) is not None:
        waits.append(wait)
        now += wait + 0.1
    assert waits[:6] == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0] and set(waits[5:]) == {5.0}
    assert 60.0 <= now < 66.0
    patience.met()
    assert patience.failed(1000.0) == 5.0, "it is there, but not for long: no hurry"
    patience.succeeded()
    assert patience.failed(2000.0) == 0.25


def test_no_patience_is_one_try() -> None:
    assert Patience(limit=0.0).failed(5.0) is None
