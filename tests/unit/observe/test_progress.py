"""The line that shows how far a run is."""

from __future__ import annotations

from holdfast.dataplane.memory.board_snapshot import BoardPlan
from holdfast.observe.meter import Meter, RunView
from holdfast.observe.progress import line
from tests.unit.observe.rows import row


def test_the_line_names_the_worst_waiters_of_a_large_crew() -> None:
    text = line(RunView(step=1, waits={worker: worker / 100 for worker in range(20)}))
    assert text == "step 1  wait w12 12% w13 13% w14 14% w15 15% w16 16% w17 17% w18 18% w19 19% and 12 less"


def test_a_narrow_line_leaves_out_the_lesser_things() -> None:
    view = RunView(step=300, total_steps=938, epochs=3, losses=(2.0, 1.0), waits={0: 0.5, 1: 0.25}, eta=21)
    whole = "step 300/938  epoch 1/3  loss 1 █▁  wait w0 50% w1 25%  eta 0:21"
    assert line(view) == line(view, len(whole)) == whole
    assert line(view, len(whole) - 1) == "step 300/938  epoch 1/3  loss 1  wait w0 50% w1 25%  eta 0:21"
    assert line(view, 60) == "step 300/938  epoch 1/3  loss 1  wait w0 50%  eta 0:21"
    assert line(view, 9) == "step 300/"


def test_the_line_shows_no_waits_of_servers() -> None:
    """They wait most of their time, and that is as it should be."""
    meter = Meter()
    for now, units in ((0.0, 0), (1.0, 4)):
        rows = [
            row(0, units=units, samples=8 * units, busy_seconds=now, step=units),
            row(1, owned=3, wait_seconds=now, step=units),
        ]  # fmt: skip
        view = meter.update(rows, BoardPlan(0, 0, 0), now)
    assert view.waits[1] == 1.0 and view.idle == {1}
    assert line(view) == "step 4  loss 0  32 samples/s  wait w0 0%"
