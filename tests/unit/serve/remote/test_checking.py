"""What another machine says of a batch, and what of it cannot be."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.signature import Signature, TensorSpec
from holdfast.serve.remote.checking import answer_problem, extent, loaded_problem, request_problem
from holdfast.serve.replica.messages import Compute, Computed, Loaded, Placed, Raised

SIGNATURE = Signature(
    (TensorSpec("x", "FP32", (-1, 4)),), (TensorSpec("y", "FP32", (-1, 2)), TensorSpec("text", "BYTES", (-1,)))
)
ASKED = Compute(7, (Placed(0, 48, (3, 4)),))
Y, TEXT = Placed(0, 24, (3, 2)), Placed(64, 15, (3,), (5, 10, 15))


def answer(y: Placed = Y, text: Placed = TEXT, number: int = 7) -> Computed:
    return Computed(number, 0.1, (y, text), (), 1)


def test_a_right_answer_is_right():
    assert answer_problem(answer(), ASKED, SIGNATURE, 79) == ""
    assert answer_problem(Raised(7, "ValueError", "no"), ASKED, SIGNATURE, 0) == ""
    assert extent(answer().outputs) == 79


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (answer(number=8), "it answers batch 8, and that to batch 7 is due"),
        (Computed(7, 0.1, (Y,), (), 1), "it gives 1 outputs, and its signature has 2"),
        (answer(Placed(0, 24, (2, 3))), r"output y has the shape \[2, 3\]"),
        (answer(Placed(0, 16, (2, 2))), "output y has 2 items, and the batch has 3"),
        (answer(Placed(0, 20, (3, 2))), "output y has 20 bytes, and its shape takes 24"),
        (answer(Placed(60, 24, (3, 2))), "output y is said to lie at 60 to 84, of 79 bytes"),
        (answer(Placed(-8, 24, (3, 2))), "output y is said to lie at -8"),
        (answer(text=Placed(64, 15, (3,))), "output text does not say where its items end"),
        (answer(text=Placed(64, 15, (3,), (5, 15))), "output text does not say where its items end"),
        (answer(text=Placed(64, 15, (3,), (5, 10, 99))), "output text does not say where its items end"),
        (answer(text=Placed(64, 15, (3,), (10, 5, 15))), "output text has items that end before they begin"),
    ],
)
def test_what_cannot_be_is_named(given, told):
    problem = answer_problem(given, ASKED, SIGNATURE, 79)
    assert re.search(told, problem), problem


def test_an_answer_that_nobody_has_asked_for():
    assert answer_problem(answer(), None, SIGNATURE, 79) == "it answers batch 7, and none is due"


def test_a_request_lies_within_what_has_come():
    assert request_problem(ASKED, 48) == ""
    assert request_problem(ASKED, 47) == "an input is said to lie at 0 to 48, of 47 bytes"


@pytest.mark.parametrize("measured", [(0, 1.0), (1, -1.0), (1, math.nan), (1, math.inf)])
def test_measurements_that_cannot_be(measured):
    assert loaded_problem(Loaded((measured,), 1)) != ""
    assert loaded_problem(Loaded(((1, 0.5),), 1)) == ""


NUMBERS = st.integers(-5, 100)
PLACED = st.builds(Placed, NUMBERS, NUMBERS, st.lists(NUMBERS, max_size=3).map(tuple),
                   st.lists(NUMBERS, max_size=4).map(tuple))  # fmt: skip


@given(st.lists(PLACED, max_size=3).map(tuple), NUMBERS)
def test_what_passes_can_be_taken_apart(outputs, size):
    """For each item there are bytes, and all of them lie within what has come."""
    given = Computed(7, 0.1, outputs, (), 1)
    if answer_problem(given, ASKED, SIGNATURE, size) == "":
        y, text = outputs
        assert y.size == 24 and y.shape == (3, 2) and text.shape == (3,)
        assert all(one.begin >= 0 and one.begin + one.size <= size for one in outputs)
        assert len(text.ends) in (0, 3) and all(0 <= end <= text.size for end in text.ends)
