"""The control plane: models are loaded, pinned, taken back to older versions and unloaded while clients ask."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from tests.process.harness import until
from tests.process.python_models import SLOW, TIMES, write_model
from tests.process.serving import Answered, Served

grpcclient = pytest.importorskip("tritonclient.grpc")
httpclient = pytest.importorskip("tritonclient.http")

from tritonclient.utils import InferenceServerException  # noqa: E402

pytestmark = [pytest.mark.process, pytest.mark.sharing]


class Operated:
    """A server with a control plane, and its one model of two versions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = write_model(folder / "times", TIMES.format(factor=1))
        write_model(self.model, TIMES.format(factor=2))
        options = ("--admin-port", "0", "--admin-grpc-port", "0", "--prove", "300s")
        self.served = Served(self.model, directory=folder / "run", options=options)

    def version(self, number: int) -> None:
        """Write the next version, whose answers are so many times what goes in."""
        write_model(self.model, TIMES.format(factor=number))

    def answers(self) -> tuple[int, Any]:
        """The status of an inference, and the version that has answered; or what is said instead."""
        body = {"inputs": [{"name": "x", "datatype": "INT64", "shape": [1], "data": [1]}]}
        told = self.served.ask("/v2/models/times/infer", json.dumps(body).encode())
        if told.status != 200:
            return told.status, told.json["error"]
        assert told.json["outputs"][0]["data"] == [int(told.json["model_version"])]  # the factor is the version
        return 200, int(told.json["model_version"])

    def ask(
        self, path: str, body: dict[str, Any] | bytes = b"", headers: dict[str, str] | None = None, method: str = "POST"
    ) -> Answered:
        """One request of an operator."""
        host, _, port = self.served.addresses["admin"].removeprefix("http://").rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        try:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, data, headers or {})
            response = connection.getresponse()
            return Answered(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def load(self, version: int = 0) -> Answered:
        """Over HTTP."""
        body = {"parameters": {"version": str(version)}} if version else {}
        return self.ask("/v2/repository/models/times/load", body)

    def index(self) -> dict[str, str]:
        """The states of versions."""
        return {one["version"]: one["state"] for one in self.ask("/v2/repository/index").json}


@pytest.fixture
def operated(tmp_path: Path) -> Iterator[Operated]:
    made = Operated(tmp_path)
    with made.served:
        yield made


def test_a_version_is_pinned_and_let_go_again(operated: Operated) -> None:
    assert operated.answers() == (200, 2)
    assert operated.load(1).json == {"name": "times", "version": "1"}
    assert operated.answers() == (200, 1)
    operated.version(3)  # the folder is watched, but another version is pinned
    assert operated.load(2).status == 200 and operated.answers() == (200, 2)
    assert operated.load().json["version"] == "3" and operated.answers() == (200, 3)
    operated.version(4)  # and from here on newer ones are taken up again
    until(lambda: operated.answers() == (200, 4), "version 4 to answer")
    assert operated.index()["4"] == "READY"


def test_loading_looks_for_new_versions_now(operated: Operated) -> None:
    operated.version(3)
    assert operated.load().json["version"] == "3"
    assert operated.answers() == (200, 3)


def test_no_request_fails_while_versions_are_changed_back_and_forth(operated: Operated) -> None:
    stop, wrong = threading.Event(), list[Any]()

    def clients() -> None:
        while not stop.is_set():
            if (told := operated.answers())[0] != 200:
                wrong.append(told)

    asking = [threading.Thread(target=clients) for _ in range(3)]
    for one in asking:
        one.start()
    try:
        for version in (1, 2, 1, 2, 1):
            assert operated.load(version).status == 200
    finally:
        stop.set()
        for one in asking:
            one.join()
    assert wrong == [] and operated.answers() == (200, 1)


def test_an_unloaded_model_is_gone_and_comes_back(operated: Operated) -> None:
    before = operated.served.replicas()
    assert operated.ask("/v2/repository/models/times/unload").status == 200
    assert before and operated.served.replicas() == []
    assert operated.answers() == (404, "times is not loaded: an operator has unloaded it.")
    assert operated.served.ask("/v2/models/times/ready").status == 404
    assert operated.served.ask("/v2/health/ready").status == 200  # it is what an operator wanted
    assert operated.ask("/v2/repository/index").json == [
        {"name": "times", "version": "", "state": "UNAVAILABLE", "reason": "unloaded"}
    ]
    assert operated.ask("/v2/repository/index", {"ready": True}).json == []
    assert operated.ask("/v2/repository/models/times/unload").status == 200  # once more changes nothing
    assert operated.load(1).status == 200 and operated.answers() == (200, 1)


def test_what_was_taken_is_answered_before_a_model_is_unloaded(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    model = write_model(tmp_path / "slow", SLOW.format(begun=str(begun)))
    with Served(model, directory=tmp_path / "run", options=("--admin-grpc-port", "0", "--slo", "30s")) as served:
        told: list[Answered] = []
        body = {"inputs": [{"name": "seconds", "datatype": "FP32", "shape": [1], "data": [1]}]}
        asking = threading.Thread(
            target=lambda: told.append(served.ask("/v2/models/slow/infer", json.dumps(body).encode()))
        )
        asking.start()
        until(begun.exists, "the model to be at it")
        admin = grpcclient.InferenceServerClient(served.addresses["admin-grpc"])
        admin.unload_model("slow")  # returns when all is over
        admin.close()
        asking.join()
        assert [one.status for one in told] == [200] and served.replicas() == []
        assert served.ask("/v2/models/slow/infer", b"{}").status == 404


def refusal(ask: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(InferenceServerException) as error:
        ask()
    return str(error.value.status()), error.value.message()


def test_triton_s_clients_drive_it(operated: Operated) -> None:
    rest = httpclient.InferenceServerClient(operated.served.addresses["admin"].removeprefix("http://"))
    rpc = grpcclient.InferenceServerClient(operated.served.addresses["admin-grpc"])
    for client in (rest, rpc):
        assert client.is_server_live() and client.is_server_ready()
        client.unload_model("times")
        assert operated.answers()[0] == 404
        client.load_model("times")
        assert operated.answers() == (200, 2)
    assert [(one["version"], one["state"]) for one in rest.get_model_repository_index()] == [("2", "READY")]
    assert [(one.version, one.state) for one in rpc.get_model_repository_index().models] == [("2", "READY")]
    assert "model_repository" in rpc.get_server_metadata().extensions
    assert refusal(lambda: rest.load_model("other")) == (
        "404", "There is no model 'other'; this server was started with times.",
    )  # fmt: skip
    assert refusal(lambda: rpc.load_model("other"))[0] == "StatusCode.NOT_FOUND"
    for client in (rest, rpc):
        config = json.dumps({"name": "times", "backend": "python"})
        _, message = refusal(lambda client=client, config=config: client.load_model("times", config=config))
        assert "models are served from the folders with which the server was started" in message
    x = grpcclient.InferInput("x", [1], "INT64")
    x.set_data_from_numpy(numpy.array([1]))
    assert refusal(lambda: rpc.infer("times", [x]))[0] == "StatusCode.UNIMPLEMENTED"
    rest.close()
    rpc.close()


def test_what_cannot_be_loaded_is_said_and_what_answers_goes_on(operated: Operated) -> None:
    assert (operated.load(9).status, operated.load(9).json) == (404, {"error": "There is no version 9 of times."})
    operated.version(3)
    (operated.model / "3" / "times.py").write_text("x")
    told = operated.load(3)
    assert told.status == 409 and "not whole" in told.json["error"] and str(operated.folder) not in told.json["error"]
    write_model(operated.model, TIMES.format(factor=4).replace("INT64", "INT32"))
    told = operated.load(4)
    assert told.status == 409 and "takes or gives something else" in told.json["error"]
    assert operated.answers() == (200, 2)


@pytest.mark.parametrize("name", ["..%2Fother", "..", "%2e%2e", "/etc", "times/../../x", "times%00"])
def test_a_path_is_no_name(operated: Operated, name: str) -> None:
    told = operated.ask(f"/v2/repository/models/{name}/load")
    assert told.status == 404 and operated.answers() == (200, 2)


def test_pages_in_a_browser_may_not_ask(operated: Operated) -> None:
    told = operated.ask("/v2/repository/models/times/unload", headers={"Origin": "http://127.0.0.1"})
    assert told.status == 403 and operated.answers() == (200, 2)


def test_clients_cannot_reach_it_where_they_ask_for_models(operated: Operated) -> None:
    for path in ("/v2/repository/index", "/v2/repository/models/times/unload"):
        assert operated.served.ask(path, b"").status == 404
    assert operated.ask("/v2/models/times/infer").status == 404  # nor the other way round
