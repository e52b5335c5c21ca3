"""Quantities: parse, print, compare, refuse."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import UsageError
from holdfast.quantities import Duration, Size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30.0), ("1.5m", 90.0), ("200ms", 0.2), ("2h", 7200.0), ("1d", 86400.0), (" 5 us ", 5e-6), ("0s", 0.0)],
)
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert Duration(text).seconds == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [("64MiB", 64 * 2**20), ("1.5KiB", 1536), ("2GB", 2 * 10**9), ("512B", 512), ("64mib", 64 * 2**20), ("0B", 0)],
)
def test_a_size_is_read(text: str, size: int) -> None:
    assert Size(text).bytes == size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(30, "30s"), (90, "1.5m"), (0.2, "200ms"), (7200, "2h"), (0, "0s"), (1e-6, "1us"), (100, "100s")],
)
def test_a_duration_is_printed_in_the_largest_unit_that_is_exact(seconds: float, text: str) -> None:
    assert str(Duration(seconds)) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(64 * 2**20, "64MiB"), (1536, "1.5KiB"), (10**8, "100MB"), (0, "0B"), (123456789, "123456789B")],
)
def test_a_size_is_printed_in_a_unit_that_is_exact(size: int, text: str) -> None:
    assert str(Size(size)) == text


@given(st.floats(min_value=0, max_value=1e15, allow_nan=False))
def test_what_a_duration_prints_it_reads(seconds: float) -> None:
    assert Duration(str(Duration(seconds))) == Duration(seconds)


@given(st.integers(min_value=0, max_value=2**63))
def test_what_a_size_prints_it_reads(size: int) -> None:
    assert Size(str(Size(size))) == Size(size)


def test_quantities_compare_hash_and_travel() -> None:
    assert Duration("30s") < Duration("1m") == Duration("60s")
    assert Size("1MB") < Size("1MiB")
    assert len({Duration("60s"), Duration("1m")}) == 1
    assert pickle.loads(pickle.dumps(Size("64MiB"))) == Size("64MiB")
    with pytest.raises(AttributeError):
        Duration("1s").seconds = 2.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("30", "'30' is not a duration: the unit is missing. Write 30s, 1.5m or 200ms."),
        ("30 years", "'30 years' is not a duration: unknown unit 'years'. Units are d, h, m, s, ms, us."),
        ("soon", "'soon' is not a duration. Write a number and a unit, such as 30s, 1.5m or 200ms."),
        ("-1s", "'-1s' is not a duration: it must be finite and 0 or more. Write 30s or 1.5m."),
        ("", "'' is not a duration. Write a number and a unit, such as 30s, 1.5m or 200ms."),
    ],
)
def test_a_bad_duration_is_refused_with_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        Duration(text)
    assert str(refused.value) == sentence


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.5, "1e999s"])
def test_a_duration_is_finite_and_not_negative(value: float | str) -> None:
    with pytest.raises(UsageError, match="finite"):
        Duration(value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("64", "'64' is not a size: the unit is missing. Write 64MiB, 1.5GB or 512B."),
        ("64M", "'64M' is not a size: unknown unit 'M'. Units are TiB, GiB, MiB, KiB, TB, GB, MB, KB, B."),
        ("0.3B", "'0.3B' is not a size: it must be a whole number of bytes, 0 or more. Write 64MiB."),
        ("-1MiB", "'-1MiB' is not a size: it must be a whole number of bytes, 0 or more. Write 64MiB."),
    ],
)
def test_a_bad_size_is_refused_with_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        Size(text)
    assert str(refused.value) == sentence
