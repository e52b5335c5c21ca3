"""`POST /predict`: what people write who know the model and no protocol, and what they are told."""

from __future__ import annotations

import json
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadRequest
from holdfast.model.signature import Signature
from holdfast.serve.protocol.fit import fit
from holdfast.serve.protocol.plain import PlainRequest, encode_predict, parse_predict
from tests.unit.serve.protocol.arrays import LIMITS, answer, only_refusals, output, raw, signature

ROWS = signature(x=("FP32", (-1, 2)))
IMAGES = signature(x=("FP32", (-1, 1, 2, 2)))
LENGTHS = signature(x=("INT64", (-1, -1)))
TEXTS = signature(text=("BYTES", (-1,)))
TWO = signature(a=("INT64", (-1,)), b=("BYTES", (-1,)))
ALONE = signature(x=("INT64", (2,)), batched=False)


def predict(told: Any, signature: Signature = ROWS) -> PlainRequest:
    sent = told if isinstance(told, bytes) else json.dumps(told).encode()
    found = parse_predict(sent, signature, model="m", version="", limits=LIMITS)
    assert fit(found.request, signature).request is found.request
    return found


@pytest.mark.parametrize(
    ("signature", "told", "shape", "single"),
    [
        (ROWS, [[1, 2], [3, 4]], (2, 2), False), (ROWS, [1, 2], (1, 2), True), (ROWS, [[1, 2]], (1, 2), False),
        (ROWS, {"x": [1, 2]}, (1, 2), True), (ROWS, {"inputs": [1, 2]}, (1, 2), True),
        (ROWS, {"inputs": {"x": [[1, 2]]}}, (1, 2), False), (ROWS, {"instances": [[1, 2]]}, (1, 2), False),
        (ROWS, {"instances": [{"x": [1, 2]}, {"x": [3, 4]}]}, (2, 2), False),
        (IMAGES, [[[1, 2], [3, 4]]], (1, 1, 2, 2), True), (IMAGES, [[1, 2], [3, 4]], (1, 1, 2, 2), True),
        (IMAGES, [1, 2, 3, 4], (1, 1, 2, 2), True), (IMAGES, [[1, 2, 3, 4]] * 3, (3, 1, 2, 2), False),
        (IMAGES, [[[1, 2], [3, 4]]] * 3, (3, 1, 2, 2), False), (IMAGES, [[[[1, 2], [3, 4]]]], (1, 1, 2, 2), False),
        (LENGTHS, [1, 2, 3], (1, 3), True), (LENGTHS, [[1, 2, 3]] * 2, (2, 3), False),
        (LENGTHS, {"instances": [[1, 2, 3]]}, (1, 3), False),
        (TEXTS, "hello", (1,), True), (TEXTS, ["a", "b"], (2,), False), (TEXTS, {"instances": ["a"]}, (1,), False),
        (ALONE, [1, 2], (2,), False), (ALONE, {"x": [1, 2]}, (2,), False), (ALONE, [[1, 2]], (2,), False),
    ],
)  # fmt: skip
def test_one_item_or_many(signature: Signature, told: Any, shape: tuple[int, ...], single: bool) -> None:
    found = predict(told, signature)
    assert (found.request.inputs[0].shape, found.single) == (shape, single)


def test_values_are_what_they_were() -> None:
    assert predict([[1, 2.5]]).request.inputs[0].data == raw("FP32", [1, 2.5])
    assert predict(["a", "ü"], TEXTS).request.inputs[0].data == raw("BYTES", ["a", "ü"])
    whole = signature(x=("INT8", (-1, 2)))
    assert predict([1.0, -2], whole).request.inputs[0].data == b"\x01\xfe"
    assert predict([True, 0], signature(x=("BOOL", (-1, 2)))).request.inputs[0].data == b"\1\0"


