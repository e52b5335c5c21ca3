"""A request against a model's signature: what is missing, what is too much, and in which order the model gets it."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import BadRequest
from holdfast.model.signature import Signature, TensorSpec
from holdfast.serve.protocol.fit import fit
from holdfast.serve.protocol.limits import ProtocolLimits
from holdfast.serve.protocol.requests import InferInput, InferRequest, RequestedOutput
from tests.unit.serve.protocol.arrays import parse, raw, signature, tensor

ONE = signature(x=("FP32", (-1, 2)))
TWO = signature(a=("INT8", (-1,)), b=("FP32", (-1, 3)))


def asked(*inputs: InferInput, **fields: Any) -> InferRequest:
    return InferRequest(**{"model": "m", "version": "", "id": "", "inputs": inputs, **fields})


def x(shape: tuple[int, ...], datatype: str = "FP32", name: str = "x") -> InferInput:
    return InferInput(name, datatype, shape, b"")


def refused(request: InferRequest, signature: Signature = ONE) -> str:
    with pytest.raises(BadRequest) as found:
        fit(request, signature)
    assert found.value.status == 400
    return str(found.value)


def test_a_request_that_fits_is_handed_on_as_it_is() -> None:
    request = asked(x((5, 2)))
    found = fit(request, ONE)
    assert found.items == 5
    assert found.request is request


def test_inputs_come_in_the_order_of_the_signature() -> None:
    a, b = tensor("a", "INT8", [1, 2]), tensor("b", "FP32", [[0.0] * 3] * 2)
    found = fit(asked(b, a, id="7"), TWO)
    assert (found.request.inputs, found.items, found.request.id) == ((a, b), 2, "7")


def test_a_model_that_is_not_batched_has_one_item() -> None:
    assert fit(asked(x((3, 2))), signature(x=("FP32", (3, 2)), batched=False)).items == 1
    assert fit(asked(x(())), signature(x=("FP32", ()), batched=False)).items == 1


def test_inputs() -> None:
    assert refused(asked(x((1, 2), name="z"))) == "inputs[0].name: 'z' is none of 'x'"
    assert refused(asked(x((1, 2), "FP64"))) == "inputs[0].datatype: is FP64; 'x' is FP32"
    assert refused(asked(x((1, 3)))) == "inputs[0].shape: is [1, 3]; 'x' is [-1, 2], -1 being any size"
    assert refused(asked(x((0, 2)))) == "inputs[0].shape: is [0, 2]: there are no items"
    assert refused(asked(x((1, 2)), x((1, 2)))) == "inputs[1].name: 'x' is there twice, at 0 too"
    assert refused(asked(x((3,))), signature(x=("FP32", (2,)), batched=False)) == "inputs[0].shape: is [3]; 'x' is [2]"


def test_one_item_without_its_dimension_is_told_the_right_shape() -> None:
    assert refused(asked(x((2,)))) == (
        "inputs[0].shape: is [2]; 'x' is [-1, 2], -1 being any size. The first dimension counts items: send one "
        "item as [1, 2]"
    )


def test_several_inputs() -> None:
    a, b = x((1,), "INT8", "a"), x((2, 3), name="b")
    assert refused(asked(a), TWO) == "inputs: 'b' is missing"
    assert refused(asked(x((1,), name="c")), TWO) == "inputs[0].name: 'c' is none of 'a', 'b'"
    assert refused(asked(a, x((1, 3), name="b"), x((1,), name="c")), TWO) == "inputs[2].name: 'c' is none of 'a', 'b'"
    assert refused(asked(a, b), TWO) == "inputs[1].shape: has 2 items, and 'a' has 1: all inputs have the same number"
    three = signature(a=("INT8", (-1,)), b=("INT8", (-1,)), c=("INT8", (-1,)))
    assert refused(asked(a), three) == "inputs: 'b', 'c' are missing"


def test_outputs() -> None:
    assert fit(asked(x((1, 2)), outputs=(RequestedOutput("y"),)), ONE).items == 1
    assert refused(asked(x((1, 2)), outputs=(RequestedOutput("z"),))) == "outputs[0].name: 'z' is none of 'y'"
    twice = (RequestedOutput("y"), RequestedOutput("y", True))
    assert refused(asked(x((1, 2)), outputs=twice)) == "outputs[1].name: 'y' is asked for twice"


def test_outputs_that_json_cannot_hold_are_refused_before_they_are_computed() -> None:
    half = signature(x=("FP32", (-1, 2)), outputs=(TensorSpec("y", "BF16", (-1, 2)),))
    assert fit(asked(x((1, 2)), binary=True), half).items == 1
    assert refused(asked(x((1, 2))), half) == (
        "parameters.binary_data_output: 'y' is BF16, which travels as bytes only: ask for binary data"
    )
    assert refused(asked(x((1, 2)), outputs=(RequestedOutput("y"),)), half).startswith("outputs[0]: 'y' is BF16")


@pytest.mark.parametrize(
    ("spec", "batched", "sent", "shape"),
    [
        (("FP32", (-1, 2)), True, raw("FP32", [1, 2, 3, 4]), (2, 2)),
        (("FP32", (-1, -1)), True, raw("FP32", [1, 2, 3]), (1, 3)),
        (("INT8", (-1,)), True, b"abc", (3,)),
        (("INT8", (2, -1)), False, b"abcd", (2, 2)),
        (("INT8", (2, 2)), False, b"abcd", (2, 2)),
        (("BOOL", (-1, 1)), True, b"\1\0", (2, 1)),
    ],
)
def test_a_body_that_is_all_tensor(spec: Any, batched: bool, sent: bytes, shape: tuple[int, ...]) -> None:
    request = parse(sent, json_length="0")
    found = fit(request, signature(x=spec, batched=batched))
    assert found.request.inputs == (InferInput("x", spec[0], shape, sent),)
    assert found.request.binary
    assert found.items == (shape[0] if batched else 1)


def test_a_body_that_is_one_element_of_bytes() -> None:
    found = fit(parse(b"\xff\xd8", json_length="0"), signature(x=("BYTES", (-1,))))
    assert found.request.inputs == (InferInput("x", "BYTES", (1,), b"\2\0\0\0\xff\xd8"),)


def test_bodies_that_cannot_be_all_tensor() -> None:
    whole = parse(b"abcdef", json_length="0")
    assert refused(whole, TWO) == (
        "Inference-Header-Content-Length: a body without JSON is the one input of a model, and this one has 2"
    )
    assert refused(whole) == "body: has 6 bytes; FP32 has 4 an element"
    assert refused(parse(bytes(12), json_length="0")) == "body: has 12 bytes; FP32 of shape [1, 2] has 8"
    assert refused(parse(b"", json_length="0")) == "inputs[0].shape: is [0, 2]: there are no items"
    variable = signature(x=("INT8", (-1, -1, -1)))
    assert refused(whole, variable) == "body: does not say its shape: 'x' is [-1, -1, -1]"
    assert refused(whole, signature(x=("BOOL", (-1,)))).endswith("neither 0 nor 1 in a tensor of BOOL")
    with pytest.raises(BadRequest, match="element 0 has 6 bytes; at most 5 are taken"):
        fit(whole, signature(x=("BYTES", (-1,))), ProtocolLimits(bytes_length=5))
