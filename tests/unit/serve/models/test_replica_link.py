"""Batches on their way to a replica and back: the door's end, the replica's loop, and the memory between them."""

import threading
from collections.abc import Iterator

import numpy
import pytest

from holdfast.model.loading import LoadedModel
from holdfast.model.manifest import ModelManifest
from holdfast.model.signature import Signature, TensorSpec
from holdfast.serve.models.replica_link import ReplicaLink
from holdfast.serve.protocol.requests import InferInput
from holdfast.serve.replica import messages as say
from holdfast.serve.replica.process import _Replica, _resident
from holdfast.transport.link import Link
from tests.unit.transport.lines import nothing_left


class Pair:
    """The door's end, and a replica that computes with a function of ours in a thread."""

    def __init__(self, signature: Signature, compute, *, finite: bool = True) -> None:
        ours, theirs = Link.pair()
        manifest = ModelManifest(
            name="m", version=1, kind="python", platform="python", signature=signature, files={}, created=0.0,
            finite=finite,
        )  # fmt: skip
        self.replica = _Replica(theirs)
        self.replica._model = LoadedModel(manifest, compute)
        self.door = ReplicaLink(ours, signature.inputs, signature.outputs, batched=signature.batched)
        self._theirs = theirs
        self._thread = threading.Thread(target=self.replica.serve)
        self._thread.start()

    def ask(self, *requests: list[InferInput]) -> list[list]:
        """The outputs of each request."""
        assert self.door.compute(requests)
        heard = self.door.hear()
        assert isinstance(heard, say.Computed), heard
        return self.door.answers(heard, requests, [request[0].shape[0] for request in requests])

    def close(self) -> None:
        self.door.close()
        self._thread.join(10)
        assert not self._thread.is_alive()
        self._theirs.close()


@pytest.fixture
def pair() -> Iterator:
    made = []

    def make(*args, **more) -> Pair:
        made.append(Pair(*args, **more))
        return made[-1]

    _resident()  # it opens a file once for the process
    with nothing_left():
        yield make
        for one in made:
            one.close()
            one.replica._outputs.close()
            one.replica._inputs.close()
            one.replica._model = None  # what it has kept of a batch keeps that batch's memory


def floats(name, array) -> InferInput:
    array = numpy.asarray(array, "<f4")
    return InferInput(name, "FP32", array.shape, array.tobytes())


def array(output) -> numpy.ndarray:
    return numpy.frombuffer(output.data, "<f4").reshape(output.shape)


TWICE = Signature((TensorSpec("x", "FP32", (-1, 3)),), (TensorSpec("y", "FP32", (-1, 3)),))


def test_requests_of_several_sizes_are_one_batch_and_get_their_own_items_back(pair):
    seen = []

    def compute(inputs):
        seen.append(inputs["x"].shape)
        return {"y": 2 * inputs["x"]}

    rows = [numpy.arange(3 * n, dtype="f4").reshape(n, 3) + 10 * n for n in (1, 4, 2)]
    answers = pair(TWICE, compute).ask(*[[floats("x", row)] for row in rows])
    assert seen == [(7, 3)]
    for row, (output,) in zip(rows, answers, strict=True):
        assert (output.name, output.datatype) == ("y", "FP32")
        numpy.testing.assert_array_equal(array(output), 2 * row)


def test_memory_grows_with_batches_and_is_used_again(pair):
    joined = pair(TWICE, lambda inputs: {"y": inputs["x"] + 1})
    for rows in (1, 20_000, 5, 60_000, 3):
        data = numpy.random.default_rng(rows).random((rows, 3), "f4")
        ((output,),) = joined.ask([floats("x", data)])
        numpy.testing.assert_array_equal(array(output), data + 1)


def test_an_input_that_a_model_has_kept_does_not_stop_the_next_batch(pair):
    kept = []

    def compute(inputs):
        kept.append(inputs["x"])
        assert not inputs["x"].flags.writeable
        return {"y": inputs["x"]}

    joined = pair(TWICE, compute)
    for rows in (1, 30_000, 2):
        joined.ask([floats("x", numpy.ones((rows, 3), "f4"))])
    assert [one.shape for one in kept] == [(1, 3), (30_000, 3), (2, 3)]
    kept.clear()


