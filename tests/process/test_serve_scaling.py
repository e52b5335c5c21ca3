"""`holdfast serve --replicas MIN:MAX`: more replicas when requests ask for them."""

from __future__ import annotations

import http.client
import threading
import time
from pathlib import Path

import pytest

from tests.process.harness import holdfast, until
from tests.process.serving import Served

pytestmark = [pytest.mark.process]

CODE = """
import time


class Slow:
    inputs = [{"name": "x", "datatype": "FP32", "shape": [-1, 1]}]
    outputs = [{"name": "y", "datatype": "FP32", "shape": [-1, 1]}]
    batched = True

    def predict(self, x):
        time.sleep(0.01 * len(x))
        return {"y": x + 1}
"""


def test_sustained_load_gets_more_replicas_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(CODE)
    made = holdfast("export", f"{tmp_path / 'slow.py'}:Slow", "--to", tmp_path / "library")
    assert made.returncode == 0, made.stderr
    statuses: list[int] = []
    over = threading.Event()
    with Served(tmp_path / "library", directory=tmp_path / "served", options=("--replicas", "1:2")) as served:

        def ask() -> None:
            while not over.is_set():
                connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)
                connection.request("POST", "/predict", b"[[1]]")
                statuses.append(connection.getresponse().status)
                connection.close()

        clients = [threading.Thread(target=ask) for _ in range(12)]
        began = time.monotonic()
        for client in clients:
            client.start()
        try:
            until(lambda: len(served.replicas()) == 2, "a second replica", 30)
            took = time.monotonic() - began
        finally:
            over.set()
            for client in clients:
                client.join()
    assert set(statuses) <= {200, 503}
    assert "2 replicas instead of 1: " in served.output
    assert took < 10, "a second or two to decide, the rest to start it"