def test_several_inputs_by_name() -> None:
    for told in ({"a": [1, 2], "b": ["p", "q"]}, {"inputs": {"b": ["p", "q"], "a": [1, 2]}}):
        found = predict(told, TWO)
        assert [(item.name, item.shape) for item in found.request.inputs] == [("a", (2,)), ("b", (2,))]
    assert predict({"a": 1, "b": "p"}, TWO).single
    found = predict({"instances": [{"a": 1, "b": "p"}, {"b": "q", "a": 2}]}, TWO)
    assert found.request.inputs[1].data == raw("BYTES", ["p", "q"])


def test_an_input_may_be_called_inputs() -> None:
    assert predict({"inputs": [1, 2]}, signature(inputs=("FP32", (-1, 2)))).single
    assert predict({"instances": [[1, 2]]}, signature(instances=("FP32", (-1, 2)))).request.inputs[0].shape == (1, 2)


@pytest.mark.parametrize(
    ("told", "signature", "said"),
    [
        (b"", ROWS, "body: cannot be read as JSON: Input data was truncated"),
        (b"\xff", ROWS, "body: cannot be read as JSON: JSON is malformed: invalid character (byte 0)"),
        (b"[" * 100_000, ROWS, "body: is nested too deep"),
        ([[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]], ROWS, "body: is nested deeper than 16"),
        ({}, ROWS, "x: is missing"),
        ({"z": 1}, ROWS, "z: is no input of the model; it has 'x'"),
        ({"x": [1, 2], "z": 1}, ROWS, "z: is no input of the model; it has 'x'"),
        ({"inputs": [1, 2], "z z": 1}, ROWS, "'z z': does not belong beside 'inputs'"),
        ({"inputs": {}}, ROWS, "inputs.x: is missing"),
        ({"instances": []}, ROWS, "instances: is no list of items"),
        ({"instances": 3}, ROWS, "instances: is no list of items"),
        ({"instances": [{"x": [1, 2]}, [1, 2]]}, ROWS, "instances[1]: has no names, and the first item has"),
        ({"instances": [{"x": [1, 2]}, {}]}, ROWS, "instances[1].x: is missing"),
        (
            {"instances": [{"x": [1, 2]}, {"x": [3]}]},
            ROWS,
            "instances[...].x[1]: has 1 values, and the first list there has 2 values",
        ),
        ({"instances": [1, 2]}, ROWS, "instances: has shape [2]; 'x' is [-1, 2], -1 being any size"),
        ([1, 2, 3], ROWS, "body: has shape [3]; 'x' is [-1, 2], -1 being any size"),
        ([], ROWS, "body: has shape [0]; 'x' is [-1, 2], -1 being any size"),
        (3, ROWS, "body: has shape []; 'x' is [-1, 2], -1 being any size"),
        ([[1, 2], [3]], ROWS, "body[1]: has 1 values, and the first list there has 2 values"),
        ([[1, 2], 3], ROWS, "body[1]: is no list, and the first list there has 2 values"),
        ({"x": [1, [2]]}, ROWS, "x[1]: is a list, and 'x' is FP32"),
        ({"x": [1, "a"]}, ROWS, "x[1]: is a string, and 'x' is FP32"),
        ({"x": [1, None]}, ROWS, "x[1]: is null, and 'x' is FP32"),
        ({"x": [1, True]}, ROWS, "x[1]: is true or false, and 'x' is FP32"),
        ({"x": [[1, {}]]}, ROWS, "x[0][1]: is an object, and 'x' is FP32"),
        ({"x": [1, 1e39]}, ROWS, "x[1]: 1e+39 is out of range for FP32"),
        ({"x": [1, 10**400]}, ROWS, "x[1]: a whole number of 1329 bits is out of range for FP32"),
        ([1.5, 2], LENGTHS, "body[0]: 1.5 is no value of INT64"),
        ([1, 2**63], LENGTHS, "body[1]: 9223372036854775808 is out of range for INT64"),
        ([2, 0], signature(x=("BOOL", (-1, 2))), "body[0]: 2 is no value of BOOL"),
        ([], TEXTS, "body: has no items"),
        ([1], TEXTS, "body[0]: is a number, and 'text' is BYTES"),
        ([[1, 2]], TWO, "body: has no names, and the model has inputs a, b"),
        ({"a": 1, "b": ["p", "q"]}, TWO, "body: 'a' is one item, and the others are lists of items"),
        ({"a": [1, 2, 3], "b": ["p", "q"]}, TWO, "body: the inputs have 2, 3 items: all have the same number"),
        ([1, 2], signature(x=("BF16", (-1, 2))), "body: 'x' is BF16, which travels as bytes only"),
        ([1, 2, 3], ALONE, "body: has shape [3]; 'x' is [2]"),
    ],
)
def test_refusals(told: Any, signature: Signature, said: str) -> None:
    with pytest.raises(BadRequest) as found:
        predict(told, signature)
    assert (str(found.value), found.value.status) == (said, 400)


