"""Every malformed request over REST: a status of 4xx, and the field's name. Nothing else is ever raised."""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadRequest
from holdfast.serve.protocol.errors import error_body
from holdfast.serve.protocol.limits import ProtocolLimits
from tests.unit.serve.protocol.arrays import LIMITS, body, only_refusals, parse

SMALL = ProtocolLimits(
    body=4000, json_head=200, json_values=100, tensors=2, dims=3, elements=50, bytes_length=5, name=8, id=8,
    parameters=2,
    parameter_length=8,
)  # fmt: skip

PARAMETER = "a parameter is a string, a number, true or false"
WHOLE = " as a whole number, 0 or more"


def refused(told: Any, **headers: Any) -> BadRequest:
    with pytest.raises(BadRequest) as found:
        parse(told, **headers)
    assert 400 <= found.value.status < 500
    assert json.loads(error_body(found.value)) == {"error": str(found.value)}
    return found.value


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"", "body: cannot be read as JSON: Input data was truncated"),
        (b"{", "body: cannot be read as JSON: Input data was truncated"),
        (b"null", "body: expected `object`, got `null`"),
        (b"[]", "body: expected `object`, got `array`"),
        (b'{"inputs": []} x', "body: cannot be read as JSON: JSON is malformed: trailing characters (byte 16)"),
        (b"\x00\x01", "body: cannot be read as JSON: JSON is malformed: invalid character (byte 0)"),
        (b'{"id": "\xff", "inputs": []}', "body: cannot be read as JSON: it is not UTF-8"),
        (b'{"inputs": NaN}', "body: cannot be read as JSON: JSON is malformed: invalid character (byte 11)"),
        (b"{}", "body: object missing required field `inputs`"),
        (b'{"inputs": null}', "inputs: expected `array`, got `null`"),
        (b'{"inputs": []}', "inputs: there are 0; a request has between 1 and 64"),
        (b'{"inputs": [3]}', "inputs[0]: expected `object`, got `int`"),
        (b'{"inputs": [{"name": "x"}]}', "inputs[0]: object missing required field `datatype`"),
        (b'{"instances": [[1]]}', "body: object missing required field `inputs`"),
    ],
)
def test_bodies_that_are_no_request(sent: bytes, said: str) -> None:
    assert str(refused(sent)) == said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": 3}, "inputs[0].name: expected `str`, got `int`"),
        ({"name": ""}, "inputs[0].name: has 0 characters; a name has 1 to 256"),
        ({"name": "x" * 257}, "inputs[0].name: has 257 characters; a name has 1 to 256"),
        (
            {"datatype": "float"},
            "inputs[0].datatype: 'float' is none of BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64, "
            "FP16, BF16, FP32, FP64, BYTES",
        ),
        ({"datatype": None}, "inputs[0].datatype: expected `str`, got `null`"),
        ({"datatype": "BF16"}, "inputs[0].data: BF16 travels as bytes only: send it as binary data"),
        ({"shape": 2}, "inputs[0].shape: expected `array`, got `int`"),
        ({"shape": [1, -1]}, "inputs[0].shape[1]: is -1; a dimension is between 0 and 67108864"),
        ({"shape": [1.0]}, "inputs[0].shape[0]: expected `int`, got `float`"),
        ({"shape": [True]}, "inputs[0].shape[0]: expected `int`, got `bool`"),
        ({"shape": ["2"]}, "inputs[0].shape[0]: expected `int`, got `str`"),
        ({"shape": [2**62, 4]}, f"inputs[0].shape[0]: is {2**62}; a dimension is between 0 and 67108864"),
        (
            {"shape": [10**400]},
            "inputs[0].shape[0]: is a whole number of 1329 bits; a dimension is between 0 and 67108864",
        ),
        ({"shape": [2**26, 2**26]}, "inputs[0].shape: has 4503599627370496 elements; at most 67108864 are taken"),
        ({"shape": [1] * 17}, "inputs[0].shape: has 17 dimensions; at most 16 are taken"),
        ({"data": None}, "inputs[0].data: is missing, and so is parameters.binary_data_size"),
        ({"data": "12"}, "inputs[0].data: is nested 0 deep; shape [1, 2] is written flat or nested 2 deep"),
        ({"data": 12}, "inputs[0].data: is nested 0 deep; shape [1, 2] is written flat or nested 2 deep"),
        ({"data": {}}, "inputs[0].data: is nested 0 deep; shape [1, 2] is written flat or nested 2 deep"),
        ({"data": [[[1, 2]]]}, "inputs[0].data: is nested 3 deep; shape [1, 2] is written flat or nested 2 deep"),
        ({"data": []}, "inputs[0].data: has 0 values; shape [1, 2] has 2"),
        ({"data": [1]}, "inputs[0].data: has 1 values; shape [1, 2] has 2"),
        ({"data": [1, 2, 3]}, "inputs[0].data: has 3 values; shape [1, 2] has 2"),
        ({"data": [[1, 2], [3, 4]]}, "inputs[0].data: has 2 values; shape [1, 2] has 1 there"),
        ({"data": [[1]]}, "inputs[0].data[0]: has 1 values; shape [1, 2] has 2 there"),
        ({"shape": [2, 2], "data": [[1, 2], [3]]}, "inputs[0].data[1]: has 1 values; shape [2, 2] has 2 there"),
        (
            {"shape": [2, 2, 1], "data": [[[1], [2]], [[3], [4, 5]]]},
            "inputs[0].data[1][1]: has 2 values; shape [2, 2, 1] has 1 there",
        ),
        ({"shape": [2, 2], "data": [[1, 2], 3]}, "inputs[0].data[1]: expected `array`, got `int`"),
        ({"data": [1, [2]]}, "inputs[0].data[1]: expected `int`, got `array`"),
        ({"data": [1, None]}, "inputs[0].data[1]: expected `int`, got `null`"),
        ({"data": [1, "2"]}, "inputs[0].data[1]: expected `int`, got `str`"),
        ({"data": [1, True]}, "inputs[0].data[1]: expected `int`, got `bool`"),
        ({"data": [1, 2.5]}, "inputs[0].data[1]: expected `int`, got `float`"),
        ({"data": [1, 2**31]}, "inputs[0].data[1]: 2147483648 is out of range for INT32"),
        ({"data": [[1, -(2**31) - 1]]}, "inputs[0].data[0][1]: -2147483649 is out of range for INT32"),
        ({"datatype": "UINT8", "data": [256, 0]}, "inputs[0].data[0]: 256 is out of range for UINT8"),
        ({"datatype": "UINT64", "data": [0, -1]}, "inputs[0].data[1]: -1 is out of range for UINT64"),
        ({"datatype": "INT64", "data": [0, 2**63]}, "inputs[0].data[1]: 9223372036854775808 is out of range for INT64"),
        (
            {"datatype": "INT64", "data": [0, 1 << 999]},
            "inputs[0].data[1]: a whole number of 1000 bits is out of range for INT64",
        ),
        ({"datatype": "FP16", "data": [65520.0, 0]}, "inputs[0].data[0]: 65520.0 is out of range for FP16"),
        ({"datatype": "FP32", "data": [0, 1e39]}, "inputs[0].data[1]: 1e+39 is out of range for FP32"),
        ({"datatype": "FP32", "data": [0, None]}, "inputs[0].data[1]: expected `float`, got `null`"),
        ({"datatype": "FP32", "data": [0, "NaN"]}, "inputs[0].data[1]: expected `float`, got `str`"),
        ({"datatype": "FP32", "data": [0, False]}, "inputs[0].data[1]: expected `float`, got `bool`"),
        ({"datatype": "BOOL", "data": [True, 1]}, "inputs[0].data[1]: expected `bool`, got `int`"),
        ({"datatype": "BYTES", "data": ["a", 1]}, "inputs[0].data[1]: expected `str`, got `int`"),
        ({"shape": [], "data": 2**31}, "inputs[0].data: 2147483648 is out of range for INT32"),
        ({"parameters": 3}, "inputs[0].parameters: expected `object | null`, got `int`"),
        ({"parameters": {"a": [1]}}, "inputs[0].parameters.a: is an array; " + PARAMETER),
        ({"parameters": {"a": {}}}, "inputs[0].parameters.a: is an object; " + PARAMETER),
        ({"parameters": {"a b": None}}, "inputs[0].parameters['a b']: is null; " + PARAMETER),
        (
            {"parameters": {"shared_memory_region": "/x"}},
            "inputs[0].parameters.shared_memory_region: is not served: tensors are taken from the request only",
        ),
        (
            {"parameters": {"binary_data_size": 8}},
            "inputs[0].parameters.binary_data_size: stands beside data: an input comes in one form",
        ),
        (
            {"parameters": {"binary_data_size": -1}, "data": None},
            "inputs[0].parameters.binary_data_size: is -1; it is bytes as a whole number, 0 or more",
        ),
        (
            {"parameters": {"binary_data_size": 8.0}, "data": None},
            "inputs[0].parameters.binary_data_size: is 8.0; it is bytes as a whole number, 0 or more",
        ),
        (
            {"parameters": {"binary_data_size": True}, "data": None},
            "inputs[0].parameters.binary_data_size: is True; it is bytes as a whole number, 0 or more",
        ),
        (
            {"parameters": {"binary_data_size": 8}, "data": None},
            "inputs[0].parameters.binary_data_size: is 8, and 0 bytes are left after the JSON",
        ),
    ],
)
def test_inputs(changes: dict[str, Any], said: str) -> None:
    assert str(refused(body(**changes))) == said


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"id": 3}, "id: expected `str | null`, got `int`"),
        ({"id": "x" * 257}, "id: has 257 characters; at most 256 are taken"),
        ({"outputs": {}}, "outputs: expected `array | null`, got `object`"),
        ({"outputs": ["y"]}, "outputs[0]: expected `object`, got `str`"),
        ({"outputs": [{}]}, "outputs[0]: object missing required field `name`"),
        ({"outputs": [{"name": ""}]}, "outputs[0].name: has 0 characters; a name has 1 to 256"),
        ({"outputs": [{"name": "y"}] * 65}, "outputs: there are 65; at most 64 are taken"),
        (
            {"outputs": [{"name": "y", "parameters": {"binary_data": 1}}]},
            "outputs[0].parameters.binary_data: is 1; it is true or false",
        ),
        (
            {"outputs": [{"name": "y", "parameters": {"classification": 3}}]},
            "outputs[0].parameters.classification: is not served: "
            "scores are not sorted here; ask for the output itself",
        ),
        ({"inputs": body()["inputs"] * 65}, "inputs: there are 65; a request has between 1 and 64"),
        ({"parameters": []}, "parameters: expected `object | null`, got `array`"),
        ({"parameters": {"timeout": "1s"}}, "parameters.timeout: is '1s'; it is microseconds" + WHOLE),
        ({"parameters": {"timeout": -1}}, "parameters.timeout: is -1; it is microseconds" + WHOLE),
        ({"parameters": {"priority": 1.5}}, "parameters.priority: is 1.5; it is a priority" + WHOLE),
        ({"parameters": {"binary_data_output": "yes"}}, "parameters.binary_data_output: is 'yes'; it is true or false"),
        ({"parameters": {"sequence_id": 7}}, "parameters.sequence_id: is not served: this server keeps no sequences"),
        ({"parameters": {"triton_enable": 1}}, "parameters.triton_enable: this name is reserved"),
        ({"parameters": {"holdfast_x": 1}}, "parameters.holdfast_x: this name is reserved"),
        ({"parameters": {"n": 2**64}}, "parameters.n: a whole number of 65 bits has more than 64 bits"),
        ({"parameters": {"n": "x" * 4097}}, "parameters.n: has 4097 characters; at most 4096 are taken"),
        ({"parameters": dict.fromkeys(map(str, range(65)), 1)}, "parameters: has 65 parameters; at most 64 are taken"),
    ],
)
def test_requests(fields: dict[str, Any], said: str) -> None:
    assert str(refused(body() | fields)) == said


