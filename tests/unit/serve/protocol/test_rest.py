"""Inference over REST, line by line of the protocol: what is taken, and what is answered."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import numpy
import pytest

from holdfast.errors import BadRequest
from holdfast.serve.protocol.requests import InferRequest, RequestedOutput
from holdfast.serve.protocol.rest import encode_infer
from tests.unit.serve.protocol.arrays import SAMPLES, answer, body, output, parse, raw

ASKED = InferRequest("m", "", "", ())


def decoded(response: Any, request: InferRequest = ASKED) -> dict[str, Any]:
    buffers, _ = encode_infer(response, request)
    found: dict[str, Any] = json.loads(buffers[0])
    return found


@pytest.mark.parametrize("datatype", SAMPLES)
@pytest.mark.parametrize("shape", [[2], [1, 2], [2, 1]])
def test_every_datatype_flat_and_nested(datatype: str, shape: list[int]) -> None:
    values = SAMPLES[datatype]
    nested = values if shape == [2] else [values] if shape == [1, 2] else [[value] for value in values]
    for data in (values, nested):
        found = parse(body(datatype=datatype, shape=shape, data=data)).inputs[0]
        assert (found.name, found.datatype, found.shape, found.data) == (
            "x",
            datatype,
            tuple(shape),
            raw(datatype, values),
        )


def test_row_major() -> None:
    found = parse(body(shape=[2, 3], data=[[1, 2, 3], [4, 5, 6]])).inputs[0]
    assert numpy.frombuffer(found.data, "<i4").tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("shape", "data"),
    [
        ([0], []),
        ([0, 3], []),
        ([2, 0], [[], []]),
        ([2, 0], []),
        ([2, 0, 3], [[], []]),
        ([], 7),
        ([], [7]),
        ([1, 1], [[7]]),
    ],
)
def test_shapes_without_elements_or_dimensions(shape: list[int], data: Any) -> None:
    found = parse(body(shape=shape, data=data)).inputs[0]
    assert (found.shape, len(found.data)) == (tuple(shape), 0 if 0 in shape else 4)


def test_whole_numbers_are_taken_for_floats_and_spaces_are_nothing() -> None:
    sent = b' { "inputs" : [ {"name":"x","datatype":"FP32","shape":[2,1],"data": [ [ 1 ] ,\n[2e0]] } ] }\n'
    assert parse(sent).inputs[0].data == raw("FP32", [1.0, 2.0])


def test_all_fields_of_a_request() -> None:
    told = body() | {
        "id": "42", "outputs": [{"name": "y"}, {"name": "z", "parameters": {"binary_data": True}}],
        "parameters": {"timeout": 250_000, "priority": 2, "binary_data_output": False, "user": "a", "n": 1.5,
                       "b": True},
    }  # fmt: skip
    found = parse(told, version="7")
    assert (found.model, found.version, found.id) == ("m", "7", "42")
    assert found.outputs == (RequestedOutput("y", False), RequestedOutput("z", True))
    assert (found.timeout, found.priority, found.binary) == (0.25, 2, False)
    assert found.parameters == {"user": "a", "n": 1.5, "b": True}


def test_what_is_not_said_has_a_meaning() -> None:
    for told in (
        body(),
        body() | {"id": None, "outputs": None, "parameters": None},
        body(parameters={}) | {"outputs": []},
    ):
        found = parse(told)
        assert (found.id, found.outputs, found.binary, found.timeout, found.priority) == ("", (), False, None, 0)
        assert found.parameters == {}


def test_fields_that_nobody_knows_are_let_through() -> None:
    told = body(content_type="np", parameters={"content_type": "np"}) | {"model_name": "other"}  # as kserve, MLServer
    assert parse(told).model == "m"


def test_a_tensor_asked_for_in_binary_by_default() -> None:
    told = body() | {"parameters": {"binary_data_output": True}, "outputs": [{"name": "y"}, {"name": "z"}]}
    assert parse(told).binary
    assert parse(told).outputs == (RequestedOutput("y", True), RequestedOutput("z", True))


@pytest.mark.parametrize(
    ("encoding", "pack"), [("gzip", gzip.compress), ("GZIP", gzip.compress), ("deflate", zlib.compress)]
)
def test_compressed_bodies(encoding: str, pack: Any) -> None:
    sent = pack(json.dumps(body()).encode())
    assert parse(sent, encoding=encoding).inputs[0].data == raw("INT32", [1, 2])
    assert parse(json.dumps(body()).encode(), encoding="identity").inputs


def test_the_length_of_the_json_is_that_of_the_unpacked_body() -> None:
    head = json.dumps(
        {"inputs": [{"name": "x", "datatype": "INT32", "shape": [1], "parameters": {"binary_data_size": 4}}]}
    )
    sent = gzip.compress(head.encode() + b"\1\0\0\0")
    assert parse(sent, encoding="gzip", json_length=str(len(head))).inputs[0].data == b"\1\0\0\0"


def test_nothing_is_copied_of_binary_tensors() -> None:
    head = b'{"inputs":[{"name":"x","datatype":"UINT8","shape":[3],"parameters":{"binary_data_size":3}}]}'
    sent = head + b"abc"
    data = parse(sent, json_length=str(len(head))).inputs[0].data
    assert isinstance(data, memoryview) and data.obj is sent


def test_an_answer_in_json() -> None:
    y = output("y", "FP32", [[0.5, -1.0]])
    buffers, headers = encode_infer(answer(y), ASKED)
    assert json.loads(b"".join(buffers)) == {
        "model_name": "m", "model_version": "3",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [0.5, -1.0]}],
    }  # fmt: skip
    assert dict(headers) == {b"content-type": b"application/json", b"content-length": b"%d" % len(buffers[0])}


def test_an_answer_says_its_id_and_parameters() -> None:
    found = decoded(answer(id="42", version="", parameters={"batch": 3}))
    assert found == {"model_name": "m", "id": "42", "parameters": {"batch": 3}, "outputs": []}


@pytest.mark.parametrize("datatype", SAMPLES)
def test_an_answer_of_every_datatype(datatype: str) -> None:
    values = SAMPLES[datatype]
    (found,) = decoded(answer(output("y", datatype, values)))["outputs"]
    assert raw(datatype, found["data"]) == raw(datatype, values)


def test_nan_and_infinities_are_null_in_json_and_themselves_in_binary() -> None:
    y = output("y", "FP32", [1.0, numpy.nan, numpy.inf, -numpy.inf])
    (found,) = decoded(answer(y))["outputs"]
    assert found["data"] == [1.0, None, None, None]
    buffers, _ = encode_infer(answer(y), InferRequest("m", "", "", (), binary=True))
    assert buffers[1] == y.data


def test_an_answer_with_binary_tensors() -> None:
    y, z, w = output("y", "FP32", [[1.0]]), output("z", "BYTES", ["a"]), output("w", "INT8", [1])
    asked = InferRequest(
        "m", "", "", (), (RequestedOutput("z", True), RequestedOutput("w"), RequestedOutput("y", True))
    )
    buffers, headers = encode_infer(answer(y, z, w), asked)
    head = json.loads(buffers[0])
    assert [item["name"] for item in head["outputs"]] == ["z", "w", "y"]
    assert [item.get("parameters") for item in head["outputs"]] == [
        {"binary_data_size": 5},
        None,
        {"binary_data_size": 4},
    ]
    assert head["outputs"][1]["data"] == [1] and "data" not in head["outputs"][0]
    assert buffers[1:] == [b"\1\0\0\0a", raw("FP32", [1.0])]
    assert dict(headers) == {
        b"content-type": b"application/octet-stream", b"content-length": b"%d" % sum(map(len, buffers)),
        b"inference-header-content-length": b"%d" % len(buffers[0]),
    }  # fmt: skip


def test_only_outputs_that_are_asked_for() -> None:
    asked = InferRequest("m", "", "", (), (RequestedOutput("z"),))
    found = decoded(answer(output("y", "INT8", [1]), output("z", "INT8", [2])), asked)
    assert [item["name"] for item in found["outputs"]] == ["z"]


def test_what_json_cannot_hold_is_said() -> None:
    with pytest.raises(BadRequest, match=r"outputs\[y\]: is not UTF-8, so JSON cannot hold it: ask for binary_data"):
        encode_infer(answer(output("y", "BYTES", [b"\xff"])), ASKED)
    with pytest.raises(BadRequest, match=r"outputs\[y\]: BF16 travels as bytes only: ask for binary_data"):
        encode_infer(answer(output("y", "BF16", [1])), ASKED)
