"""How a run ended: what the summary says of how stale pushes were, and what is said of a failure."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.cli.launch.ending import Ending, WentOnFrom, last_line, present, summary
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


# ------------------------------------------------------------ several trainings

FIRST = {"steps": 8, "samples": 64, "weights_sha256": "ab", "loss": 0.5, "lanes": 4, "seed": 0}


def test_each_training_of_a_script() -> None:
    """At the top is what there is to say of the last one, and of the run as a whole."""
    last = {**FIRST, "weights_sha256": "cd", "seed": 1}
    ending = Ending(EndRun("the script has ended", last), lost=3, trained=2.0, training=2, trainings=[FIRST])
    found = summary(ending, RECORD, 9.0)
    assert [(one["weights_sha256"], one["seed"]) for one in found["trainings"]] == [("ab", 0), ("cd", 1)]
    assert found["weights_sha256"] == "cd" and found["seconds"] == 9.0 and found["samples_per_second"] == 32.0
    assert last_line(found, ending, "runs/x").startswith("done: 2 trainings, 8 steps in the last one, all in 9.0 s, 32")
    failed = summary(Ending(FailRun("Hang", "x"), training=2, trainings=[FIRST]), RECORD, 1.0)
    assert [one["weights_sha256"] for one in failed["trainings"]] == ["ab"]


def test_samples_of_a_training_before_the_one_that_went_on_do_not_count() -> None:
    ending = Ending(EndRun("the script has ended", FIRST), trained=2.0, resumed=WentOnFrom(4, 32, "step-4", 2))
    ending.training = 2
    assert summary(ending, RECORD, 9.0)["samples_per_second"] == 16.0
    ending.training = 3
    assert summary(ending, RECORD, 9.0)["samples_per_second"] == 32.0


@pytest.mark.parametrize(
    ("end", "signal", "goes_on"),
    [(EndRun("x", {}, again=[{}]), 0, True), (EndRun("x", {}, again=[{}]), 2, False), (EndRun("x", {}), 0, False),
     (FailRun("Hang", "x"), 0, False)],
)  # fmt: skip
def test_whether_another_training_follows(end: EndRun | FailRun, signal: int, goes_on: bool) -> None:
    assert Ending(end, signal).goes_on is goes_on


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