def test_the_name_of_a_parameter_is_not_repeated_at_length() -> None:
    error = refused(body() | {"parameters": {"n" * 257: 1}})
    assert error.field == f"parameters['{'n' * 63}...]"
    assert error.message == "its name has 257 characters; at most 256 are taken"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("", "is ''; it is a number of bytes, in digits"), ("-1", "is '-1'; it is a number of bytes, in digits"),
        ("+5", "is '+5'; it is a number of bytes, in digits"), (" 5", "is ' 5'; it is a number of bytes, in digits"),
        ("5.0", "is '5.0'; it is a number of bytes, in digits"),
        ("1_0", "is '1_0'; it is a number of bytes, in digits"),
        ("0x5", "is '0x5'; it is a number of bytes, in digits"), ("٣", "is '٣'; it is a number of bytes, in digits"),
        ("9" * 13, "is '9999999999999'; it is a number of bytes, in digits"),
        ("3", "is 3, and the body has 2 bytes"), ("999999999999", "is 999999999999, and the body has 2 bytes"),
    ],
)  # fmt: skip
def test_the_length_of_the_json(value: str, said: str) -> None:
    error = refused(b"{}", json_length=value)
    assert (error.field, error.message) == ("Inference-Header-Content-Length", said)


def behind(tail: bytes, **changes: Any) -> tuple[bytes, str]:
    told = body(**{"parameters": {"binary_data_size": len(tail)}, **changes})
    del told["inputs"][0]["data"]
    head = json.dumps(told).encode()
    return head + tail, str(len(head))


