"""Every datatype and shape comes out as it went in, as request and answer: JSON, binary tensors, protobuf."""

from __future__ import annotations

import json
from typing import Any

import numpy
from hypothesis import given
from hypothesis import strategies as st

from holdfast.serve.protocol.grpc_messages import from_response, to_request
from holdfast.serve.protocol.grpc_schema import message_class
from holdfast.serve.protocol.requests import InferInput, InferRequest, InferResponse
from holdfast.serve.protocol.rest import encode_infer
from holdfast.serve.protocol.tensors import pack_bytes, unpack_bytes
from tests.unit.serve.protocol.arrays import LIMITS, answer, arrays, output, parse, raw

Message = message_class("ModelInferRequest")
CONTENTS = {
    "BOOL": "bool", "INT8": "int", "INT16": "int", "INT32": "int", "INT64": "int64", "UINT8": "uint", "UINT16": "uint",
    "UINT32": "uint", "UINT64": "uint64", "FP32": "fp32", "FP64": "fp64", "BYTES": "bytes",
}  # fmt: skip


def same(found: InferInput, datatype: str, array: Any) -> None:
    assert (found.name, found.datatype, found.shape) == ("x", datatype, array.shape)
    assert bytes(found.data) == raw(datatype, array)


@given(made=arrays(plain=True), flat=st.booleans())
def test_json(made: tuple[str, Any], flat: bool) -> None:
    datatype, array = made
    data = array.ravel().tolist() if flat else array.tolist()
    told = {"inputs": [{"name": "x", "datatype": datatype, "shape": array.shape, "data": data}]}
    same(parse(told).inputs[0], datatype, array)


@given(made=st.lists(arrays(), min_size=1, max_size=3))
def test_binary(made: list[tuple[str, Any]]) -> None:
    tails = [raw(datatype, array) for datatype, array in made]
    told = [
        {"name": "x", "datatype": datatype, "shape": array.shape, "parameters": {"binary_data_size": len(tail)}}
        for (datatype, array), tail in zip(made, tails, strict=True)
    ]
    head = json.dumps({"inputs": told}).encode()
    found = parse(head + b"".join(tails), json_length=str(len(head)))
    for item, (datatype, array) in zip(found.inputs, made, strict=True):
        same(item, datatype, array)


@given(made=st.lists(arrays(), min_size=1, max_size=3))
def test_raw_protobuf(made: list[tuple[str, Any]]) -> None:
    message = Message(model_name="m", raw_input_contents=[raw(datatype, array) for datatype, array in made])
    for datatype, array in made:
        message.inputs.add(name="x", datatype=datatype, shape=array.shape)
    found = to_request(Message.FromString(message.SerializeToString()), LIMITS)
    for item, (datatype, array) in zip(found.inputs, made, strict=True):
        same(item, datatype, array)


@given(made=arrays().filter(lambda made: made[0] in CONTENTS))
def test_typed_protobuf(made: tuple[str, Any]) -> None:
    datatype, array = made
    message = Message(model_name="m")
    contents = {f"{CONTENTS[datatype]}_contents": array.ravel().tolist()}
    message.inputs.add(name="x", datatype=datatype, shape=array.shape, contents=contents)
    found = to_request(Message.FromString(message.SerializeToString()), LIMITS).inputs[0]
    assert (found.datatype, found.shape) == (datatype, array.shape)
    if datatype == "BYTES":
        assert found.data == raw(datatype, array)
    else:  # a NaN is one still, but Python gives it other bits
        numpy.testing.assert_array_equal(numpy.frombuffer(found.data, array.dtype), array.ravel())


@given(made=arrays(plain=True))
def test_an_answer_in_json(made: tuple[str, Any]) -> None:
    datatype, array = made
    buffers, _ = encode_infer(answer(output("y", datatype, array)), InferRequest("m", "", "", ()))
    (found,) = json.loads(b"".join(buffers))["outputs"]
    assert (found["datatype"], found["shape"]) == (datatype, list(array.shape))
    assert raw(datatype, found["data"]) == raw(datatype, array)


@given(made=arrays())
def test_an_answer_in_bytes(made: tuple[str, Any]) -> None:
    response: InferResponse = answer(output("y", *made))
    asked = InferRequest("m", "", "", (), binary=True)
    buffers, headers = encode_infer(response, asked)
    assert b"".join(buffers)[int(dict(headers)[b"inference-header-content-length"]) :] == response.outputs[0].data
    message = from_response(response, asked)
    assert list(message.raw_output_contents) == [response.outputs[0].data]


@given(values=st.lists(st.binary(max_size=9)))
def test_elements_of_bytes(values: list[bytes]) -> None:
    assert unpack_bytes(pack_bytes(values)) == unpack_bytes(memoryview(pack_bytes(values))) == values
