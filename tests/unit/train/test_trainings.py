"""Which of its script's trainings a worker is at, and what it says when it comes to another one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.ended_trainings import TrainingEnd, keep
from holdfast.config.worker_spec import WorkerSpec
from holdfast.control.protocol.messages import Finished
from holdfast.errors import NotKept, UsageError
from holdfast.train.control_link import LetGo
from holdfast.train.trainings import Trainings
from tests.unit.checkpoint.contents import content

RESULT = {"steps": 8, "samples": 64, "weights_sha256": "ab"}


class FakeLink:
    """Takes what a worker says."""

    generation = 3

    def __init__(self) -> None:
        self.said: list[Finished] = []
        self.send = self.said.append

    def leave(self, reason: str) -> None:
        raise LetGo(reason)


def trainings(training: int = 0, directory: Path | str = "", **more: Any) -> tuple[Trainings, FakeLink]:
    link = FakeLink()
    made = Trainings(WorkerSpec(5, 0, "s.py", (), str(directory), training=training, **more), link)  # type: ignore[arg-type]
    return made, link


def test_another_training_is_left_to_other_workers() -> None:
    ours, link = trainings()
    assert ours.begin() is None
    ours.close(RESULT, begun=True)
    with pytest.raises(LetGo, match="another training follows"):
        ours.begin()
    (said,) = link.said
    assert (said.worker, said.generation, said.result) == (5, 3, {"joined": True, **RESULT})
    assert said.again is not None


def test_what_a_function_returns_is_told_as_it_was_at_the_end_of_the_training() -> None:
    ours, link = trainings()
    ours.begin()

    def fold() -> float:
        best = 0.5
        ours.close(RESULT, begun=True)
        return best

    scores = [fold() for _ in range(1)]
    with pytest.raises(LetGo):
        ours.begin()
    told = link.said[0].again
    assert told is not None and told["best"] == "0.5" and told["scores"] == "[0.5]"
    assert scores == [0.5]


def test_what_is_over_is_gone_through_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    keep(tmp_path, 1, content(8), TrainingEnd(RESULT, []))
    ours, link = trainings(1, tmp_path)
    try:
        past = ours.begin()
        assert past is not None and past.number == 1
        os.write(1, b"said before\n")
        ours.close(RESULT, begun=True)
        assert ours.begin() is None and link.said == []
        os.write(1, b"said now\n")
        ours.close({"steps": 9}, begun=True)
    finally:
        ours.unmute()
    assert ours.result == {"steps": 9} and capfd.readouterr().out == "said now\n"


def test_a_run_that_has_begun_nothing_is_no_training(tmp_path: Path) -> None:
    keep(tmp_path, 1, content(8), TrainingEnd(RESULT, []))
    ours, _ = trainings(1, tmp_path)
    try:
        for _ in range(2):
            assert ours.begin() is not None
            ours.close({"steps": 0}, begun=False)
        assert ours.begin() is not None
    finally:
        ours.unmute()


def test_one_that_ends_otherwise_than_it_did(tmp_path: Path) -> None:
    keep(tmp_path, 1, content(8), TrainingEnd(RESULT, []))
    ours, _ = trainings(1, tmp_path)
    try:
        ours.begin()
        with pytest.raises(NotKept, match="without its steps, it ends with weights_sha256 = cd, and ended with ab"):
            ours.close({**RESULT, "weights_sha256": "cd"}, begun=True)
    finally:
        ours.unmute()


@pytest.mark.parametrize("closed", [0, 1])
def test_a_script_that_does_not_come_to_the_training_at_hand(tmp_path: Path, closed: int) -> None:
    keep(tmp_path, 1, content(8), TrainingEnd(RESULT, []))
    ours, _ = trainings(1, tmp_path)
    try:
        ours.begin()
        for _ in range(closed):
            ours.close(RESULT, begun=True)
        with pytest.raises(NotKept, match="the script comes to its end before training 2, which others had begun"):
            ours.check_come()
    finally:
        ours.unmute()


@pytest.mark.parametrize(
    ("single", "result", "stored", "why"),
    [
        ("it is so", RESULT, False, "it is so"), ("", None, False, "a training was left by an exception"),
        ("", RESULT, True, "the script uses run.store"),
    ],
)  # fmt: skip
def test_where_there_cannot_be_another_one(single: str, result: Any, stored: bool, why: str) -> None:
    ours, link = trainings(single=single)
    ours.begin()
    if stored:  # in a run of its own, say
        ours.note_store()
    ours.close(result, begun=True)
    with pytest.raises(UsageError, match=rf"and here a run can be one training only: {why}.*\. Start one run for each"):
        ours.begin()
    assert link.said == []