def lengths(*values: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


@pytest.mark.parametrize(
    ("changes", "tail", "said"),
    [
        ({}, b"\0" * 7, "inputs[0].data: has 7 bytes; INT32 of shape [1, 2] has 8"),
        ({}, b"", "inputs[0].data: has 0 bytes; INT32 of shape [1, 2] has 8"),
        ({"shape": [2**26]}, b"", "inputs[0].data: has 0 bytes; INT32 of shape [67108864] has 268435456"),
        (
            {"parameters": {"binary_data_size": 9}}, b"\0" * 8,
            "inputs[0].parameters.binary_data_size: is 9, and 8 bytes are left after the JSON",
        ),
        ({"parameters": {"binary_data_size": 8}}, b"\0" * 9, "body: has 1 bytes that belong to no input"),
        ({"datatype": "BOOL"}, b"\1\2", "inputs[0].data: has a byte that is neither 0 nor 1 in a tensor of BOOL"),
        (
            {"datatype": "BYTES"}, lengths(b"a"),
            "inputs[0].data: has 5 bytes; 2 elements of BYTES need 8 for their lengths",
        ),
        ({"datatype": "BYTES"}, lengths(b"abcd"), "inputs[0].data: ends before the length of element 1 of 2"),
        ({"datatype": "BYTES"}, lengths(b"a", b"b", b""), "inputs[0].data: has 4 bytes after its last element"),
        (
            {"datatype": "BYTES"}, lengths(b"a") + b"\x09\0\0\0b",
            "inputs[0].data: element 1 says it has 9 bytes, and 1 are left",
        ),
        (
            {"datatype": "BYTES"}, lengths(b"a") + b"\xff\xff\xff\xffb",
            "inputs[0].data: element 1 has 4294967295 bytes; at most 16777216 are taken",
        ),
    ],
)  # fmt: skip
def test_binary_tensors(changes: dict[str, Any], tail: bytes, said: str) -> None:
    sent, length = behind(tail, **changes)
    assert str(refused(sent, json_length=length)) == said


def test_bytes_behind_json_that_has_its_own() -> None:
    sent = json.dumps(body()).encode()
    assert str(refused(sent + b"\0", json_length=str(len(sent)))) == "body: has 1 bytes that belong to no input"
    assert "trailing characters" in str(refused(sent + b"\1"))


@pytest.mark.parametrize(
    ("sent", "encoding", "status", "said"),
    [
        (b"{}", "br", 415, "Content-Encoding: 'br' is none of gzip, deflate, identity"),
        (b"{}", "gzip, gzip", 415, "Content-Encoding: 'gzip, gzip' is none of gzip, deflate, identity"),
        (b"{}", "gzip", 400, "body: is not what Content-Encoding says: gzip"),
        (b"", "gzip", 400, "body: ends within what was compressed (gzip)"),
        (gzip.compress(b"{}", mtime=0)[:-1], "gzip", 400, "body: ends within what was compressed (gzip)"),
        (gzip.compress(b"{}", mtime=0) + b"x", "gzip", 400, "body: has 1 bytes after what was compressed"),
        (gzip.compress(b"{}", mtime=0) * 2, "gzip", 400, "body: has 22 bytes after what was compressed"),
        (zlib.compress(b"{}")[:-1], "deflate", 400, "body: ends within what was compressed (deflate)"),
        (gzip.compress(b"{}", mtime=0), "deflate", 400, "body: is not what Content-Encoding says: deflate"),
        (zlib.compress(bytes(4001)), "deflate", 413, "body: has more than 4000 bytes once it is unpacked"),
        (bytes(4001), None, 413, "body: has 4001 bytes; at most 4000 are taken"),
    ],
)
def test_compressed_bodies(sent: bytes, encoding: str | None, status: int, said: str) -> None:
    error = refused(sent, encoding=encoding, limits=SMALL)
    assert error.status == status
    assert str(error) == said


def test_a_bomb_is_not_unpacked() -> None:
    error = refused(gzip.compress(bytes(10**8)), encoding="gzip", limits=msgspec.structs.replace(LIMITS, body=1 << 20))
    assert (error.status, str(error)) == (413, "body: has more than 1048576 bytes once it is unpacked")


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (body() | {"inputs": body()["inputs"] * 3}, "inputs: there are 3; a request has between 1 and 2"),
        (body(shape=[1, 1, 1, 2]), "inputs[0].shape: has 4 dimensions; at most 3 are taken"),
        (body(shape=[51]), "inputs[0].shape[0]: is 51; a dimension is between 0 and 50"),
        (body(shape=[10, 6]), "inputs[0].shape: has 60 elements; at most 50 are taken"),
        (body(datatype="BYTES", data=["a", "123456"]), "inputs[0].data[1]: has 6 bytes; at most 5 are taken"),
        (body(datatype="BYTES", data=[["a", "123456"]]), "inputs[0].data[0][1]: has 6 bytes; at most 5 are taken"),
        (body(name="x" * 9), "inputs[0].name: has 9 characters; a name has 1 to 8"),
        (body() | {"id": "x" * 9}, "id: has 9 characters; at most 8 are taken"),
        (body() | {"outputs": [{"name": "y" * 200}]}, "outputs: has 214 bytes; at most 200 are taken"),
        (body() | {"parameters": {"a": "b" * 200}}, "parameters: has 209 bytes; at most 200 are taken"),
        (body(parameters={"a": "b" * 200}), "inputs[0].parameters: has 209 bytes; at most 200 are taken"),
        (body(data=list(range(101))), "body: has more than 100 values in JSON: send them as binary data"),
    ],
)
def test_limits(told: dict[str, Any], said: str) -> None:
    assert str(refused(told, limits=SMALL)) == said