def test_an_answer_has_the_form_of_its_question() -> None:
    y = output("y", "FP32", [[1.0, 2.0]])
    one = json.loads(encode_predict(answer(y), ROWS, True))
    assert one == {"outputs": {"y": [1.0, 2.0]}, "model": "m", "version": "3"}
    many = json.loads(encode_predict(answer(y), ROWS, False))
    assert many["outputs"] == {"y": [[1.0, 2.0]]}
    alone = json.loads(encode_predict(answer(output("y", "INT8", [1, 2])), ALONE, False))
    assert alone["outputs"] == {"y": [1, 2]}


@pytest.mark.parametrize("shape", [(1,), (1, 3), (2, 2, 2), (2, 0), (2, 0, 3), (1, 2, 0)])
def test_answers_are_nested_as_their_shape(shape: tuple[int, ...]) -> None:
    array = numpy.arange(numpy.prod(shape)).reshape(shape)
    made = answer(output("y", "INT64", array))
    assert json.loads(encode_predict(made, ROWS, False))["outputs"]["y"] == array.tolist()
    if shape[0] == 1:
        assert json.loads(encode_predict(made, ROWS, True))["outputs"]["y"] == array[0].tolist()


def test_labels_from_logits_and_from_probabilities() -> None:
    classes = ("cat", "dog")
    logits = answer(output("y", "FP32", [[0.0, numpy.log(3.0)]]))
    one = json.loads(encode_predict(logits, ROWS, True, classes))
    assert (one["label"], one["probabilities_from"]) == ("dog", "softmax of output")
    assert one["probabilities"] == pytest.approx({"dog": 0.75, "cat": 0.25})
    given = answer(output("y", "FP32", [[0.9, 0.1], [0.5, 0.5]]))
    many = json.loads(encode_predict(given, ROWS, False, classes))
    assert (many["label"], many["probabilities_from"]) == (["cat", "cat"], "output")
    assert many["probabilities"][0] == pytest.approx({"cat": 0.9, "dog": 0.1})


@pytest.mark.parametrize(
    "y", [output("y", "FP32", [[0.0, numpy.nan]]), output("y", "INT8", [[1, 2]]), output("y", "FP32", [[1.0]])]
)
def test_no_labels_where_the_numbers_allow_none(y: Any) -> None:
    assert "label" not in json.loads(encode_predict(answer(y), ROWS, True, ("cat", "dog")))


def test_no_more_than_the_most_likely_classes() -> None:
    classes = [f"c{k}" for k in range(50)]
    found = json.loads(encode_predict(answer(output("y", "FP64", [list(range(50))])), ROWS, True, classes))
    assert list(found["probabilities"]) == [f"c{k}" for k in range(49, 39, -1)]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["x", "a", "b", "inputs", "instances"]), inner)
    ),
)
SIGNATURES = (ROWS, IMAGES, LENGTHS, TEXTS, TWO, ALONE, signature(x=("BOOL", (-1,))))


@given(told=VALUES, signature=st.sampled_from(SIGNATURES))
def test_no_json_raises_anything_else(told: Any, signature: Signature) -> None:
    with only_refusals():
        predict(told, signature)
