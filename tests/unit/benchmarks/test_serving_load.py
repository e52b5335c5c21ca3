"""The benchmarks' generator of load: schedules and figures, requests and answers, and that it counts what it sees."""

from __future__ import annotations

import json
import math
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy
import pytest

from benchmarks.serving import exchange
from benchmarks.serving.exchange import Target, Unreadable
from benchmarks.serving.load import Plan, load
from benchmarks.serving.schedule import Outcome, Sample, Window, figures, fixed, percentile, poisson
from benchmarks.serving.swaps import Stretch, stretches

TARGET = Target("127.0.0.1", 1, "/v2/models/m/infer", "json", "x", (1, 2))


def test_a_fixed_schedule_has_equal_distances_and_all_requests() -> None:
    moments = fixed(500, 3)
    assert len(moments) == 1500
    assert numpy.diff(moments) == pytest.approx(0.002)


def test_a_poisson_schedule_has_the_rate_and_distances_that_know_nothing_of_each_other() -> None:
    moments = poisson(1000, 100, Random(1))
    distances = numpy.diff(moments)
    assert len(moments) == pytest.approx(100_000, rel=0.02)
    assert moments == sorted(moments)
    assert moments[-1] < 100
    assert distances.std() == pytest.approx(distances.mean(), rel=0.02)
    assert moments == poisson(1000, 100, Random(1))


@pytest.mark.parametrize(("percent", "value"), [(50, 50), (99, 99), (99.9, 100), (100, 100), (1, 1), (0, 1)])
def test_a_percentile_is_a_value_that_was_there(percent: float, value: int) -> None:
    assert percentile(range(1, 101), percent) == value


def test_a_percentile_of_nothing_is_no_number() -> None:
    assert math.isnan(percentile([], 99))


def test_figures_count_from_the_intended_moment_and_tell_refusals_from_failures() -> None:
    samples = [
        Sample(0.5, 0.5, 0.6, Outcome.OK),  # intended in the warm-up, and so is its answer
        Sample(0.9, 0.9, 1.1, Outcome.OK),  # answered in the window: counts for the rate, not for latency
        Sample(1.1, 1.3, 1.4, Outcome.OK),
        Sample(1.2, 1.2, 1.21, Outcome.REFUSED),
        Sample(1.3, 1.3, 1.31, Outcome.FAILED),
        Sample(1.4, 1.4, 1.41, Outcome.WRONG),
        Sample(1.5, 0.0, 4.5, Outcome.UNANSWERED),
        Sample(2.9, 2.9, 3.2, Outcome.OK),  # after the window: counts for latency, not for the rate
    ]
    found = figures(samples, Window(1, 3), 0.25)
    assert {name: found[name] for name in ("ok", "refused", "failed", "wrong", "unanswered")} == {
        "ok": 2, "refused": 1, "failed": 1, "wrong": 1, "unanswered": 1,
    }  # fmt: skip
    assert (found["intended"], found["rate"], found["goodput"]) == (6, 1.0, 0.5)
    assert (found["p50"], found["max"]) == (pytest.approx(300), pytest.approx(300))
    assert found["sent_late_p99"] == pytest.approx(200)