def test_the_json_before_tensors_has_a_limit_of_its_own() -> None:
    sent, length = behind(b"\0" * 8, padding="x" * 200)
    error = refused(sent, json_length=length, limits=SMALL)
    assert error.field == "Inference-Header-Content-Length"
    assert error.message.endswith("the JSON has at most 200 bytes")


@pytest.mark.parametrize(
    "sent",
    [
        b"[" * 100_000,
        b'{"inputs":' + b"[" * 100_000,
        b'{"x":' + b'{"a":' * 100_000,
        b'{"parameters":{"a":' + b"[" * 100_000,
        b'{"inputs":[{"name":"x","datatype":"INT8","shape":[1],"data":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}",
        b'{"inputs":[{"name":"x","datatype":"INT8","shape":[1],"more":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}",
    ],
)
def test_json_that_is_nested_deep(sent: bytes) -> None:
    assert refused(sent).status == 400


def test_digits_without_end() -> None:
    for count in (400, 4_300, 5_000, 100_000):
        sent = b'{"inputs":[{"name":"x","datatype":"INT64","shape":[1],"data":[' + b"9" * count + b"]}]}"
        assert refused(sent).field == "inputs[0].data[0]"


VALID = json.dumps(body() | {"id": "1", "outputs": [{"name": "y"}], "parameters": {"timeout": 5}}).encode()
SENT, LENGTH = behind(b"\1\0\0\0\2\0\0\0")


