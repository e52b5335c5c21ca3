"""Where there may be only one worker, more are refused."""

from __future__ import annotations

import pytest

from holdfast.control.membership.roster import CrewLimits
from holdfast.control.protocol.events import ScaleRequested
from holdfast.errors import ConfigError
from tests.unit.control.driven import Driven

WHY = "several workers share memory in an order that aarch64 does not promise (x86-64 does)"


def test_more_than_one_worker_is_refused_where_there_may_be_only_one() -> None:
    with pytest.raises(ConfigError) as refused:
        CrewLimits(lanes=4, workers=2, alone=WHY)
    assert str(refused.value) == f"workers = 2: {WHY} (set by default). Use --workers 1."


def test_scaling_up_is_refused_there() -> None:
    run = Driven(workers=1, alone=WHY).begun()
    assert run(ScaleRequested(2)) == []
    assert f"2 workers were asked for, but {WHY}: still 1" in run.machine.story.tail(1)
