"""What becomes of stale pushes, by what was asked for."""

from __future__ import annotations

import pytest

from holdfast.core.sync.modes import parse
from holdfast.core.sync.staleness import Staleness, treatment


@pytest.mark.parametrize(
    ("asked", "mode", "found"),
    [
        ("auto", "async", "scale"),
        ("auto", "bounded:4", "scale"),
        ("auto", "quorum:3", "plain"),
        ("auto", "exact", "plain"),
        ("auto", "local:8", "plain"),
        ("plain", "async", "plain"),
        ("scale", "quorum:3", "scale"),
        ("compensate", "async", "compensate"),
        ("compensate", "bounded:2", "compensate"),
        ("compensate", "quorum:2", "compensate"),
    ],
)
def test_treatments(asked: str, mode: str, found: str) -> None:
    assert treatment(asked, parse(mode), 0.5) == Staleness(found, 0.5)


def test_only_scaling_gives_stale_pushes_less_weight() -> None:
    assert [Staleness("scale").weight(age) for age in (0.0, 0.5, 1.5, 4.5)] == [1.0, 0.5, 0.25, 0.1]
    for plain in (Staleness("plain"), Staleness("compensate", 0.04)):
        assert [plain.weight(age) for age in (0, 1, 30)] == [1.0] * 3
    assert [Staleness(name).compensates for name in ("plain", "scale", "compensate")] == [False, False, True]


@pytest.mark.parametrize("mode", ["exact", "local:4"])
@pytest.mark.parametrize("asked", ["scale", "compensate"])
def test_where_nothing_is_stale_there_is_nothing_to_treat(asked: str, mode: str) -> None:
    with pytest.raises(ValueError, match=f"^nothing is stale with sync = {mode}$"):
        treatment(asked, parse(mode))


def test_what_is_no_treatment() -> None:
    with pytest.raises(ValueError, match=r"^unknown; there is auto, plain, scale, compensate$"):
        treatment("drop", parse("async"))