@given(
    sent=st.binary(max_size=300),
    length=st.none() | st.text(max_size=3),
    encoding=st.sampled_from([None, "gzip", "deflate"]),
)
def test_no_bytes_raise_anything_else(sent: bytes, length: str | None, encoding: str | None) -> None:
    with only_refusals():
        parse(sent, json_length=length, encoding=encoding)


@given(at=st.integers(0, len(SENT) - 1), cut=st.integers(0, 5), put=st.binary(max_size=5), binary=st.booleans())
def test_no_change_of_a_valid_request_raises_anything_else(at: int, cut: int, put: bytes, binary: bool) -> None:
    whole = SENT if binary else VALID
    with only_refusals():
        parse(whole[:at] + put + whole[at + cut :], json_length=LENGTH if binary else None)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["name", "shape", "data", "a"]), inner),
    max_leaves=8,
)


@given(
    told=st.fixed_dictionaries(
        {
            "inputs": st.lists(
                st.fixed_dictionaries(
                    {"name": st.just("x") | JSON_VALUES,
                     "shape": st.lists(st.integers(-1, 3), max_size=3) | JSON_VALUES,
                     "datatype": st.sampled_from(["INT8", "FP32", "BYTES", "BOOL", "FP16", "UINT64"]) | JSON_VALUES,
                     "data": JSON_VALUES},
                    optional={"parameters": JSON_VALUES},
                ),
                max_size=2,
            )
            | JSON_VALUES
        },
        optional={"id": JSON_VALUES, "parameters": JSON_VALUES, "outputs": JSON_VALUES},
    )
)  # fmt: skip
def test_no_json_raises_anything_else(told: Any) -> None:
    with only_refusals():
        parse(told)
