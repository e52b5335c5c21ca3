"""How a run ended: what the summary says of how stale pushes were, and what is said of a failure."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.cli.launch.ending import Ending, present, summary
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


# ------------------------------------------------------------ a failure

TRACE = """Traceback (most recent call last):
  File "/usr/lib/python3.11/runpy.py", line 1, in run_path
    code()
  File "/home/me/train.py", line 41, in <module>
    main()
  File "/home/me/train.py", line 30, in main
    loss = model(x)
  File "/home/me/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1739, in _call_impl
    return self._call_impl(*args, **kwargs)
ValueError: bad sample
"""


def test_culprit_first_and_the_users_lines_only() -> None:
    assert present("ScriptFailed", "worker 1 failed with ValueError; workers 0, 2-7 the same.", TRACE, "runs/x") == (
        "holdfast: worker 1 failed with ValueError; workers 0, 2-7 the same.\n"
        "  /home/me/train.py:41 in <module>: main()\n"
        "  /home/me/train.py:30 in main: loss = model(x)\n"
        "full trace: runs/x/failure.txt   output: runs/x/logs/"
    )


def test_never_15_lines() -> None:
    message = "\n".join(f"worker {n} failed differently" for n in range(50))
    told = present("ScriptFailed", message, TRACE * 5, "runs/x").splitlines()
    assert len(told) == 14
    assert told[0] == "holdfast: worker 0 failed differently"
    assert "... and 42 more lines" in told


def test_a_hang_names_its_stacks() -> None:
    assert "stacks: runs/x/hang-*.txt" in present("Hang", "worker 0 made no progress", "", "runs/x")


def test_without_a_trace_there_is_no_path_to_one() -> None:
    assert present("ConfigError", "lanes = 0", "", "runs/x") == "holdfast: lanes = 0"
