"""Inference over REST: a body becomes a request, an answer a body. JSON, or JSON with binary tensors behind it.

What clients add to their JSON that the protocol does not know is not looked at; what it knows is checked to the end.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from holdfast.serve.protocol.binary import HEADER_LENGTH, Tail, header_length, inflate
from holdfast.serve.protocol.errors import BadRequest, malformed
from holdfast.serve.protocol.json_data import from_json
from holdfast.serve.protocol.limits import ProtocolLimits, check_id, check_inputs, check_name, check_outputs
from holdfast.serve.protocol.parameters import binary_flag, of_request, of_tensor
from holdfast.serve.protocol.requests import (
    Buffer,
    InferInput,
    InferOutput,
    InferRequest,
    InferResponse,
    Parameter,
    RequestedOutput,
)
from holdfast.serve.protocol.tensors import check_raw, elements, unpack

__all__ = ["JSON_HEADERS", "check_json_size", "encode_infer", "json_answer", "parse_infer"]

_ABSENT = msgspec.Raw(b"null")
_LENGTH_NAME = HEADER_LENGTH.lower().encode()


class _Input(msgspec.Struct, gc=False):
    name: str
    datatype: str
    shape: list[int]
    parameters: msgspec.Raw = _ABSENT
    data: msgspec.Raw = _ABSENT


class _Requested(msgspec.Struct, gc=False):
    name: str
    parameters: msgspec.Raw = _ABSENT


class _Request(msgspec.Struct, gc=False):
    inputs: list[_Input]
    id: str | None = None
    parameters: msgspec.Raw = _ABSENT
    outputs: msgspec.Raw = _ABSENT


class _Output(msgspec.Struct, gc=False, omit_defaults=True):
    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: dict[str, int] | None = None
    data: list[Any] | None = None


class _Response(msgspec.Struct, gc=False, omit_defaults=True):
    model_name: str
    outputs: list[_Output]
    model_version: str = ""
    id: str = ""
    parameters: dict[str, Parameter] | None = None


_request = msgspec.json.Decoder(_Request)
_parameters = msgspec.json.Decoder(dict[str, Any] | None)
_requested = msgspec.json.Decoder(list[_Requested] | None)
_encoder = msgspec.json.Encoder()


def parse_infer(
    body: Buffer,
    *,
    model: str,
    version: str,
    limits: ProtocolLimits,
    json_length: str | None = None,
    encoding: str | None = None,
) -> InferRequest:
    """The request that a body is. Raises BadRequest, and nothing else, where it is none.

    Args:
        body: all of it, as it came.
        model, version: from the path; the version may be "".
        json_length: the header `Inference-Header-Content-Length`, as it came; None without one.
        encoding: the header `Content-Encoding`; None without one.

    >>> body = b'{"inputs": [{"name": "x", "datatype": "UINT8", "shape": [1, 2], "data": [[1, 2]]}]}'
    >>> parse_infer(body, model="m", version="", limits=ProtocolLimits()).inputs
    (InferInput(name='x', datatype='UINT8', shape=(1, 2), data=b'\\x01\\x02'),)
    """
    body = inflate(body, encoding, limits)
    if json_length is None:
        check_json_size(body, limits)
        head, tail = body, Tail(b"")
    else:
        length = header_length(json_length, len(body), limits)
        if length == 0:  # the whole body is the one input there is: `fit` knows which
            return InferRequest(model, version, "", (InferInput("", "", (), body),), binary=True)
        view = memoryview(body)
        head, tail = view[:length], Tail(view[length:])
    try:
        found = _request.decode(head)
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise malformed(error, "" if isinstance(error, msgspec.ValidationError) else "body") from None
    id = found.id or ""
    check_id(id, limits)
    told = of_request(_read(_parameters, found.parameters, "parameters", limits), limits)
    check_inputs(len(found.inputs), limits)
    inputs = tuple([_input(item, f"inputs[{k}]", tail, limits) for k, item in enumerate(found.inputs)])
    tail.end()
    asked = _read(_requested, found.outputs, "outputs", limits)
    outputs = _outputs(asked, told.binary, limits) if asked else ()
    return InferRequest(model, version, id, inputs, outputs, *told)


_Read = TypeVar("_Read")


def _read(decoder: msgspec.json.Decoder[_Read], text: msgspec.Raw, field: str, limits: ProtocolLimits) -> _Read | None:
    """What stands in a field beside the data. It is small, so it is not read before that is known."""
    if text is _ABSENT:
        return None
    if memoryview(text).nbytes > limits.json_head:
        raise BadRequest(413, f"has {memoryview(text).nbytes} bytes; at most {limits.json_head} are taken", field)
    try:
        return decoder.decode(text)
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise malformed(error, field) from None


def check_json_size(body: Buffer, limits: ProtocolLimits) -> None:
    """Is a body of JSON small enough to be read? Each value but the last is followed by a comma, or a bracket."""
    if len(body) > 2 * limits.json_values and bytes(body).count(b",") >= limits.json_values:
        raise BadRequest(
            413, f"has more than {limits.json_values} values in JSON: send them as binary data", "body"
        )  # fmt: skip


def _input(item: _Input, field: str, tail: Tail, limits: ProtocolLimits) -> InferInput:
    check_name(item.name, f"{field}.name", limits)
    count = elements(item.datatype, item.shape, field, limits)
    where = f"{field}.parameters"
    size = of_tensor(_read(_parameters, item.parameters, where, limits), where, limits)
    written = item.data is not _ABSENT and bytes(item.data) != b"null"
    if size is None:
        if not written:
            raise BadRequest(400, "is missing, and so is parameters.binary_data_size", f"{field}.data")
        data: Buffer = from_json(item.data, item.datatype, item.shape, count, f"{field}.data", limits)
    else:
        where += ".binary_data_size"
        if written:
            raise BadRequest(400, "stands beside data: an input comes in one form", where)
        data = tail.take(size, where)
        check_raw(item.datatype, item.shape, count, data, f"{field}.data", limits)
    return InferInput(item.name, item.datatype, tuple(item.shape), data)


def _outputs(found: list[_Requested], binary: bool, limits: ProtocolLimits) -> tuple[RequestedOutput, ...]:
    check_outputs(len(found), limits)
    asked = []
    for k, item in enumerate(found):
        check_name(item.name, f"outputs[{k}].name", limits)
        where = f"outputs[{k}].parameters"
        form = binary_flag(_read(_parameters, item.parameters, where, limits), binary, where, limits)
        asked.append(RequestedOutput(item.name, form))
    return tuple(asked)


def encode_infer(response: InferResponse, request: InferRequest) -> tuple[list[Buffer], list[tuple[bytes, bytes]]]:
    """The body of an answer, as one buffer or several, and the headers that go with it, in the form that was asked for.

    Raises:
        BadRequest: JSON was asked for, and cannot hold an output (bytes that are not UTF-8).
    """
    asked: list[tuple[InferOutput, bool]]
    if request.outputs:
        there = {output.name: output for output in response.outputs}
        asked = [(there[item.name], item.binary) for item in request.outputs]
    else:
        asked = [(output, request.binary) for output in response.outputs]
    told, tail = [], []
    for output, binary in asked:
        name, datatype, shape, data = output.name, output.datatype, output.shape, output.data
        if binary:
            told.append(_Output(name, datatype, shape, {"binary_data_size": len(data)}))
            tail.append(data)
        else:
            told.append(_Output(name, datatype, shape, None, unpack(name, datatype, data)))
    head = _encoder.encode(
        _Response(response.model, told, response.version, response.id, response.parameters or None)
    )  # fmt: skip
    if not tail:
        return json_answer(head)
    size = len(head) + sum(map(len, tail))
    headers = [
        (b"content-type", b"application/octet-stream"), (b"content-length", b"%d" % size),
        (_LENGTH_NAME, b"%d" % len(head)),
    ]  # fmt: skip
    return [head, *tail], headers


def json_answer(body: bytes) -> tuple[list[Buffer], list[tuple[bytes, bytes]]]:
    """A body of JSON with its headers."""
    return [body], [*JSON_HEADERS, (b"content-length", b"%d" % len(body))]


#: What goes with every body of JSON.
JSON_HEADERS = ((b"content-type", b"application/json"),)
