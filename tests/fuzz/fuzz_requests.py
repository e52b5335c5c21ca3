"""Fuzzing of what reads requests of clients whom nobody knows: guided by coverage in `make fuzz`, which needs atheris,
and without it in `make test` (tests/unit/serve/protocol/test_fuzz_targets.py).

The first byte of an input chooses what is fuzzed, the rest is what comes in. What counts as a crash is an exception
that is not a BadRequest with a status of 4xx, a request whose tensors are not as long as their shapes say, or an answer
to it that cannot be written.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import struct
import sys
import zlib
from collections.abc import Iterator

import msgspec

try:
    import atheris
except ImportError:  # as in `make test`
    instrumented = contextlib.nullcontext()
else:
    instrumented = atheris.instrument_imports(include=["holdfast.serve.protocol"])

with instrumented:
    from holdfast.serve.protocol.binary import inflate
    from holdfast.serve.protocol.fit import fit
    from holdfast.serve.protocol.limits import ProtocolLimits
    from holdfast.serve.protocol.plain import encode_predict, parse_predict
    from holdfast.serve.protocol.requests import InferOutput, InferRequest, InferResponse
    from holdfast.serve.protocol.rest import encode_infer, parse_infer
    from holdfast.serve.protocol.tensors import ITEMSIZE, unpack_bytes

from holdfast.errors import BadRequest
from holdfast.model.signature import DATATYPES, Signature, TensorSpec

LIMITS = ProtocolLimits(body=1 << 16, json_values=1 << 12, elements=1 << 16, bytes_length=1 << 12)
SIGNATURES = (
    Signature((TensorSpec("x", "FP32", (-1, 2)),), ()),
    Signature((TensorSpec("x", "INT8", (-1, 1, -1)),), ()),
    Signature((TensorSpec("x", "BYTES", (-1,)), TensorSpec("y", "BOOL", (-1, 2))), ()),
    Signature((TensorSpec("x", "FP16", (2, 2)),), (), batched=False),
)


@contextlib.contextmanager
def only_refusals() -> Iterator[None]:
    """What happens inside succeeds, or is refused as the client's fault."""
    try:
        yield
    except BadRequest as error:
        if not (400 <= error.status < 500 and str(error)):
            raise AssertionError(f"status {error.status}") from error


def check(request: InferRequest) -> None:
    """Is a request what it says it is, and can it be sent back?"""
    for item in request.inputs:
        count = 1
        for size in item.shape:
            count *= size
        if item.datatype == "BYTES":
            assert len(unpack_bytes(item.data)) == count
        elif item.datatype:
            assert len(item.data) == count * ITEMSIZE[item.datatype]
        if item.datatype not in ("", "BF16", "BYTES"):  # these JSON may not hold
            output = InferOutput("y", item.datatype, item.shape, item.data)
            asked = msgspec.structs.replace(request, outputs=(), binary=False)
            buffers, _ = encode_infer(InferResponse("m", "1", "", (output,)), asked)
            json.loads(buffers[0])


def parse(body: bytes, length: str | None = None, encoding: str | None = None) -> None:
    with only_refusals():
        request = parse_infer(body, model="m", version="", limits=LIMITS, json_length=length, encoding=encoding)
        check(request)
        for signature in SIGNATURES:
            with only_refusals():
                check(fit(request, signature, LIMITS).request)


def whole(data: bytes) -> None:
    """A body of JSON, as it comes."""
    parse(data)


#: A request that is right, with and without bytes behind its JSON.
VALID = json.dumps(
    {
        "id": "1",
        "inputs": [{"name": "x", "datatype": "INT8", "shape": [1, 2], "data": [[1, 2]], "parameters": {"a": 1}}],
        "outputs": [{"name": "y", "parameters": {"binary_data": True}}], "parameters": {"timeout": 5, "priority": 1},
    }
).encode()  # fmt: skip
BEHIND = json.dumps(
    {
        "inputs": [
            {"name": "x", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": 9}},
            {"name": "y", "datatype": "BOOL", "shape": [2, 2], "parameters": {"binary_data_size": 4}},
        ]
    }
).encode()


def changed(data: bytes) -> None:
    """A right request in which some bytes are replaced: where, how many, and by which the input says."""
    at, cut = struct.unpack("<HB", data[:3].ljust(3, b"\0"))
    for sent, length in ((VALID, None), (BEHIND + b"\1\0\0\0a" + bytes(4) + b"\0\1\0\1", str(len(BEHIND)))):
        place = at % len(sent)
        parse(sent[:place] + data[3:] + sent[place + cut % 16 :], length)


def values(data: bytes) -> None:
    """The data of a tensor in JSON: datatype and shape from the first bytes."""
    datatype = list(DATATYPES)[data[0] % len(DATATYPES)] if data else "INT8"
    shape = [size % 4 for size in data[2 : 2 + data[1] % 4]] if len(data) > 1 else []
    told = json.dumps({"name": "x", "datatype": datatype, "shape": shape}).encode()
    parse(b'{"inputs":[' + told[:-1] + b',"data":' + data[5:] + b"}]}")


def split(data: bytes) -> None:
    """JSON and what follows it; the first two bytes say where the one ends."""
    (length,) = struct.unpack("<H", data[:2].ljust(2, b"\0"))
    parse(data[2:], str(length))


def tail(data: bytes) -> None:
    """Binary tensors of BYTES and of BOOL, whose sizes are right."""
    cut = data[0] % (len(data) + 1) if data else 0
    sizes = (cut, len(data) - cut)
    told = [
        {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}
        for name, datatype, shape, size in zip("xy", ("BYTES", "BOOL"), ([cut % 5], [sizes[1]]), sizes, strict=True)
    ]
    head = json.dumps({"inputs": told}).encode()
    parse(head + data, str(len(head)))
    parse(data, "0")


def packed(data: bytes) -> None:
    """Compressed bodies: as they come, and right ones."""
    for name, pack in (("gzip", gzip.compress), ("deflate", zlib.compress)):
        parse(data, None, name)
        if len(data) <= LIMITS.body // 2:
            assert inflate(pack(data), name, LIMITS) == data
    with only_refusals():
        assert len(inflate(data, "gzip", ProtocolLimits(body=100))) <= 100


def header(data: bytes) -> None:
    """Headers of any text."""
    text = data.decode("latin-1")
    parse(b"{}", text)
    parse(b"{}", None, text)


def plain(data: bytes) -> None:
    """`POST /predict`, for every signature."""
    for signature in SIGNATURES:
        with only_refusals():
            found = parse_predict(data, signature, model="m", version="", limits=LIMITS)
            check(found.request)
            assert fit(found.request, signature).items
            outputs = tuple(InferOutput(*msgspec.structs.astuple(item)) for item in found.request.inputs)
            json.loads(encode_predict(InferResponse("m", "1", "", outputs), signature, found.single, ("a", "b")))


TARGETS = (whole, changed, values, split, tail, packed, header, plain)


def one_input(data: bytes) -> None:
    """What atheris calls."""
    if data:
        TARGETS[data[0] % len(TARGETS)](data[1:])


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
