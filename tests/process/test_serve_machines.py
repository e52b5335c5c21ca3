"""A served model whose replicas are on other machines, through everything that happens to those."""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.harness import alive, holdfast, until
from tests.process.machines import Cable, Machine, end_servers, gateway_of, serve
from tests.process.models import mark_again, marked
from tests.process.serving import Served
from tests.process.test_serve import Load

pytestmark = [pytest.mark.process, pytest.mark.sharing]


#: Nothing is refused for being late: how quick this machine is does not matter here.
PATIENT = ("--slo", "10s", "--hang", "60s")


@pytest.fixture(autouse=True)
def no_server_is_left() -> Iterator[None]:
    """However a test ends."""
    yield
    end_servers()


@pytest.fixture
def library(tmp_path: Path) -> Path:
    marked(tmp_path / "marked")
    return tmp_path / "marked"


def together(served: Served, *machines: Machine, local: int = 0) -> None:
    """Until it answers, and every machine has a replica."""
    until(lambda: served.addresses and all(one.replicas for one in machines), lambda: f"all\n{served.process}", 60)
    until(lambda: len(served.replicas()) == local, f"{local} replicas on the server's own machine")


@pytest.fixture
def both(library: Path, tmp_path: Path) -> Iterator[tuple[Served, Machine]]:
    """A server with a replica here and another on a machine."""
    served = serve(library, tmp_path / "served", "--replicas", "2", "--here", "1", *PATIENT)
    try:
        with Machine(served, tmp_path / "machine", "--replicas", "2") as machine:
            together(served, machine, local=1)
            yield served, machine
    finally:
        served.stop()


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_it_answers_as_here_and_leaves_nothing(library: Path, tmp_path: Path, tls: bool) -> None:
    with Served(library, directory=tmp_path / "local") as served:
        wanted = served.ask("/predict", b"[[1, 2.5, 3, 4]]").json
    served = serve(library, tmp_path / "served", "--here", "0", "--slo", "5s", *(["--tls"] if tls else []))
    with Machine(served, tmp_path / "machine", "--replicas", "1") as machine:
        together(served, machine)
        assert served.ask("/predict", b"[[1, 2.5, 3, 4]]").json == wanted
        big = [[float(number)] * 4 for number in range(9_000)]
        answer = served.ask("/predict", json.dumps(big).encode()).json
        assert answer["outputs"]["same"] == big
        pids = [*machine.pids, gateway_of(served)]
        assert len(pids) == 4 and all(pids)
        assert any(machine.temp.glob("holdfast-*/models/*/1/model.json")), "the files of the version are there"
        served.stop()
        assert machine.process.wait(20) == 0
        assert "the server has ended" in machine.output
        until(lambda: not any(map(alive, pids)), "no process is left")
        assert list(machine.temp.glob("holdfast-*")) == []
    assert not any((tmp_path / "served" / name).exists() for name in ("token", "credentials", "address"))


@pytest.mark.parametrize("who", ["replica", "host", "gateway"])
def test_whatever_is_killed_or_stopped_fails_no_request_and_comes_back(
    both: tuple[Served, Machine], tmp_path: Path, who: str
) -> None:
    served, machine = both
    with Load(served) as load:
        for strike in (signal.SIGSTOP, signal.SIGKILL):
            load.at(30)
            before = machine.replicas
            victim = {"replica": before[0], "host": machine.pid, "gateway": gateway_of(served)}[who]
            os.kill(victim, strike)
            if who == "host":
                until(lambda: len(served.replicas()) == 2, "what was there is here now", 60)
                if strike == signal.SIGSTOP:
                    os.kill(victim, signal.SIGCONT)
                else:
                    machine.process.wait()
                    machine = Machine(served, tmp_path / "another", "--replicas", "2")
            else:
                until(lambda victim=victim: not alive(victim), "it is gone", 20)
            load.at(30)
            until(lambda m=machine, b=before: set(m.replicas) - set(b), "another replica is there", 90)
            together(served, machine, local=1)
        load.at(30)
    machine.__exit__()
    assert load.wrong == []


def test_a_cut_connection_fails_no_request_and_the_machine_comes_back(library: Path, tmp_path: Path) -> None:
    served = serve(library, tmp_path / "served", "--replicas", "2", "--here", "1", *PATIENT)
    with Cable((served.directory / "address").read_text().strip()) as cable:
        with Machine(served, tmp_path / "machine", address=cable.address) as machine:
            together(served, machine, local=1)
            with Load(served) as load:
                for _ in range(2):
                    load.at(30)
                    cable.cut()
                    until(lambda: len(served.replicas()) == 2, "both replicas are here", 60)
                    load.at(30)
                    cable.laid = True
                    together(served, machine, local=1)
                load.at(30)
            assert load.wrong == []
        served.stop()


