"""A served model through everything that replicas and versions do: real processes, real kills, every answer checked."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import threading
from pathlib import Path

import pytest

from tests.process.harness import Launch, alive, holdfast, until
from tests.process.models import mark_again, marked
from tests.process.serving import Served

pytestmark = [pytest.mark.process, pytest.mark.sharing]


class Load:
    """Clients that ask one after the other, and check what they get; `wrong` says what was not as it should be."""

    def __init__(self, served: Served, model: str = "marked", clients: int = 4) -> None:
        self.wrong: list[str] = []
        self.versions: list[str] = []
        self.count = 0
        self._served, self._model, self._stop = served, model, threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(clients)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def at(self, count: int) -> None:
        """Until so many more were answered."""
        wanted = self.count + count
        until(lambda: self.count >= wanted or self.wrong, f"{count} more answers")

    def _ask(self, seed: int) -> None:
        numbers = random.Random(seed)
        connection = http.client.HTTPConnection("127.0.0.1", self._served.port, timeout=30)
        while not self._stop.is_set():
            rows = numbers.randint(1, 3)
            data = [float(numbers.randint(0, 1000)) for _ in range(4 * rows)]
            request = {"inputs": [{"name": "x", "shape": [rows, 4], "datatype": "FP32", "data": data}]}
            try:
                connection.request("POST", f"/v2/models/{self._model}/infer", json.dumps(request))
                response = connection.getresponse()
                body = json.loads(response.read())
                if response.status != 200:
                    self.wrong.append(f"{response.status} {body}")
                    continue
                same, mark = sorted(body["outputs"], key=lambda output: output["name"] != "same")
                if same["data"] != data or len({*mark["data"]}) != 1 or len(mark["data"]) != 2 * rows:
                    self.wrong.append(f"torn: {body}")
                self.versions.append((body["model_version"], mark["data"][0]))
                self.count += 1
            except (OSError, http.client.HTTPException) as error:  # the next request has a connection of its own
                self.wrong.append(repr(error))
                connection.close()
        connection.close()


@pytest.fixture
def library(tmp_path: Path) -> Path:
    marked(tmp_path / "marked")
    return tmp_path / "marked"


def serve(library: Path, tmp_path: Path, *options: str) -> Served:
    return Served(library, directory=tmp_path / "served", options=options)


def test_it_answers_says_what_it_is_and_leaves_nothing(library, tmp_path):
    with serve(library, tmp_path, "--replicas", "2") as served:
        pids = [served.process.pid, *served.replicas()]
        assert len(pids) == 3
        assert served.ask("/v2/health/ready").json == {"live": True, "ready": True}
        answer = served.ask("/predict", b"[[1, 2, 3, 4]]").json
        assert answer["outputs"] == {"same": [[1, 2, 3, 4]], "mark": [[1, 1]]}
        assert (answer["model"], answer["version"]) == ("marked", "1")
        assert served.ask("/v2/models/marked").json["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    assert "nothing more is taken" in served.output
    assert served.process.returncode == 0
    until(lambda: not any(map(alive, pids)), "no process is left")


@pytest.mark.parametrize("strike", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM], ids=lambda one: one.name)
def test_a_replica_that_is_killed_stopped_or_terminated_fails_no_request(library, tmp_path, strike):
    with serve(library, tmp_path, "--replicas", "2") as served, Load(served) as load:
        for _ in range(3):
            load.at(30)
            victim = random.choice(served.replicas())
            os.kill(victim, strike)
            until(lambda victim=victim: not alive(victim), "the replica is gone")
            until(lambda: len(served.replicas()) >= 2, "another one is there")
        load.at(30)
    assert load.wrong == []


def test_the_only_replica_is_killed_and_what_it_was_asked_is_answered(library, tmp_path):
    with serve(library, tmp_path) as served, Load(served) as load:
        for _ in range(3):
            load.at(20)
            os.kill(served.replicas()[0], signal.SIGKILL)
        load.at(20)
    assert load.wrong == []


def test_new_versions_under_load_fail_nothing_and_no_answer_mixes_two(library, tmp_path):
    with serve(library, tmp_path, "--replicas", "2", "--prove", "1s") as served, Load(served) as load:
        for number in range(2, 7):
            load.at(20)
            path = mark_again(library, number, tmp_path)
            until(lambda path=path: load.versions[-1][0] == path.name, f"version {number} answers", 60)
        load.at(50)
    assert load.wrong == []
    assert all(float(version) == mark for version, mark in load.versions)
    seen = [version for at, (version, _) in enumerate(load.versions) if at == 0 or load.versions[at - 1][0] != version]
    assert set(seen) == {"1", "2", "3", "4", "5", "6"}


def test_a_corrupt_version_is_passed_over_and_the_old_one_goes_on(library, tmp_path):
    with serve(library, tmp_path) as served, Load(served, clients=1) as load:
        load.at(5)
        broken = mark_again(library, 2, tmp_path)
        # It is replaced whole, as a writer without care would: the hash in its manifest is another one.
        weights = broken / "weights.safetensors"
        data = bytearray(weights.read_bytes())
        data[-1] ^= 1
        weights.write_bytes(data)
        good = mark_again(library, 3, tmp_path)
        until(lambda: load.versions[-1][0] == good.name, "version 3 answers", 60)
    assert load.wrong == []
    assert {version for version, _ in load.versions} <= {"1", "2", "3"}


def test_it_drains_what_was_asked_is_answered_and_nothing_more_is_taken(library, tmp_path):
    with serve(library, tmp_path) as served, Load(served) as load:
        load.at(20)
        served.process.send_signal(signal.SIGTERM)
        until(lambda: served.process.poll() is not None, "it has ended")
        load._stop.set()
    assert served.process.returncode == 0
    # Turned away (503), or on a connection that was idle when it was closed, or not let in any more.
    allowed = ("503", "RemoteDisconnected", "ConnectionRefusedError", "ConnectionResetError", "BrokenPipeError")
    assert [text for text in load.wrong if not text.startswith(allowed)] == []


TRAINING = """
import sys
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
import holdfast as hf
from holdfast.data.sources import dataset

