"""What the summary says of how stale pushes were, whoever has counted them."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.cli.launch.ending import Ending, summary
from holdfast.control.protocol.commands import EndRun, FailRun
from holdfast.dataplane.relaxed.ages import Ages
from holdfast.observe.meter import RunView

RECORD = {"host": "here", "started": "now", "config": {"lanes": 4, "seed": 0, "threads": 1}}
SEEN = RunView(ages=Ages((3, 1), 1, 1))
MORE: dict[str, Any] = {"staleness": [3, 2], "staleness_mean": 0.4, "staleness_most": 1}


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (FailRun("NonFinite", "the loss is nan"), SEEN.ages.facts()),
        (EndRun("the script has ended", {"steps": 7, **MORE}), MORE),
        (EndRun("the script has ended", {"steps": 7}), SEEN.ages.facts()),
    ],
)
def test_staleness_as_far_as_anybody_has_seen_it(end: EndRun | FailRun, told: dict[str, Any]) -> None:
    """The launcher looks now and then; what a worker says at the end is newer, but the machine may be another one."""
    found = summary(Ending(end, view=SEEN), RECORD, 1.0)
    assert {name: value for name, value in found.items() if name.startswith("staleness")} == told


def test_nothing_of_it_in_a_run_without_pushes() -> None:
    assert not any(name.startswith("staleness") for name in summary(Ending(FailRun("Hang", "x")), RECORD, 1.0))
