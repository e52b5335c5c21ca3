"""Inference over gRPC: malformed messages are refused with the field's name; others' messages are in nobody's way."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadRequest
from holdfast.serve.protocol.grpc_messages import METHODS, STATUS, from_response, to_request
from holdfast.serve.protocol.grpc_schema import HEALTH, message_class, message_classes
from holdfast.serve.protocol.limits import ProtocolLimits
from holdfast.serve.protocol.requests import InferRequest, RequestedOutput
from tests.unit.serve.protocol.arrays import LIMITS, answer, output

Message = message_class("ModelInferRequest")
SMALL = ProtocolLimits(tensors=2, dims=3, elements=50, bytes_length=5, name=8, id=8, parameters=2)


def asked(**changes: Any) -> Any:
    """A message that is right, with its numbers as typed contents, but for what is changed in its input."""
    fields = {"name": "x", "datatype": "INT32", "shape": [1, 2], "contents": {"int_contents": [1, 2]}, **changes}
    return Message(model_name="m", inputs=[{key: value for key, value in fields.items() if value is not None}])


def sent_raw(*raw: bytes, **changes: Any) -> Any:
    message = asked(contents=None, **changes)
    message.raw_input_contents.extend(raw)
    return message


def told(message: Any, **fields: Any) -> Any:
    message.MergeFrom(Message(**fields))
    return message


def refused(message: Any, limits: ProtocolLimits = LIMITS) -> BadRequest:
    with pytest.raises(BadRequest) as found:
        to_request(message, limits)
    return found.value


def test_all_fields_of_a_request() -> None:
    message = told(
        asked(), model_version="7", id="42", outputs=[{"name": "z"}],
        parameters={
            "timeout": {"int64_param": 5000}, "priority": {"uint64_param": 2}, "a": {"string_param": "b"},
            "c": {"double_param": 0.5}, "d": {"bool_param": True},
        },
    )  # fmt: skip
    found = to_request(Message.FromString(message.SerializeToString()), LIMITS)
    assert (found.model, found.version, found.id, found.timeout, found.priority) == ("m", "7", "42", 0.005, 2)
    assert found.outputs == (RequestedOutput("z", True),)
    assert found.parameters == {"a": "b", "c": 0.5, "d": True}


def test_what_only_rest_needs_is_let_through() -> None:
    found = to_request(told(asked(parameters={"binary_data_size": {"int64_param": 8}})), LIMITS)
    assert found.inputs[0].data == b"\1\0\0\0\2\0\0\0"


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (Message(), "inputs: there are 0; a request has between 1 and 64"),
        (asked(name=""), "inputs[0].name: has 0 characters; a name has 1 to 256"),
        (asked(shape=[-1]), "inputs[0].shape[0]: is -1; a dimension is between 0 and 67108864"),
        (asked(shape=[2**62]), f"inputs[0].shape[0]: is {2**62}; a dimension is between 0 and 67108864"),
        (asked(shape=[2**26, 2]), "inputs[0].shape: has 134217728 elements; at most 67108864 are taken"),
        (asked(contents=None), "inputs[0].contents.int_contents: has 0 values; the shape has 2"),
        (asked(shape=[3]), "inputs[0].contents.int_contents: has 2 values; the shape has 3"),
        (asked(datatype="FP16"), "inputs[0].contents: FP16 travels as bytes only: use raw_input_contents"),
        (asked(datatype="BF16"), "inputs[0].contents: BF16 travels as bytes only: use raw_input_contents"),
        (
            asked(datatype="FP32"),
            "inputs[0].contents.int_contents: does not belong to FP32, which has fp32_contents",
        ),
        (
            asked(contents={"int_contents": [1, 2], "fp32_contents": [1]}),
            "inputs[0].contents.fp32_contents: does not belong to INT32, which has int_contents",
        ),
        (
            asked(datatype="INT8", contents={"int_contents": [1, 128]}),
            "inputs[0].contents.int_contents[1]: 128 is out of range for INT8",
        ),
        (
            asked(datatype="UINT16", contents={"uint_contents": [65536, 1]}),
            "inputs[0].contents.uint_contents[0]: 65536 is out of range for UINT16",
        ),
        (
            asked(parameters={"a": {}}),
            "inputs[0].parameters['a']: has no value",
        ),
        (
            asked(parameters={"shared_memory_region": {"string_param": "/x"}}),
            "inputs[0].parameters.shared_memory_region: is not served: tensors are taken from the request only",
        ),
        (told(asked(), id="x" * 257), "id: has 257 characters; at most 256 are taken"),
        (told(asked(), parameters={"a": {}}), "parameters['a']: has no value"),
        (
            told(asked(), parameters={"timeout": {"string_param": "1"}}),
            "parameters.timeout: is '1'; it is microseconds as a whole number, 0 or more",
        ),
        (
            told(asked(), parameters={"sequence_id": {"int64_param": 1}}),
            "parameters.sequence_id: is not served: this server keeps no sequences",
        ),
        (
            told(asked(), parameters={str(k): {"bool_param": True} for k in range(65)}),
            "parameters: has 65 parameters; at most 64 are taken",
        ),
        (told(asked(), outputs=[{"name": ""}]), "outputs[0].name: has 0 characters; a name has 1 to 256"),
        (
            told(asked(), outputs=[{"name": "y", "parameters": {"classification": {"int64_param": 3}}}]),
            "outputs[0].parameters.classification: is not served: "
            "scores are not sorted here; ask for the output itself",
        ),
        (told(asked(), outputs=[{"name": "y"}] * 65), "outputs: there are 65; at most 64 are taken"),
        (
            told(asked(), raw_input_contents=[bytes(8)]),
            "inputs[0].contents: stands beside raw_input_contents: a message has one of the two",
        ),
        (sent_raw(bytes(7)), "raw_input_contents[0]: has 7 bytes; INT32 of shape [1, 2] has 8"),
        (sent_raw(bytes(8), bytes(8)), "raw_input_contents: there are 2, and 1 inputs: each has one"),
        (
            sent_raw(b"\2\1", datatype="BOOL"),
            "raw_input_contents[0]: has a byte that is neither 0 nor 1 in a tensor of BOOL",
        ),
    ],
)  # fmt: skip
def test_refusals(message: Any, said: str) -> None:
    error = refused(Message.FromString(message.SerializeToString()))
    assert str(error) == said
    assert STATUS[error.status] in ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED")


def test_limits() -> None:
    text = asked(datatype="BYTES", contents={"bytes_contents": [b"a", b"123456"]})
    assert str(refused(text, SMALL)) == "inputs[0].contents.bytes_contents[1]: has 6 bytes; at most 5 are taken"
    assert str(refused(asked(shape=[1] * 4), SMALL)) == "inputs[0].shape: has 4 dimensions; at most 3 are taken"


def test_an_answer() -> None:
    y, z = output("y", "FP32", [[1.0]]), output("z", "INT8", [2])
    told = answer(y, z, id="4", parameters={"a": 1, "b": True, "c": 0.5, "d": "e", "f": 2**63})
    made = from_response(told, InferRequest("m", "", "", ()))
    message = type(made).FromString(made.SerializeToString())
    assert (message.model_name, message.model_version, message.id) == ("m", "3", "4")
    assert [item.name for item in message.outputs] == ["y", "z"]
    assert list(message.raw_output_contents) == [y.data, z.data]
    assert {key: value.WhichOneof("parameter_choice") for key, value in message.parameters.items()} == {
        "a": "int64_param", "b": "bool_param", "c": "double_param", "d": "string_param", "f": "uint64_param",
    }  # fmt: skip
    only = from_response(answer(y, z), InferRequest("m", "", "", (), (RequestedOutput("z", True),)))
    assert [item.name for item in only.outputs] == ["z"] and list(only.raw_output_contents) == [z.data]


def test_every_method_has_its_messages() -> None:
    assert {(method.service, method.name): method.streams for method in METHODS} == {
        **{
            ("inference.GRPCInferenceService", name): False
            for name in (
                "ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer",
                "ModelConfig",
                "ModelStatistics", "RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload",
            )
        },
        ("grpc.health.v1.Health", "Check"): False,
        ("grpc.health.v1.Health", "Watch"): True,
    }  # fmt: skip
    for method in METHODS:
        assert method.request.FromString(b"") == method.request()
        assert method.response.SerializeToString(method.response()) == b""


def test_health() -> None:
    answer = message_class("HealthCheckResponse", HEALTH)
    assert answer(status="SERVING").SerializeToString() == b"\x08\x01"
    assert message_class("HealthCheckRequest", HEALTH)(service="m").SerializeToString() == b"\x0a\x01m"


#: What we do not have of Triton's messages, and the one field of the protocol that Triton does not have.
LEFT_OUT = {"ModelConfig", "ModelInput", "ModelOutput", "ModelStatistics"}


def test_the_messages_are_those_of_triton() -> None:
    from tritonclient.grpc import service_pb2

    for package, name in message_classes():
        if package != "inference":
            continue
        ours = message_class(name).DESCRIPTOR
        theirs = service_pb2.DESCRIPTOR.pool.FindMessageTypeByName(f"inference.{name}")
        assert ours.file.pool is not theirs.file.pool
        for field in ours.fields:
            if field.name == "properties":
                continue
            there = theirs.fields_by_name[field.name]
            assert [getattr(field, what) for what in ("number", "type", "is_repeated")] == [
                getattr(there, what) for what in ("number", "type", "is_repeated")
            ]
            for kind in ("message_type", "enum_type", "containing_oneof"):
                one, other = getattr(field, kind), getattr(there, kind)
                assert (one and one.full_name) == (other and other.full_name)
        if name not in LEFT_OUT:
            assert {field.name for field in theirs.fields} <= {field.name for field in ours.fields}


def test_nothing_else_needs_protobuf() -> None:
    code = (
        "import sys, holdfast.serve.protocol.rest, holdfast.serve.protocol.plain, holdfast.serve.protocol.metadata, "
        "holdfast.serve.protocol.fit; assert not [name for name in sys.modules if name.split('.')[0] in "
        "('google', 'torch', 'grpc', 'orjson', 'asyncio')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@given(sent=st.binary(max_size=200))
def test_no_bytes_raise_anything_else(sent: bytes) -> None:
    try:
        to_request(Message.FromString(sent), LIMITS)
    except (BadRequest, DecodeError):
        pass


VALID = told(
    asked(), raw_input_contents=[], id="1", outputs=[{"name": "y"}], parameters={"timeout": {"int64_param": 5}}
)
WHOLE = (VALID.SerializeToString(), sent_raw(bytes(8)).SerializeToString())


@given(sent=st.sampled_from(WHOLE), at=st.integers(0, 40), cut=st.integers(0, 4), put=st.binary(max_size=4))
def test_no_change_of_a_valid_message_raises_anything_else(sent: bytes, at: int, cut: int, put: bytes) -> None:
    try:
        to_request(Message.FromString(sent[:at] + put + sent[at + cut :]), LIMITS)
    except (BadRequest, DecodeError):
        pass
