"""Models that do what models should not: what their clients get, and that nobody else notices."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.model.kinds import python_class
from holdfast.model.user_code import parse_class
from holdfast.model.version_writer import write_version
from tests.process.harness import holdfast, until
from tests.process.serving import Answered, Served

pytestmark = [pytest.mark.process, pytest.mark.sharing]

GOOD, RAISES, NAN, SHAPE, HANGS, EXITS, CRASHES, PRINTS, GROWS, TAKES_ALL, LEAVES = range(11)

MODEL = """
import ctypes, os, sys, time
import numpy

class Model:
    inputs = [{"name": "what", "datatype": "INT64", "shape": [-1]}]
    outputs = [{"name": "twice", "datatype": "FP32", "shape": [-1]}]

    def setup(self, directory):
        self.kept = []
        SETUP

    def predict(self, what):
        twice = 2.0 * what.astype("float32")
        for code in what.tolist():
            if code == 1:
                raise RuntimeError("the secret is /etc/passwd")
            if code == 2:
                twice[what == 2] = numpy.nan
            if code == 3:
                return {"twice": numpy.zeros((len(what), 2), "float32")}
            if code == 4:
                time.sleep(1000)
            if code == 5:
                os._exit(3)
            if code == 6:
                ctypes.string_at(0)
            if code == 7:
                for _ in range(20_000):
                    print("x" * 100)
            if code == 8:
                self.kept.append(numpy.ones(30 << 17))
            if code == 9:
                self.kept.append(numpy.ones(8 << 30))
            if code == 10:
                sys.exit("enough")
        return {"twice": twice}
"""


def made(root: Path, scratch: Path, setup: str = "pass") -> Path:
    """The next version of the model in `root`."""
    file = scratch / "bad.py"
    file.write_text(MODEL.replace("SETUP", setup))
    draft, _ = python_class.draft(parse_class(f"{file}:Model"), "bad", None, variable={})
    return write_version(root, draft).path


def ask(served: Served, *what: int, id: str = "") -> Answered:
    request = {"inputs": [{"name": "what", "shape": [len(what)], "datatype": "INT64", "data": list(what)}]}
    body = json.dumps({**request, "id": id} if id else request).encode()
    return served.ask("/v2/models/bad/infer", body)


def right(answered: Answered, *what: int) -> bool:
    return answered.status == 200 and answered.json["outputs"][0]["data"] == [2.0 * code for code in what]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    scratch = tmp_path_factory.mktemp("bad")
    made(scratch / "model", scratch)
    options = ("--replicas", "2", "--hang", "1s", "--memory", "2GiB", "--slo", "500ms")
    with Served(scratch / "model", directory=scratch / "run", options=options) as served:
        yield served


class Others:
    """Clients of the same model that ask for nothing unusual."""

    def __init__(self, served: Served, clients: int = 6) -> None:
        self.wrong: list[bytes] = []
        self.count = 0
        self._served, self._stop = served, threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(clients)]

    def __enter__(self) -> Others:
        for thread in self._threads:
            thread.start()
        until(lambda: self.count > 20 or self.wrong, "answers to others")
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        while not self._stop.is_set():
            answered = ask(self._served, 0, 20, 21)
            if not right(answered, 0, 20, 21):
                self.wrong.append(answered.body)
            self.count += 1


@pytest.mark.parametrize("code", [RAISES, NAN, SHAPE, HANGS, EXITS, CRASHES, LEAVES, TAKES_ALL])
def test_only_the_bad_request_fails(served: Served, code: int) -> None:
    """Whatever the model does for it: one clear answer, that tells nothing of files or code."""
    with Others(served) as others:
        found = ask(served, code, id=f"bad-{code}")
        seen = others.count
        until(lambda: others.count > seen + 20 or others.wrong, "answers to others afterwards")
    assert found.status == 500 and "error" in found.json, found.body
    assert found.headers["x-request-id"] == f"bad-{code}"
    for secret in (b"passwd", b".py", b"/", b"Traceback"):
        assert secret not in found.body
    assert not others.wrong
    until(lambda: len(served.replicas()) == 2, "two replicas again")


def test_the_log_names_the_request_that_failed(served: Served) -> None:
    assert ask(served, RAISES, id="name-me").status == 500
    lines = served.directory / "requests.jsonl"
    until(lambda: lines.exists() and b"name-me" in lines.read_bytes(), "a line for it")
    line = next(json.loads(line) for line in lines.read_bytes().splitlines() if b"name-me" in line)
    assert line["status"] == 500 and line["model"] == "bad" and "RuntimeError" in line["reason"]
    assert line["total_ms"] > 0 and "secret" not in str(line)


def test_a_model_that_prints(served: Served) -> None:
    assert right(ask(served, PRINTS), PRINTS)


def test_a_model_that_grows_is_replaced_before_it_is_lost(served: Served) -> None:
    before = set(served.replicas())
    with Others(served, 2) as others:
        until(lambda: others.wrong or not right(ask(served, GROWS), GROWS) or not before & set(served.replicas()),
              "both replicas replaced", 120.0)  # fmt: skip
    assert not others.wrong
    assert not before & set(served.replicas())


def test_a_version_that_cannot_be_used_is_passed_over(tmp_path: Path) -> None:
    """Damaged on disk, or with a setup that raises or ends its process: the one before answers on, and that is said."""
    root = tmp_path / "model"
    made(root, tmp_path)
    with Served(root, directory=tmp_path / "run") as served:
        assert right(ask(served, GOOD), GOOD)
        metrics = lambda: served.ask("/metrics").body  # noqa: E731
        for version, setup in enumerate(["raise ValueError('no')", "os._exit(4)"], 2):
            made(root, tmp_path, setup)
            until(lambda refused=version - 1: b'holdfast_refused_versions{model="bad"} %d' % refused in metrics(),
                  f"version {version} refused")  # fmt: skip
        scratch = tmp_path / "aside"
        damaged = made(scratch, tmp_path, "pass  # another")
        (damaged / "bad.py").write_bytes(b"#" + (damaged / "bad.py").read_bytes()[1:])
        manifest = json.loads((damaged / "model.json").read_bytes())
        (damaged / "model.json").write_text(json.dumps({**manifest, "version": 4}))
        damaged.rename(root / "4")
        made(root, tmp_path, "self.kept = [5]")
        until(lambda: b'holdfast_serving_version{model="bad"} 5' in metrics(), "version 5")
        assert right(ask(served, GOOD), GOOD)
        printed = served.stop()
    assert "version 2 is not used" in printed and "ValueError" in printed
    assert "version 3 is not used" in printed and "version 4 is not used" in printed, printed


@pytest.mark.parametrize(("setup", "said"), [("raise ValueError('no')", "ValueError: no"), ("os._exit(4)", "status 4")])
def test_a_model_that_cannot_be_set_up_is_said_at_the_start(tmp_path: Path, setup: str, said: str) -> None:
    made(tmp_path / "model", tmp_path, setup)
    done = holdfast("serve", tmp_path / "model", "--dir", tmp_path / "run")
    assert done.returncode == 16, done.stderr
    assert "Version 1 of bad cannot be served" in done.stderr and said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_damaged_model_is_said_at_the_start(tmp_path: Path) -> None:
    version = made(tmp_path / "model", tmp_path)
    (version / "bad.py").write_bytes(b"#" + (version / "bad.py").read_bytes()[1:])
    done = holdfast("serve", tmp_path / "model", "--dir", tmp_path / "run")
    assert done.returncode == 16
    assert "bad.py has other bytes than were written" in done.stderr and "Traceback" not in done.stderr