def test_a_request_in_json_and_as_binary_tensor_has_the_same_numbers() -> None:
    inputs = exchange.numbers(TARGET, 3, 1)
    plain = exchange.requests(TARGET, inputs)[1].wire
    head, _, body = plain.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v2/models/m/infer HTTP/1.1\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert json.loads(body)["inputs"] == [
        {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": list(inputs[1])}
    ]  # fmt: skip
    binary = Target("127.0.0.1", 1, "/", "binary", "x", (1, 2), "y")
    head, _, body = exchange.requests(binary, inputs)[1].wire.partition(b"\r\n\r\n")
    length = int(head.partition(b"Inference-Header-Content-Length: ")[2].split()[0])
    told = json.loads(body[:length])
    assert told["inputs"][0]["parameters"] == {"binary_data_size": 8}
    assert told["outputs"] == [{"name": "y", "parameters": {"binary_data": True}}]
    assert numpy.frombuffer(body[length:], "<f4") == pytest.approx(inputs[1])


def _answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


_OUTPUT = {"name": "y", "datatype": "FP32", "shape": [1, 2]}
_JSON = _answer(json.dumps({"model_version": "7", "outputs": [{**_OUTPUT, "data": [1.0, 2.0]}]}).encode())


def test_an_answer_is_read_however_it_comes_in_pieces() -> None:
    assert all(exchange.read(_JSON[:end], "json") is None for end in range(len(_JSON)))
    answer = exchange.read(_JSON + b"more", "json")
    assert answer is not None
    assert (answer.status, list(answer.numbers), answer.shape, answer.version) == (200, [1.0, 2.0], (1, 2), "7")
    assert answer.taken == len(_JSON)


def test_an_answer_with_a_binary_tensor_is_read() -> None:
    head = json.dumps({"outputs": [{**_OUTPUT, "parameters": {"binary_data_size": 8}}]}).encode()
    raw = numpy.array([3, 4], "<f4").tobytes()
    answer = exchange.read(_answer(head + raw, f"Inference-Header-Content-Length: {len(head)}"), "binary")
    assert answer is not None
    assert list(answer.numbers) == [3.0, 4.0]


def test_an_answer_in_chunks_is_read() -> None:
    body = b"4\r\n[[1,\r\n4\r\n2]]\n\r\n0\r\n\r\n"
    got = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body
    assert all(exchange.read(got[:end], "plain") is None for end in range(len(got)))
    answer = exchange.read(got, "plain")
    assert answer is not None
    assert (list(answer.numbers), answer.shape, answer.taken) == ([1.0, 2.0], (1, 2), len(got))


@pytest.mark.parametrize(
    "got",
    [
        b"SMTP ready\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        _answer(b"not JSON"),
        _answer(b'{"outputs": []}'),
        _answer(json.dumps({"outputs": [_OUTPUT]}).encode()),
        _answer(json.dumps({"outputs": [{**_OUTPUT, "datatype": "INT8", "data": [1, 2]}]}).encode()),
        _answer(b"{}xy", "Inference-Header-Content-Length: 2"),
    ],
)
def test_what_is_no_answer_is_called_so(got: bytes) -> None:
    with pytest.raises(Unreadable):
        exchange.read(got, "json")


def test_an_answer_is_right_when_it_has_the_numbers_of_its_shape() -> None:
    answer = exchange.read(_JSON, "json")
    assert answer is not None
    assert exchange.right(answer, None)
    assert exchange.right(answer, [1.0, 2.0])
    assert not exchange.right(answer, [1.0, 2.1])
    assert not exchange.right(answer, [1.0])
    assert not exchange.right(answer._replace(shape=(2, 2)), None)


def test_a_swap_lasts_until_the_first_answer_by_the_new_version() -> None:
    samples = [
        Sample(1, 1, 1.1, Outcome.OK, 1), Sample(2, 2, 2.3, Outcome.OK, 2), Sample(2, 2, 2.2, Outcome.OK, 2),
        Sample(2, 2, 2.1, Outcome.FAILED, 2),
    ]  # fmt: skip
    assert stretches(samples, {2: 1.5, 3: 4.0}) == [Stretch(2, 1.5, 2.2), Stretch(3, 4.0, math.inf)]


@pytest.fixture
def responder() -> Iterator[int]:
    """Answers: the first connection rightly, the second with 503, the third breaks off, the fourth says nothing."""
    door = socket.create_server(("127.0.0.1", 0))
    kept: list[socket.socket] = []

    def serve(turn: int, it: socket.socket) -> None:
        while it.recv(65536):
            if turn % 4 == 0:
                it.sendall(_JSON)
            elif turn % 4 == 1:
                it.sendall(_answer(b'{"error": "busy"}', status="503 Service Unavailable"))
            elif turn % 4 == 2:
                it.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        while True:
            try:
                it, _ = door.accept()
            except OSError:
                return
            kept.append(it)
            threading.Thread(target=serve, args=(len(kept) - 1, it), daemon=True).start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    yield door.getsockname()[1]
    door.shutdown(socket.SHUT_RDWR)
    door.close()
    accepting.join()
    for it in kept:
        it.close()


@pytest.mark.process
@pytest.mark.sharing
@pytest.mark.parametrize("rate", [0.0, 200.0])
def test_the_generator_tells_answers_refusals_failures_and_silence_apart(
    rate: float, responder: int, tmp_path: Path
) -> None:
    target = Target("127.0.0.1", responder, "/", "json", "x", (1, 2))
    expected = [[1.0, 2.0]] * exchange.DIFFERENT
    plan = Plan(target=target, connections=4, seconds=0.5, warm=0, rate=rate, patience=0.3, expected=expected)
    found = load(plan, tmp_path, strict=False)
    names = ("ok", "refused", "failed", "unanswered")
    assert all(found.figures[name] > 0 for name in names), found.figures
    assert sum(found.figures[name] for name in names) == found.figures["intended"]
    assert found.figures["wrong"] == 0
    assert found.figures["troubles"]["status 503"] >= found.figures["refused"]
    if rate:
        assert found.figures["intended"] == 100


@pytest.mark.process
@pytest.mark.sharing
def test_the_generator_finds_a_wrong_answer(responder: int, tmp_path: Path) -> None:
    target = Target("127.0.0.1", responder, "/", "json", "x", (1, 2))
    expected = [[1.0, 3.0]] * exchange.DIFFERENT
    plan = Plan(target=target, connections=1, seconds=0.2, warm=0, rate=50, expected=expected)
    found = load(plan, tmp_path)
    assert found.figures["wrong"] == found.figures["intended"] == 10