def test_strings_differ_in_length_and_each_request_gets_its_own(pair):
    signature = Signature((TensorSpec("t", "BYTES", (-1,)),), (TensorSpec("u", "BYTES", (-1, 2)),))

    def raw(*texts: bytes) -> bytes:
        return b"".join(len(text).to_bytes(4, "little") + text for text in texts)

    def compute(inputs):
        return {"u": numpy.array([[text.upper(), b"!" * len(text)] for text in inputs["t"]], object)}

    answers = pair(signature, compute).ask(
        [InferInput("t", "BYTES", (2,), raw(b"a", b"bcd"))], [InferInput("t", "BYTES", (1,), raw(b""))],
        [InferInput("t", "BYTES", (1,), raw("ä".encode()))],
    )  # fmt: skip
    assert [outputs[0].data for outputs in answers] == [
        raw(b"A", b"!", b"BCD", b"!!!"), raw(b"", b""), raw("ä".encode().upper(), b"!!"),
    ]  # fmt: skip
    assert [outputs[0].shape for outputs in answers] == [(2, 2), (1, 2), (1, 2)]


def test_padded_items_of_several_lengths_are_one_batch_and_answers_have_their_own_length(pair):
    signature = Signature(
        (TensorSpec("x", "FP32", (-1, -1, 2), padding=-1.0),),
        (TensorSpec("each", "FP32", (-1, -1)), TensorSpec("sum", "FP32", (-1,))),
    )

    def compute(inputs):
        x = inputs["x"]
        return {"each": x.sum(2), "sum": (x * (x != -1)).sum((1, 2))}

    rows = [numpy.full((1, 2, 2), 1.0), numpy.full((2, 5, 2), 2.0), numpy.full((1, 1, 2), 3.0)]
    answers = pair(signature, compute).ask(*[[floats("x", row)] for row in rows])
    assert [outputs[0].shape for outputs in answers] == [(1, 2), (2, 5), (1, 1)]
    assert [array(outputs[1]).tolist() for outputs in answers] == [[4.0], [20.0, 20.0], [6.0]]
    numpy.testing.assert_array_equal(array(answers[1][0]), numpy.full((2, 5), 4.0))


def test_items_whose_values_are_not_finite_are_named(pair):
    joined = pair(TWICE, lambda inputs: {"y": inputs["x"] * numpy.float32(3e38)})
    joined.door.compute([[floats("x", [[1, 1, 1]])], [floats("x", [[1, numpy.nan, 1], [1, 1, 1]])]])
    assert joined.door.hear().not_finite == (1,)


@pytest.mark.parametrize(
    ("compute", "message"),
    [
        (lambda inputs: {"z": inputs["x"]}, "the model gave no output y: it gave z"),
        (lambda inputs: {"y": inputs["x"].astype("f8")}, "output y is float64, and its signature says FP32"),
        (
            lambda inputs: {"y": inputs["x"][:, :2].copy()},
            "output y has the shape [2, 2], and its signature says [-1, 3]",
        ),
        (lambda inputs: {"y": inputs["x"][:1]}, "output y has 1 items, and the batch has 2"),
    ],
)
def test_what_is_not_as_the_signature_says_is_an_error(pair, compute, message):
    joined = pair(TWICE, compute)
    joined.door.compute([[floats("x", numpy.ones((2, 3)))]])
    heard = joined.door.hear()
    assert isinstance(heard, say.Raised)
    assert (heard.kind, heard.message) == ("ValueError", message)


def test_a_model_that_raises_goes_on(pair):
    def compute(inputs):
        if inputs["x"][0, 0] < 0:
            raise KeyError("negative")
        return {"y": inputs["x"]}

    joined = pair(TWICE, compute)
    joined.door.compute([[floats("x", [[-1, 0, 0]])]])
    assert joined.door.hear().kind == "KeyError"
    assert array(joined.ask([floats("x", [[1, 2, 3]])])[0][0]).tolist() == [[1, 2, 3]]