def test_a_machine_that_is_to_leave_has_its_replicas_replaced_first(both: tuple[Served, Machine]) -> None:
    served, machine = both
    with Load(served) as load:
        load.at(30)
        assert machine.end() == 0
        assert len(served.replicas()) == 2, "another one was there before"
        load.at(30)
    assert load.wrong == []
    assert "left the server; its replicas are elsewhere" in machine.output
    assert "is lost" not in served.stop()


def test_new_versions_travel_and_no_answer_mixes_two(
    both: tuple[Served, Machine], library: Path, tmp_path: Path
) -> None:
    served, machine = both
    with Load(served) as load:
        for number in range(2, 5):
            load.at(20)
            path = mark_again(library, number, tmp_path)
            until(lambda path=path: load.versions[-1][0] == path.name, f"version {number} answers", 60)
        load.at(50)
        assert len(list(machine.temp.glob("holdfast-*/models/*"))) <= 5, "old versions are removed"
    assert load.wrong == []
    assert all(float(version) == mark for version, mark in load.versions)


def test_a_damaged_file_is_refused_and_taken_once_it_is_whole(library: Path, tmp_path: Path) -> None:
    served = serve(library, tmp_path / "served", "--here", "0", *PATIENT)
    with Machine(served, tmp_path / "machine") as machine:
        together(served, machine)
        weights = library / "1" / "weights.safetensors"
        whole = weights.read_bytes()
        weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with Machine(served, tmp_path / "another") as machine:  # the first one had its files; this one has to ask for them
        assert served.process.stdout is not None
        refused = "weights.safetensors has other bytes than were written"
        assert any(refused in line for line in served.process.stdout)
        assert machine.replicas == []
        weights.write_bytes(whole)
        until(lambda: machine.replicas, "it has loaded what is whole", 60)
        until(lambda: served.ask("/v2/health/ready").status == 200, "it answers")
        assert served.ask("/predict", b"[[1, 2, 3, 4]]").json["outputs"]["mark"] == [[1, 1]]
        served.stop()


def test_who_may_not_come_in(library: Path, tmp_path: Path) -> None:
    served = serve(library, tmp_path / "served", "--replicas", "1")
    address = (served.directory / "address").read_text().strip()
    (tmp_path / "wrong").write_text("w" * 40)
    (tmp_path / "wrong").chmod(0o600)
    wrong = holdfast("replica", address, "--token-file", tmp_path / "wrong")
    assert wrong.returncode == 11
    assert "token" in wrong.stderr
    training = holdfast("join", address, "--token-file", served.directory / "token")
    assert training.returncode == 11
    assert "add the machine with `holdfast replica`" in training.stderr
    served.wait_ready()
    assert "it does not hold the run's token" in served.stop()
    gone = holdfast("replica", address, "--token-file", tmp_path / "wrong")
    assert gone.returncode == 10
    for words in (("--here", "1"), ("--tls",), ("--hosts", "2"), ("--replicas", "3:2"), ("--replicas", "0")):
        assert holdfast("serve", library, *words, cwd=tmp_path).returncode == 2


SLOW = """
import tempfile
import time
from pathlib import Path

import numpy


class Slow:
    inputs = [{"name": "x", "datatype": "FP32", "shape": [-1, 1]}]
    outputs = [{"name": "where", "datatype": "FP32", "shape": [-1, 1]}]
    batched = True

    def predict(self, x):
        own = Path(tempfile.gettempdir()) / "seconds"
        seconds = float(own.read_text()) if own.exists() else 0.002
        time.sleep(seconds)
        return {"where": numpy.full((len(x), 1), seconds, "float32")}
"""


def python_model(tmp_path: Path) -> Path:
    """A model that takes as long as its machine says, and tells how long that was."""
    code = tmp_path / "slow.py"
    code.write_text(SLOW)
    done = holdfast("export", f"{code}:Slow", "--to", tmp_path / "library")
    assert done.returncode == 0, done.stderr
    return tmp_path / "library"


def answers_from(served: Served, count: int) -> list[float]:
    """Where answers came from, to so many requests of one item, of clients beside each other."""
    found: list[float] = []

    def ask() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)
        while len(found) < count:
            connection.request("POST", "/predict", b"[[1]]")
            response = connection.getresponse()
            body = json.loads(response.read())
            assert response.status == 200, body
            found.append(round(body["outputs"]["where"][0][0], 4))
        connection.close()

    clients = [threading.Thread(target=ask) for _ in range(6)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    return found


def test_a_slow_machine_gets_less(tmp_path: Path) -> None:
    library = python_model(tmp_path)
    served = serve(library, tmp_path / "served", "--replicas", "2", "--here", "0", "--slo", "200ms")
    for name, seconds in (("fast", "0.004"), ("slow", "0.04")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "seconds").write_text(seconds)
    with (
        Machine(served, tmp_path / "fast", "--replicas", "1") as fast,
        Machine(served, tmp_path / "slow", "--replicas", "1") as slow,
    ):
        together(served, fast, slow)
        given = {0.004: 0, 0.04: 0}
        for seconds in answers_from(served, 400):
            given[seconds] += 1
        assert given[0.004] > 4 * given[0.04] > 0, given
        served.stop()
