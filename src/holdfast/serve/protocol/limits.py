"""How large what clients send may be. Everything is checked before memory is taken for it."""

from __future__ import annotations

import msgspec

from holdfast.serve.protocol.errors import BadRequest

__all__ = ["ProtocolLimits", "check_id", "check_inputs", "check_name", "check_outputs"]

_MIB = 1 << 20


class ProtocolLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The most of everything that a request may have. What is beyond is refused with 413, names and counts with 400.

    >>> ProtocolLimits(body=1024).body, ProtocolLimits().tensors
    (1024, 64)
    """

    body: int = 64 * _MIB  #: bytes of a body as it comes, and of one that was compressed, as it is then
    #: Bytes of JSON that are not data: all that stands before binary tensors, a list of outputs, a set of parameters.
    json_head: int = _MIB
    #: Values in one JSON body. A number of two characters takes 50 bytes and 60 ns until it is one of four, so this
    #: bounds both; a larger tensor belongs into binary data.
    json_values: int = 2_000_000
    tensors: int = 64  #: inputs of a request, and outputs that it may ask for
    dims: int = 16  #: dimensions of a tensor, and so how deep data is nested
    elements: int = 64 * _MIB  #: numbers of a tensor
    bytes_length: int = 16 * _MIB  #: of one element of type BYTES
    name: int = 256  #: characters of the name of a tensor, or of a parameter
    id: int = 256  #: characters of a request's id
    parameters: int = 64  #: of a request, and of each of its tensors
    parameter_length: int = 4096  #: characters of a parameter that is a string


def check_id(id: str, limits: ProtocolLimits) -> None:
    """Is a request's id short enough?"""
    if len(id) > limits.id:
        raise BadRequest(400, f"has {len(id)} characters; at most {limits.id} are taken", "id")


def check_name(name: str, field: str, limits: ProtocolLimits) -> None:
    """Is this a name that a tensor may have?"""
    if not 0 < len(name) <= limits.name:
        raise BadRequest(400, f"has {len(name)} characters; a name has 1 to {limits.name}", field)


def check_inputs(count: int, limits: ProtocolLimits) -> None:
    """May a request have so many inputs?"""
    if not 0 < count <= limits.tensors:
        raise BadRequest(400, f"there are {count}; a request has between 1 and {limits.tensors}", "inputs")


def check_outputs(count: int, limits: ProtocolLimits) -> None:
    """May a request ask for so many outputs?"""
    if count > limits.tensors:
        raise BadRequest(400, f"there are {count}; at most {limits.tensors} are taken", "outputs")
