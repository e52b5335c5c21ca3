"""Parameters of requests and tensors: strings, numbers, truth values. Some mean something, the rest is handed on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from holdfast.serve.protocol.errors import BadRequest, shown
from holdfast.serve.protocol.limits import ProtocolLimits
from holdfast.serve.protocol.requests import Parameter

__all__ = ["RequestParameters", "binary_flag", "checked", "of_request", "of_tensor"]

#: Names that begin so are ours, and no client can give them.
RESERVED = ("holdfast", "triton_")
#: What would change the answer if we did it, and so is not ignored.
_NOT_SERVED = {
    "sequence_id": "this server keeps no sequences",
    "shared_memory_region": "tensors are taken from the request only",
    "shared_memory_byte_size": "tensors are taken from the request only",
    "shared_memory_offset": "tensors are taken from the request only",
    "classification": "scores are not sorted here; ask for the output itself",
}
_NONE: dict[str, Parameter] = {}


class RequestParameters(NamedTuple):
    """What the parameters of a request say."""

    binary: bool = False
    timeout: float | None = None
    priority: int = 0
    others: dict[str, Parameter] = _NONE


def checked(parameters: Mapping[str, object], field: str, limits: ProtocolLimits) -> dict[str, Parameter]:
    """The parameters, all of which are strings, numbers or truth values, and may be given."""
    if len(parameters) > limits.parameters:
        raise BadRequest(400, f"has {len(parameters)} parameters; at most {limits.parameters} are taken", field)
    found: dict[str, Parameter] = {}
    for name, value in parameters.items():
        where = f"{field}.{name}" if name.isidentifier() and len(name) <= 64 else f"{field}[{shown(name)}]"
        if len(name) > limits.name:
            raise BadRequest(400, f"its name has {len(name)} characters; at most {limits.name} are taken", where)
        if not isinstance(value, str | bool | int | float):
            kind = {dict: "an object", list: "an array", type(None): "null"}.get(type(value), "something else")
            raise BadRequest(400, f"is {kind}; a parameter is a string, a number, true or false", where)
        if isinstance(value, str) and len(value) > limits.parameter_length:
            raise BadRequest(
                400, f"has {len(value)} characters; at most {limits.parameter_length} are taken", where
            )  # fmt: skip
        if type(value) is int and not -(1 << 63) <= value < 1 << 64:
            raise BadRequest(400, f"{shown(value)} has more than 64 bits", where)
        if name.startswith(RESERVED):
            raise BadRequest(400, "this name is reserved", where)
        if name in _NOT_SERVED and value:
            raise BadRequest(400, f"is not served: {_NOT_SERVED[name]}", where)
        found[name] = value
    return found


def of_request(parameters: Mapping[str, object] | None, limits: ProtocolLimits) -> RequestParameters:
    """What a request's parameters say.

    >>> of_request({"timeout": 50_000, "priority": 1, "user": "a"}, ProtocolLimits())
    RequestParameters(binary=False, timeout=0.05, priority=1, others={'user': 'a'})
    """
    if not parameters:
        return _PLAIN
    others = checked(parameters, "parameters", limits)
    binary = _flag(others.pop("binary_data_output", False), "parameters.binary_data_output")
    timeout = _whole(others.pop("timeout", 0), "parameters.timeout", "microseconds")
    priority = _whole(others.pop("priority", 0), "parameters.priority", "a priority")
    return RequestParameters(binary, timeout / 1e6 if timeout else None, priority, others)


_PLAIN = RequestParameters()


def of_tensor(parameters: Mapping[str, object] | None, field: str, limits: ProtocolLimits) -> int | None:
    """How many bytes of an input follow the JSON; None: it does not say so."""
    if not parameters:
        return None
    size = checked(parameters, field, limits).get("binary_data_size")
    return None if size is None else _whole(size, f"{field}.binary_data_size", "bytes")


def binary_flag(parameters: Mapping[str, object] | None, default: bool, field: str, limits: ProtocolLimits) -> bool:
    """Whether an output is to follow the JSON as bytes."""
    if not parameters:
        return default
    return _flag(checked(parameters, field, limits).get("binary_data", default), f"{field}.binary_data")


def _flag(value: Parameter, field: str) -> bool:
    if not isinstance(value, bool):
        raise BadRequest(400, f"is {shown(value)}; it is true or false", field)
    return value


def _whole(value: Parameter, field: str, what: str) -> int:
    if type(value) is not int or value < 0:
        raise BadRequest(400, f"is {shown(value)}; it is {what} as a whole number, 0 or more", field)
    return value
