"""What Triton's own clients send is understood, and they understand the answers: in one process with our messages."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import numpy
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.grpc import _infer_result, _utils, service_pb2

from holdfast.errors import BadRequest
from holdfast.model.signature import TensorSpec, dtype_of
from holdfast.serve.protocol import metadata
from holdfast.serve.protocol.errors import error_body
from holdfast.serve.protocol.fit import fit
from holdfast.serve.protocol.grpc_messages import METHODS, from_response, from_view, to_request
from holdfast.serve.protocol.requests import InferRequest
from holdfast.serve.protocol.rest import encode_infer
from tests.unit.serve.protocol.arrays import FLOATS, LIMITS, SAMPLES, answer, output, parse, raw, signature

METHOD = {method.name: method for method in METHODS}
Client = triton_http.InferenceServerClient


def array_of(datatype: str) -> Any:
    if datatype == "BYTES":
        return numpy.array([[b"", "grüße".encode()]], object)
    return numpy.array([SAMPLES[datatype]], dtype_of(datatype))


def http_input(datatype: str, array: Any, binary: bool, name: str = "x") -> triton_http.InferInput:
    made = triton_http.InferInput(name, list(array.shape), datatype)
    return made.set_data_from_numpy(array, binary_data=binary)


def received(body: bytes, length: int | None, **headers: Any) -> InferRequest:
    return parse(body, json_length=None if length is None else str(length), **headers)


def result(response: Any, request: InferRequest) -> triton_http.InferResult:
    buffers, headers = encode_infer(response, request)
    length = dict(headers).get(b"inference-header-content-length")
    return triton_http.InferResult.from_response_body(b"".join(buffers), header_length=length and int(length))


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("datatype", SAMPLES)
def test_http_requests_and_answers_of_every_datatype(datatype: str, binary: bool) -> None:
    array = array_of(datatype)
    outputs = [triton_http.InferRequestedOutput("y", binary_data=binary)]
    body, length = Client.generate_request_body([http_input(datatype, array, binary)], outputs=outputs, request_id="7")
    request = received(body, length)
    (sent,) = request.inputs
    assert (sent.datatype, sent.shape, bytes(sent.data)) == (datatype, (1, 2), raw(datatype, array))
    assert (request.id, request.outputs[0].binary) == ("7", binary)
    got = result(answer(output("y", datatype, array), id=request.id), request)
    expected = array if datatype != "BYTES" or binary else [["", "grüße"]]
    assert got.as_numpy("y").tolist() == numpy.asarray(expected).tolist()
    assert got.get_response()["id"] == "7"


def test_without_outputs_it_asks_for_all_of_them_as_bytes() -> None:
    body, length = Client.generate_request_body([http_input("FP32", array_of("FP32"), True)])
    request = received(body, length)
    assert request.binary and not request.outputs
    y, z = output("y", "FP32", [[1.5]]), output("z", "BYTES", [[b"\xff"]])
    got = result(answer(y, z), request)
    assert got.as_numpy("y").tolist() == [[1.5]] and got.as_numpy("z").tolist() == [[b"\xff"]]


def test_its_parameters() -> None:
    body, length = Client.generate_request_body(
        [http_input("INT8", array_of("INT8"), True)], priority=3, timeout=2_000_000, parameters={"user": "a"}
    )
    request = received(body, length)
    assert (request.priority, request.timeout, request.parameters) == (3, 2.0, {"user": "a"})


def test_several_inputs_of_both_forms() -> None:
    a, b = numpy.array([1, 2], "i8"), numpy.array([[1, 2], [3, 4]], "f4")
    for forms in ((True, True), (True, False), (False, True), (False, False)):
        inputs = [http_input("INT64", a, forms[0], "a"), http_input("FP32", b, forms[1], "b")]
        request = received(*Client.generate_request_body(inputs))
        assert [bytes(item.data) for item in request.inputs] == [a.tobytes(), b.tobytes()]
        assert fit(request, signature(b=("FP32", (-1, 2)), a=("INT64", (-1,)))).items == 2


def test_tensors_without_elements() -> None:
    for binary in (True, False):
        request = received(*Client.generate_request_body([http_input("FP32", numpy.empty((0, 3), "f4"), binary)]))
        assert (request.inputs[0].shape, bytes(request.inputs[0].data)) == ((0, 3), b"")
    got = result(answer(output("y", "FP32", numpy.empty((0, 3)))), InferRequest("m", "", "", (), binary=True))
    assert got.as_numpy("y").shape == (0, 3)


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_compressed_as_it_does_it(encoding: str, pack: Any) -> None:
    array = array_of("FP32")
    body, length = Client.generate_request_body([http_input("FP32", array, True)])
    assert bytes(received(pack(body), length, encoding=encoding).inputs[0].data) == array.tobytes()


def test_shared_memory_and_sequences_are_refused() -> None:
    made = triton_http.InferInput("x", [1], "INT8")
    made.set_shared_memory("region", 1)
    with pytest.raises(BadRequest, match=r"inputs\[0\].parameters.shared_memory_region: is not served"):
        received(*Client.generate_request_body([made]))
    with pytest.raises(BadRequest, match=r"parameters.sequence_id: is not served"):
        received(*Client.generate_request_body([http_input("INT8", array_of("INT8"), True)], sequence_id=5))


def test_it_finds_what_went_wrong() -> None:
    class Answer:
        status_code = 400

        def read(self) -> bytes:
            return error_body(BadRequest(400, "is missing", "inputs"))

    found = triton_http._utils._get_error(Answer())
    assert found.message() == "inputs: is missing"


def grpc_request(datatype: str, array: Any, **fields: Any) -> Any:
    made = triton_grpc.InferInput("x", list(array.shape), datatype)
    made.set_data_from_numpy(array)
    known = dict.fromkeys(("sequence_id", "sequence_start", "sequence_end", "priority"), 0) | {
        "model_name": "m", "model_version": "", "request_id": "7", "outputs": None, "timeout": None, "parameters": None
    }  # fmt: skip
    return _utils._get_inference_request(inputs=[made], **{**known, **fields})


@pytest.mark.parametrize("datatype", SAMPLES)
def test_grpc_requests_and_answers_of_every_datatype(datatype: str) -> None:
    array = array_of(datatype)
    sent = grpc_request(datatype, array, priority=2, timeout=1000, outputs=[triton_grpc.InferRequestedOutput("y")])
    request = to_request(METHOD["ModelInfer"].request.FromString(sent.SerializeToString()), LIMITS)
    (found,) = request.inputs
    assert (found.datatype, found.shape, found.data) == (datatype, (1, 2), raw(datatype, array))
    assert (request.model, request.id, request.priority, request.timeout) == ("m", "7", 2, 0.001)
    message = from_response(answer(output("y", datatype, array), id="7"), request)
    got = _infer_result.InferResult(service_pb2.ModelInferResponse.FromString(message.SerializeToString()))
    assert got.as_numpy("y").tolist() == array.tolist()


def test_grpc_typed_contents_of_its_messages() -> None:
    sent = service_pb2.ModelInferRequest(model_name="m")
    tensor = sent.inputs.add(name="x", datatype="FP64", shape=[2])
    tensor.contents.fp64_contents.extend([0.1, float("inf")])
    request = to_request(METHOD["ModelInfer"].request.FromString(sent.SerializeToString()), LIMITS)
    assert request.inputs[0].data == raw("FP64", [0.1, float("inf")])


def test_grpc_views_are_its_messages() -> None:
    specs = signature(x=("FP32", (-1, 4)), outputs=(TensorSpec("y", "FP32", (-1, 2)),))
    config = metadata.model_config("m", "pytorch", specs, 8)
    views = {
        "ServerLive": metadata.live(True, True), "ServerReady": metadata.live(True, True),
        "ModelReady": metadata.model_ready("m", True), "ServerMetadata": metadata.server_metadata("holdfast", "1"),
        "ModelMetadata": metadata.model_metadata("m", ["1"], "pytorch", specs), "ModelConfig": {"config": config},
        "ModelStatistics": metadata.statistics([metadata.ModelStatistics(name="m", version="1", inference_count=3)]),
        "RepositoryIndex": {"models": metadata.repository_index([metadata.ModelIndex("m", "1")])},
    }  # fmt: skip
    theirs = {
        name: getattr(service_pb2, METHOD[name].response.DESCRIPTOR.name).FromString(
            from_view(name, view).SerializeToString()
        )
        for name, view in views.items()
    }
    assert theirs["ServerLive"].live and theirs["ServerReady"].ready and theirs["ModelReady"].ready
    assert theirs["ServerMetadata"].name == "holdfast"
    assert list(theirs["ModelMetadata"].inputs[0].shape) == [-1, 4]
    assert (theirs["ModelConfig"].config.max_batch_size, theirs["ModelConfig"].config.input[0].data_type) == (8, 11)
    assert theirs["ModelStatistics"].model_stats[0].inference_count == 3
    assert theirs["RepositoryIndex"].models[0].state == "READY"
    for name, message in theirs.items():  # nothing that it does not know
        assert message.SerializeToString() == from_view(name, views[name]).SerializeToString()


def test_floats_of_an_answer_are_the_same_through_json() -> None:
    for datatype in FLOATS:
        array = numpy.array([[0.1, 1e-7, 3.0]], dtype_of(datatype))
        request = InferRequest("m", "", "", ())
        assert result(answer(output("y", datatype, array)), request).as_numpy("y").tobytes() == array.tobytes()
