"""Clients that others wrote, against a server as users start it: tritonclient, KServe's clients, curl."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from tests.process.python_models import ECHO, SLOW, write_model
from tests.process.serving import Served

grpcclient = pytest.importorskip("tritonclient.grpc")
httpclient = pytest.importorskip("tritonclient.http")

import tritonclient.grpc.aio  # noqa: E402
import tritonclient.http.aio  # noqa: E402
from tritonclient.utils import InferenceServerException  # noqa: E402

from holdfast.serve.protocol import grpc_messages  # noqa: E402

pytestmark = [pytest.mark.process, pytest.mark.sharing]

NUMBERS = numpy.arange(12, dtype=numpy.float32).reshape(3, 4)
HALVES = numpy.linspace(-1, 1, 6).astype(numpy.float16).reshape(3, 2)
#: It was taken and its time has passed, or it was clear at once that it would.
TOO_LATE = ("StatusCode.DEADLINE_EXCEEDED", "StatusCode.UNAVAILABLE")
TEXTS = numpy.array(["a", "", "straße"], dtype=object)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    slow = SLOW.format(begun=str(folder / "begun"))
    models = [write_model(folder / "echo", ECHO), write_model(folder / "slow", slow)]
    with Served(*models, directory=folder / "run", options=("--slo", "30s", "--max-body", "1MiB")) as served:
        yield served


@pytest.fixture
def rest(served: Served) -> Iterator[Any]:
    client = httpclient.InferenceServerClient(served.addresses["http"].removeprefix("http://"), concurrency=4)
    yield client
    client.close()


@pytest.fixture
def rpc(served: Served) -> Iterator[Any]:
    client = grpcclient.InferenceServerClient(served.addresses["grpc"])
    yield client
    client.close()


def inputs(module: Any, numbers: numpy.ndarray[Any, Any] = NUMBERS, **options: bool) -> list[Any]:
    made = []
    for name, datatype, array in (("numbers", "FP32", numbers), ("halves", "FP16", HALVES), ("texts", "BYTES", TEXTS)):
        made.append(module.InferInput(name, list(array.shape), datatype))
        made[-1].set_data_from_numpy(array, **({} if datatype == "FP16" else options))
    return made


def seconds(module: Any, value: float) -> list[Any]:
    made = module.InferInput("seconds", [1], "FP32")
    made.set_data_from_numpy(numpy.array([value], numpy.float32))
    return [made]


def check(result: Any) -> None:
    numpy.testing.assert_array_equal(result.as_numpy("doubled"), 2 * NUMBERS)
    numpy.testing.assert_array_equal(result.as_numpy("halved"), HALVES / numpy.float16(2))
    assert [bytes(one).decode() for one in result.as_numpy("upper")] == ["A", "", "STRASSE"]


def refused(error: pytest.ExceptionInfo[InferenceServerException]) -> tuple[str, str]:
    return str(error.value.status()), error.value.message()


class TestTritonOverHttp:
    def test_tensors_as_bytes(self, rest: Any) -> None:
        check(rest.infer("echo", inputs(httpclient)))

    def test_tensors_as_json_where_they_can_be(self, rest: Any) -> None:
        asked = [httpclient.InferRequestedOutput(name, binary_data=False) for name in ("doubled", "upper")]
        result = rest.infer("echo", inputs(httpclient, binary_data=False), outputs=asked)
        assert result.as_numpy("doubled").tolist() == (2 * NUMBERS).tolist()
        assert result.as_numpy("upper").tolist() == ["A", "", "STRASSE"] and result.as_numpy("halved") is None

    def test_an_id_comes_back_and_the_version_is_named(self, rest: Any) -> None:
        response = rest.infer("echo", inputs(httpclient), model_version="1", request_id="mine").get_response()
        assert (response["id"], response["model_version"]) == ("mine", "1")

    @pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
    def test_compressed_requests(self, rest: Any, algorithm: str) -> None:
        check(rest.infer("echo", inputs(httpclient), request_compression_algorithm=algorithm))

    def test_several_at_a_time(self, rest: Any) -> None:
        for one in [rest.async_infer("echo", inputs(httpclient)) for _ in range(20)]:
            check(one.get_result())

    def test_what_it_says_of_itself(self, rest: Any) -> None:
        assert rest.is_server_live() and rest.is_server_ready() and rest.is_model_ready("echo", "1")
        assert rest.get_server_metadata()["name"] == "holdfast"
        told = rest.get_model_metadata("echo")
        assert told["versions"] == ["1"]
        assert told["inputs"][1] == {"name": "halves", "datatype": "FP16", "shape": [-1, 2]}
        assert rest.get_model_config("echo")["max_batch_size"] == 256

    def test_statistics_count_what_was_asked(self, rest: Any) -> None:
        before = rest.get_inference_statistics("echo")["model_stats"][0]
        check(rest.infer("echo", inputs(httpclient)))
        after = rest.get_inference_statistics("echo")["model_stats"][0]
        assert after["inference_count"] - before["inference_count"] == 3
        assert after["inference_stats"]["success"]["count"] - before["inference_stats"]["success"]["count"] == 1

    def test_errors(self, rest: Any) -> None:
        with pytest.raises(InferenceServerException) as error:
            rest.infer("nobody", inputs(httpclient))
        assert refused(error) == ("404", "There is no model 'nobody'; there is echo, slow.")
        with pytest.raises(InferenceServerException) as error:
            rest.infer("echo", inputs(httpclient)[:2])
        assert refused(error) == ("400", "inputs: 'texts' is missing")
        with pytest.raises(InferenceServerException) as error:
            rest.infer("echo", inputs(httpclient), model_version="7")
        assert refused(error) == ("404", "Version '7' of echo is not served; version 1 is.")
        with pytest.raises(InferenceServerException) as error:
            rest.get_model_repository_index()
        assert refused(error)[0] == "404"

    def test_asyncio(self, served: Served) -> None:
        async def ask() -> None:
            address = served.addresses["http"].removeprefix("http://")
            async with tritonclient.http.aio.InferenceServerClient(address) as client:
                assert await client.is_server_ready() and await client.is_model_ready("echo")
                for result in await asyncio.gather(*(client.infer("echo", inputs(httpclient)) for _ in range(10))):
                    check(result)
                check(await client.infer("echo", inputs(httpclient), request_compression_algorithm="gzip"))
                with pytest.raises(InferenceServerException):
                    await client.infer("nobody", inputs(httpclient))

        asyncio.run(ask())


class TestTritonOverGrpc:
    def test_tensors(self, rpc: Any) -> None:
        check(rpc.infer("echo", inputs(grpcclient)))

    def test_some_outputs_an_id_and_a_version(self, rpc: Any) -> None:
        asked = [grpcclient.InferRequestedOutput("upper")]
        result = rpc.infer("echo", inputs(grpcclient), model_version="1", outputs=asked, request_id="mine")
        assert (result.get_response().id, result.get_response().model_version) == ("mine", "1")
        assert result.as_numpy("upper") is not None and result.as_numpy("doubled") is None

    @pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
    def test_compressed_requests(self, rpc: Any, algorithm: str) -> None:
        check(rpc.infer("echo", inputs(grpcclient), compression_algorithm=algorithm))

    def test_what_it_says_of_itself(self, rpc: Any) -> None:
        assert rpc.is_server_live() and rpc.is_server_ready() and rpc.is_model_ready("echo", "1")
        assert rpc.get_server_metadata().name == "holdfast"
        told = rpc.get_model_metadata("echo")
        assert list(told.versions) == ["1"] and [one.datatype for one in told.inputs] == ["FP32", "FP16", "BYTES"]
        config = rpc.get_model_config("echo", as_json=True)["config"]
        assert config["input"][0] == {"name": "numbers", "data_type": "TYPE_FP32", "dims": ["4"]}

    def test_statistics_count_what_was_asked(self, rpc: Any) -> None:
        before = rpc.get_inference_statistics("echo").model_stats[0]
        check(rpc.infer("echo", inputs(grpcclient)))
        after = rpc.get_inference_statistics("echo").model_stats[0]
        assert after.inference_count - before.inference_count == 3
        assert after.inference_stats.success.count - before.inference_stats.success.count == 1

    def test_errors(self, rpc: Any) -> None:
        with pytest.raises(InferenceServerException) as error:
            rpc.infer("nobody", inputs(grpcclient))
        assert refused(error) == ("StatusCode.NOT_FOUND", "There is no model 'nobody'; there is echo, slow.")
        with pytest.raises(InferenceServerException) as error:
            rpc.infer("echo", inputs(grpcclient)[:2])
        assert refused(error) == ("StatusCode.INVALID_ARGUMENT", "inputs: 'texts' is missing")
        with pytest.raises(InferenceServerException) as error:
            rpc.get_model_repository_index()
        status, message = refused(error)
        assert status == "StatusCode.UNIMPLEMENTED" and "--admin-grpc-port" in message

    def test_a_message_that_is_too_large(self, rpc: Any) -> None:
        large = numpy.zeros((100_000, 4), numpy.float32)
        for algorithm in (None, "gzip"):  # also one that only becomes so
            with pytest.raises(InferenceServerException) as error:
                rpc.infer("echo", inputs(grpcclient, large), compression_algorithm=algorithm)
            assert refused(error)[0] == "StatusCode.RESOURCE_EXHAUSTED"

    def test_what_a_client_does_not_wait_for_is_not_computed(self, rpc: Any) -> None:
        """The model computes for a second; behind it, one call is cancelled, and two are too late."""
        before = rpc.get_inference_statistics("slow").model_stats[0].inference_count
        answered, over = threading.Event(), threading.Event()

        def told(event: threading.Event) -> Any:
            return lambda result, error: event.set()

        rpc.async_infer("slow", seconds(grpcclient, 1.0), told(answered))
        given_up = rpc.async_infer("slow", seconds(grpcclient, 0.0), told(over))
        for options in ({"client_timeout": 0.3}, {"timeout": 300_000}):
            with pytest.raises(InferenceServerException) as error:
                rpc.infer("slow", seconds(grpcclient, 0.0), **options)
            assert refused(error)[0] in TOO_LATE
        given_up.cancel()
        rpc.infer("slow", seconds(grpcclient, 0.0))  # after all that came before it
        after = rpc.get_inference_statistics("slow").model_stats[0].inference_count
        assert after - before == 2
        assert answered.wait(10) and over.wait(10)

    def test_asyncio(self, served: Served) -> None:
        async def ask() -> None:
            async with tritonclient.grpc.aio.InferenceServerClient(served.addresses["grpc"]) as client:
                assert await client.is_server_ready() and await client.is_model_ready("echo")
                for result in await asyncio.gather(*(client.infer("echo", inputs(grpcclient)) for _ in range(10))):
                    check(result)
                waiting = asyncio.ensure_future(client.infer("slow", seconds(grpcclient, 0.2)))
                with pytest.raises(InferenceServerException) as error:
                    await client.infer("slow", seconds(grpcclient, 5.0), client_timeout=0.01)
                assert refused(error)[0] in TOO_LATE
                await waiting

        asyncio.run(ask())

    def test_our_messages_live_beside_theirs(self) -> None:
        assert grpc_messages.METHODS and tritonclient.grpc.service_pb2.ModelInferRequest


@pytest.fixture(scope="module")
def told(served: Served) -> dict[str, Any]:
    pytest.importorskip("httpx")  # it comes with kserve, which must not be imported beside tritonclient.grpc
    script = Path(__file__).with_name("kserve_clients.py")
    done = subprocess.run(
        [sys.executable, script, json.dumps(served.addresses)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


class TestKServe:
    def test_rest(self, told: dict[str, Any]) -> None:
        rest = told["rest"]
        assert [rest[what] for what in ("live", "ready", "model", "other")] == [True, True, True, False]
        assert rest["answer"]["doubled"] == [[0, 2, 4, 6], [8, 10, 12, 14]] and rest["answer"]["upper"] == ["A", "BC"]
        assert rest["answer"]["id"] == "k1" and rest["json"]["halved"] == [[0.5, 1]]
        assert rest["error"][0] == 400 and rest["error"][1].startswith("inputs: there are 0")

    def test_grpc(self, told: dict[str, Any]) -> None:
        rpc = told["grpc"]
        assert rpc["live"] and rpc["ready"] and rpc["model"]
        assert rpc["answer"]["halved"] == [[0.5, 0.5]] * 2 and rpc["answer"]["version"] == "1"
        assert rpc["error"] == ["NOT_FOUND", "There is no model 'other'; there is echo, slow."]

    def test_it_shares_a_process_with_ours_and_tritons(self, told: dict[str, Any]) -> None:
        assert told["together"]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not here")
class TestCurl:
    def ask(self, served: Served, path: str, *words: str) -> tuple[int, Any]:
        done = subprocess.run(
            ["curl", "-s", "-w", "\n%{http_code}", *words, served.addresses["http"] + path], capture_output=True,
            text=True, timeout=30, check=True,
        )  # fmt: skip
        body, _, status = done.stdout.rpartition("\n")
        return int(status), json.loads(body)

    def test_health(self, served: Served) -> None:
        assert self.ask(served, "/v2/health/ready") == (200, {"live": True, "ready": True})
        assert self.ask(served, "/v2/models/echo/ready") == (200, {"name": "echo", "ready": True})

    def test_inference(self, served: Served) -> None:
        body = {"inputs": [{"name": "seconds", "datatype": "FP32", "shape": [1], "data": [0]}]}
        status, told = self.ask(served, "/v2/models/slow/infer", "-d", json.dumps(body))
        assert status == 200 and told["outputs"][0]["data"] == [0]

    def test_an_error_is_json_too(self, served: Served) -> None:
        status, told = self.ask(served, "/v2/models/slow/infer", "-d", "{")
        assert status == 400 and list(told) == ["error"]