run = hf.join()
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(dataset("digits"), batch_size=64, shuffle=True)
model, optimizer, loader = run.prepare(model, optimizer, loader)
for epoch in run.epochs(100000):
    for step in run.steps(loader):
        for x, y in step:
            F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_run_is_served_while_it_trains_and_its_checkpoints_become_versions(tmp_path):
    script = tmp_path / "training.py"
    script.write_text(TRAINING)
    with Launch(tmp_path, script, "--workers", "1", "--checkpoint", "2s") as run:
        until(lambda: (run.dir / "run.json").exists(), "the run has a directory")
        with Served(run.dir, directory=tmp_path / "served", options=("--name", "going")) as served:

            def step() -> int:
                return served.ask("/v2/models/going/config").json["source"].get("step", 0)

            first = step()
            until(lambda: step() > first, "a newer checkpoint answers", 120)
            assert len(served.ask("/predict", json.dumps([0.5] * 64).encode()).json["outputs"]["output"]) == 10
        run.send(signal.SIGINT)
        run.end()


def test_mistakes_are_answered_with_sentences(library, tmp_path):
    outside = holdfast("serve", library, "--host", "0.0.0.0", cwd=tmp_path)
    assert outside.returncode == 2
    assert "--token-file" in outside.stderr
    nothing = holdfast("serve", tmp_path / "nothing", cwd=tmp_path)
    assert nothing.returncode == 16
    assert "nothing" in nothing.stderr
    with serve(library, tmp_path) as served:
        again = holdfast("serve", library, "--port", served.port, cwd=tmp_path)
        assert again.returncode == 2
        assert f"Port {served.port} of 127.0.0.1 cannot be used" in again.stderr


