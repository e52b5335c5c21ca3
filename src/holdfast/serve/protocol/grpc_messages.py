"""Inference over gRPC: messages become requests, answers messages; and the table of all methods.

    for method in METHODS:
        handlers[method.name] = grpc.unary_unary_rpc_method_handler(
            ..., request_deserializer=method.request.FromString, response_serializer=method.response.SerializeToString
        )

Tensors come as bytes or as typed contents, the whole message one way. Answers are always bytes, as Triton's are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy

from holdfast.model.signature import dtype_of
from holdfast.serve.protocol.errors import BadRequest, shown
from holdfast.serve.protocol.grpc_schema import HEALTH, INFERENCE, DecodeError, message_class
from holdfast.serve.protocol.limits import ProtocolLimits, check_id, check_inputs, check_name, check_outputs
from holdfast.serve.protocol.parameters import checked, of_request
from holdfast.serve.protocol.requests import InferInput, InferRequest, InferResponse, Parameter, RequestedOutput
from holdfast.serve.protocol.tensors import check_lengths, check_raw, elements, pack_bytes

__all__ = [
    "METHODS", "STATUS", "Method", "from_response", "from_view", "read", "repository_parameters", "to_request",
]  # fmt: skip


class Method(NamedTuple):
    """One method of a service."""

    service: str
    name: str
    request: Any  #: class of the message; FromString reads one
    response: Any  #: class of the message; SerializeToString writes one
    streams: bool = False  #: whether it answers more than once


def _method(name: str, package: str, service: str, messages: str = "", streams: bool = False) -> Method:
    messages = messages or name
    return Method(
        f"{package}.{service}", name, message_class(f"{messages}Request", package),
        message_class(f"{messages}Response", package), streams,
    )  # fmt: skip


METHODS: tuple[Method, ...] = (
    *(
        _method(name, INFERENCE, "GRPCInferenceService")
        for name in (
            "ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer", "ModelConfig",
            "ModelStatistics", "RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload",
        )
    ),
    _method("Check", HEALTH, "Health", "HealthCheck"),
    _method("Watch", HEALTH, "Health", "HealthCheck", streams=True),
)  # fmt: skip

#: What gRPC calls the statuses of HTTP with which we answer. UNAVAILABLE is sent again by clients: it is used only
#: where that is safe.
STATUS = {
    400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
    409: "FAILED_PRECONDITION", 413: "RESOURCE_EXHAUSTED", 415: "INVALID_ARGUMENT", 429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL", 501: "UNIMPLEMENTED", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
}  # fmt: skip

_Response = message_class("ModelInferResponse")

#: Datatype -> the field of typed contents, and the dtype of its elements. FP16 and BF16 have none.
_CONTENTS = {
    "BOOL": ("bool_contents", "?"), "INT8": ("int_contents", "<i4"), "INT16": ("int_contents", "<i4"),
    "INT32": ("int_contents", "<i4"), "INT64": ("int64_contents", "<i8"), "UINT8": ("uint_contents", "<u4"),
    "UINT16": ("uint_contents", "<u4"), "UINT32": ("uint_contents", "<u4"), "UINT64": ("uint64_contents", "<u8"),
    "FP32": ("fp32_contents", "<f4"), "FP64": ("fp64_contents", "<f8"), "BYTES": ("bytes_contents", ""),
}  # fmt: skip


def read(method: Method, data: bytes) -> Any:
    """The message of a call. Raises BadRequest."""
    try:
        return method.request.FromString(data)
    except DecodeError:
        raise BadRequest(400, f"is no {method.request.DESCRIPTOR.full_name}", "message") from None


def to_request(message: Any, limits: ProtocolLimits) -> InferRequest:
    """The request that a ModelInferRequest is. Raises BadRequest, and nothing else, where it is none."""
    id = message.id
    check_id(id, limits)
    told = of_request(_parameters(message.parameters, "parameters", limits), limits)
    inputs, raw = message.inputs, message.raw_input_contents
    check_inputs(len(inputs), limits)
    if raw and len(raw) != len(inputs):
        raise BadRequest(400, f"there are {len(raw)}, and {len(inputs)} inputs: each has one", "raw_input_contents")
    made = []
    for k, tensor in enumerate(inputs):
        field = f"inputs[{k}]"
        name, datatype, shape = tensor.name, tensor.datatype, tuple(tensor.shape)
        check_name(name, f"{field}.name", limits)
        count = elements(datatype, shape, field, limits)
        if tensor.parameters:
            checked(_parameters(tensor.parameters, f"{field}.parameters", limits), f"{field}.parameters", limits)
        if raw:
            if tensor.HasField("contents") and tensor.contents.ListFields():
                where = f"{field}.contents"
                raise BadRequest(400, "stands beside raw_input_contents: a message has one of the two", where)
            data = raw[k]
            check_raw(datatype, shape, count, data, f"raw_input_contents[{k}]", limits)
        else:
            data = _typed(tensor.contents, datatype, count, field, limits)
        made.append(InferInput(name, datatype, shape, data))
    outputs = _outputs(message.outputs, limits) if message.outputs else ()
    return InferRequest(
        message.model_name, message.model_version, id, tuple(made), outputs, True, *told[1:]
    )  # fmt: skip


def _outputs(found: Any, limits: ProtocolLimits) -> tuple[RequestedOutput, ...]:
    check_outputs(len(found), limits)
    for k, asked in enumerate(found):
        check_name(asked.name, f"outputs[{k}].name", limits)
        if asked.parameters:
            where = f"outputs[{k}].parameters"
            checked(_parameters(asked.parameters, where, limits), where, limits)
    return tuple(RequestedOutput(asked.name, True) for asked in found)


def _parameters(found: Any, field: str, limits: ProtocolLimits) -> dict[str, object]:
    if len(found) > limits.parameters:
        raise BadRequest(400, f"has {len(found)} parameters; at most {limits.parameters} are taken", field)
    values: dict[str, object] = {}
    for name, parameter in found.items():
        which = parameter.WhichOneof("parameter_choice")
        if which is None:
            raise BadRequest(400, "has no value", f"{field}[{shown(name)}]")
        values[name] = getattr(parameter, which)
    return values


def _typed(contents: Any, datatype: str, count: int, field: str, limits: ProtocolLimits) -> bytes:
    if datatype not in _CONTENTS:
        raise BadRequest(400, f"{datatype} travels as bytes only: use raw_input_contents", f"{field}.contents")
    name, code = _CONTENTS[datatype]
    for other, _ in contents.ListFields():
        if other.name != name:
            raise BadRequest(400, f"does not belong to {datatype}, which has {name}", f"{field}.contents.{other.name}")
    values, where = getattr(contents, name), f"{field}.contents.{name}"
    if len(values) != count:
        raise BadRequest(400, f"has {len(values)} values; the shape has {count}", where)
    if not code:
        check_lengths(values, where, (count,), limits)
        return pack_bytes(values)
    array = numpy.fromiter(values, code, count)
    dtype = dtype_of(datatype)
    if array.dtype != dtype:  # wider than the datatype is
        bounds = numpy.iinfo(dtype.str)
        outside = (array < bounds.min) | (array > bounds.max)
        if outside.any():
            k = int(outside.argmax())
            raise BadRequest(400, f"{array[k]} is out of range for {datatype}", f"{where}[{k}]")
        array = array.astype(dtype)
    return array.tobytes()


def from_response(response: InferResponse, request: InferRequest) -> Any:
    """The ModelInferResponse that an answer is, with the outputs that were asked for, in that order."""
    message = _Response(model_name=response.model, model_version=response.version, id=response.id)
    outputs = response.outputs
    if request.outputs:
        there = {output.name: output for output in outputs}
        outputs = tuple(there[asked.name] for asked in request.outputs)
    for output in outputs:
        message.outputs.add(name=output.name, datatype=output.datatype, shape=output.shape)
        message.raw_output_contents.append(bytes(output.data))
    for name, value in response.parameters.items():
        _set_parameter(message.parameters[name], value)
    return message


def _set_parameter(parameter: Any, value: Parameter) -> None:
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int):
        if value < 1 << 63:
            parameter.int64_param = value
        else:
            parameter.uint64_param = value
    elif isinstance(value, str):
        parameter.string_param = value
    else:
        parameter.double_param = value


def repository_parameters(found: Any, limits: ProtocolLimits) -> dict[str, object]:
    """The parameters with which a model is loaded or unloaded. Raises BadRequest."""
    return _parameters(found, "parameters", limits)


_RESPONSES = {method.name: method.response for method in METHODS}


def from_view(method: str, view: Mapping[str, Any]) -> Any:
    """The answer of a method from what `metadata` says; keys that the message does not have are left out.

    >>> from_view("ServerLive", {"live": True, "ready": False}).live
    True
    """
    made = _RESPONSES[method]
    return made(**_known(made.DESCRIPTOR, view))


def _known(descriptor: Any, view: Mapping[str, Any]) -> dict[str, Any]:
    there = descriptor.fields_by_name
    return {
        name: _known(there[name].message_type, value) if isinstance(value, Mapping) else value
        for name, value in view.items()
        if name in there
    }
