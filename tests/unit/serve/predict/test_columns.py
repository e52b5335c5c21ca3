from __future__ import annotations

from typing import Any

import numpy
import pytest

from holdfast.errors import UsageError
from holdfast.model.signature import Signature, TensorSpec
from holdfast.serve.predict.columns import feeds, inputs
from holdfast.serve.predict.source import UnreadableRows
from holdfast.serve.protocol.tensors import unpack_bytes

OUT = (TensorSpec("y", "FP32", (-1,)),)


def signature(*specs: TensorSpec, batched: bool = True) -> Signature:
    return Signature(specs, OUT, batched)


def table(**columns: Any) -> dict[str, Any]:
    return {name: numpy.asarray(values) for name, values in columns.items()}


IMAGE = signature(TensorSpec("image", "FP32", (-1, 2, 2)))


@pytest.mark.parametrize(
    ("data", "told", "columns"),
    [
        (table(image=numpy.zeros((1, 2, 2)), other=[0]), (), ("image",)),
        (table(features=numpy.zeros((1, 1, 4)), label=[0]), (), ("features",)),
        (table(a=[1], b=[2], c=[3], d=[4.5]), (), ("a", "b", "c", "d")),
        (table(p0=[1], p1=[2], p2=[3], p3=[4], label=[5]), ("p*",), ("p0", "p1", "p2", "p3")),
        (table(a=[1], b=[2], c=[3], d=[4]), ("image=d,c", "b,a"), ("d", "c", "b", "a")),
    ],
)
def test_which_columns_are_the_only_input(
    data: dict[str, Any], told: tuple[str, ...], columns: tuple[str, ...]
) -> None:
    assert feeds(IMAGE, data, told)[0].columns == columns


@pytest.mark.parametrize(
    ("data", "told", "sentence"),
    [
        (table(a=[1], b=[2]), (), "takes 4 numbers, .* there are 2 columns"),
        (table(a=[1], b=[2], c=[3], d=[4], label=[5]), (), "there are 5 columns .* has a, b, c, d, label"),
        (table(x=numpy.zeros((1, 2, 2)), y=numpy.zeros((1, 2, 2))), (), "has no column"),
        (table(image=numpy.zeros((1, 3))), (), r"takes \[2, 2\], and image has \[3\]"),
        (table(a=[1]), ("b",), "there is no column 'b'. The data has a"),
        (table(a=[1]), ("x=a",), "there is no such input; there is image"),
    ],
)
def test_what_does_not_go_together(data: dict[str, Any], told: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        feeds(IMAGE, data, told)


def test_several_inputs_go_by_name() -> None:
    two = signature(TensorSpec("text", "BYTES", (-1,)), TensorSpec("n", "INT64", (-1,)))
    data = {"n": numpy.array([1.0, 2.0]), "text": numpy.array(["é", "b"], object), "more": numpy.zeros(2)}
    fed = feeds(two, data)
    text, number = inputs(fed, data, batched=True)
    assert unpack_bytes(text.data) == ["é".encode(), b"b"] and text.shape == (2,)
    assert numpy.frombuffer(number.data, "<i8").tolist() == [1, 2]
    with pytest.raises(UsageError, match="Input n of the model has no column"):
        feeds(two, {"text": data["text"]})
    with pytest.raises(UsageError, match="takes texts, and n has none"):
        feeds(two, data, ("text=n",))


def test_values_are_never_changed() -> None:
    one = signature(TensorSpec("x", "UINT8", (-1,)))
    fed = feeds(one, table(x=[1]))
    assert bytes(inputs(fed, table(x=[7.0, 255.0]), batched=True)[0].data) == b"\x07\xff"
    for values in ([256], [-1], [1.5], [float("nan")]):
        with pytest.raises(UnreadableRows, match="is no value of UINT8"):
            inputs(fed, table(x=values), batched=True)
    half = feeds(signature(TensorSpec("x", "FP16", (-1,))), table(x=[1]))
    assert numpy.isnan(numpy.frombuffer(inputs(half, table(x=[float("nan")]), batched=True)[0].data, "<f2")[0])
    with pytest.raises(UnreadableRows, match="is no value of FP16"):
        inputs(half, table(x=[1e9]), batched=True)


def test_lists_of_several_lengths_are_taken_one_by_one() -> None:
    words = signature(TensorSpec("words", "INT64", (-1, -1)))
    lists = numpy.empty(2, object)
    lists[:] = [[1, 2, 3], [4]]
    fed = feeds(words, {"words": lists})
    with pytest.raises(UnreadableRows, match="differ in length"):
        inputs(fed, {"words": lists}, batched=True)
    assert inputs(fed, {"words": lists[:1]}, batched=True)[0].shape == (1, 3)


def test_a_model_without_batches_has_no_first_dimension() -> None:
    one = signature(TensorSpec("x", "FP32", (2, 2)), batched=False)
    fed = feeds(one, table(a=[1], b=[2], c=[3], d=[4]))
    (given,) = inputs(fed, table(a=[1], b=[2], c=[3], d=[4]), batched=False)
    assert given.shape == (2, 2) and numpy.frombuffer(given.data, "<f4").tolist() == [1, 2, 3, 4]


def test_bf16_is_refused() -> None:
    with pytest.raises(UsageError, match="BF16, which no data set has"):
        feeds(signature(TensorSpec("x", "BF16", (-1,))), table(x=[1]))
