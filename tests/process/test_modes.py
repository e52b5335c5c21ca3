"""Ways of keeping step on real processes: what is promised in each mode holds, whoever is killed."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.process.harness import SCRIPTS, Launch, golden, until
from tests.process.six_epochs import go, slow, used_once
from tests.process.trail import AUDITED

pytestmark = [pytest.mark.process, pytest.mark.sharing]

COUNTING = SCRIPTS / "counting.py"
EPOCHS, STEPS, LANES, SAMPLES, BATCH = 4, 8, 4, 256, 32


def counted(run: Launch) -> tuple[float, float, list[float]]:
    """How often the push of a sample was applied: the least, the most; and in sum for each of the other parameters."""
    lines = {line.split()[0]: line.split()[1:] for line in run.out.splitlines()}
    return float(lines["lowest"][0]), float(lines["lowest"][2]), list(map(float, lines["more"]))


KEPT = ("turns", "rate", "weights ")
RAGGED = """
import torch, torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
import holdfast as hf

run = hf.join(lanes=4)
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
points = torch.randn(129, 8, generator=torch.Generator().manual_seed(1))
loader = DataLoader(TensorDataset(points, points.argmax(1) % 3), batch_size=32, shuffle=True)
model, optimizer, loader, scheduler = run.prepare(model, optimizer, loader, scheduler)
turns = 0
for epoch in run.epochs(6):
    for x, y in loader:
        turns += 1
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
print("turns", turns)
print("rate", scheduler.get_last_lr()[0])
print("weights", *model.weight.detach().flatten().tolist(), flush=True)
"""


# ---------------------------------------------------------------- shares


@pytest.mark.parametrize(
    ("model", "servers"),
    [("normed", 1), *(pytest.param("lenet", servers, marks=pytest.mark.chaos) for servers in (0, 1))],
)
def test_bounded_0_gives_the_bits_of_exact_where_each_worker_has_a_lane(
    tmp_path: Path, model: str, servers: int
) -> None:
    with Launch(
        tmp_path, model, "--workers", 2, "--servers", servers, "--sync", "bounded:0", args="--lanes 2"
    ) as run:  # fmt: skip
        assert run.end() == 0, run.err
    assert run.sha256 == golden(model, 2)
    run.trace.audit(samples=484, steps_of_epoch=16, epochs=3)


@pytest.mark.parametrize("model", ["normed", pytest.param("transformer", marks=pytest.mark.chaos)])
def test_bounded_0_gives_the_bits_of_a_plain_loop_in_exact_with_the_same_shares(tmp_path: Path, model: str) -> None:
    """Also where they are unequal: three workers have four lanes."""
    found = set()
    for sync in ("exact", "bounded:0"):
        options = ("--workers", 3, "--sync", sync, "--set", "crew.settle=10m")
        with Launch(tmp_path, model, *options, args="--plain", dir=sync) as run:
            assert run.end() == 0, run.err
        run.trace.audit(samples=484, steps_of_epoch=16, epochs=3)
        found.add(run.sha256)
    assert len(found) == 1


@pytest.mark.parametrize(
    ("mode", "workers"),
    [("bounded:0", 3), ("async", 2), *(pytest.param(m, 3, marks=pytest.mark.chaos) for m in ("bounded:2", "quorum:3"))],
)
def test_a_turn_is_a_step(tmp_path: Path, mode: str, workers: int) -> None:
    """What counts and schedules by turn means what it means on one machine; the last batch has samples for one lane."""
    (tmp_path / "ragged.py").write_text(RAGGED)
    told, weights = [], []
    for crew, sync in ((1, "exact"), (workers, mode)):
        with Launch(
            tmp_path, tmp_path / "ragged.py", "--workers", crew, "--sync", sync, "--set", "crew.settle=10m", dir=sync
        ) as run:  # fmt: skip
            assert run.end() == 0, run.err
        lines = dict(line.split(maxsplit=1) for line in run.out.splitlines() if line.startswith(KEPT))
        told.append((lines["turns"], lines["rate"], run.summary["samples"], run.summary["units"]))
        weights.append(list(map(float, lines["weights"].split())))
    assert told[0] == told[1] == ("30", told[0][1], 6 * 129, "worker")
    if mode == "bounded:0":
        assert weights[1] == pytest.approx(weights[0], rel=1e-4), "the same sums but for rounding"


@pytest.mark.chaos
def test_compensation_does_not_touch_pushes_that_are_not_stale(tmp_path: Path) -> None:
    compensate = ("--set", "staleness=compensate", "--set", "compensation=5")
    options = ("--workers", 2, "--servers", 1, "--sync", "bounded:0", *compensate)
    with Launch(tmp_path, "normed", *options, args="--lanes 2") as run:
        assert run.end() == 0, run.err
    assert run.sha256 == golden("normed", 2)


@pytest.mark.chaos
def test_bounded_0_uses_every_sample_once_though_workers_are_killed(tmp_path: Path) -> None:
    with Launch(
        tmp_path, "normed", "--workers", 2, "--servers", 1, "--sync", "bounded:0", *AUDITED,
        args=slow(tmp_path),
    ) as run:  # fmt: skip
        run.at_step(5)
        run.strike(run.crew_of(2)[0])
        run.at_step(9)
        run.strike(run.wait(lambda s: s["servers"], "a server")["servers"][0]["pid"])
        go(tmp_path)
        assert run.end() == 0, run.err
    used_once(run)


# ---------------------------------------------------------------- local steps


@pytest.mark.parametrize("model", ["normed", pytest.param("transformer", marks=pytest.mark.chaos)])
def test_local_steps_give_the_same_bits_for_every_crew(tmp_path: Path, model: str) -> None:
    """A round is a pure function, so it does not matter who makes it, or how often; 3 does not divide 16 steps."""
    hashes = set()
    for name, workers, servers in (("alone", 1, 0), ("several", 3, 1)):
        with Launch(tmp_path, model, "--workers", workers, "--servers", servers, "--sync", "local:3", dir=name) as run:
            assert run.end() == 0, run.err
        run.trace.audit(samples=484, steps_of_epoch=16, epochs=3)
        hashes.add(run.sha256)
    assert len(hashes) == 1


def test_whoever_has_nothing_in_the_last_step_of_a_pass_goes_on_with_the_right_rate(tmp_path: Path) -> None:
    """129 samples: the last batch has one, and most lanes none."""
    (tmp_path / "ragged.py").write_text(RAGGED)
    found = set()
    for workers in (1, 4):
        with Launch(
            tmp_path, tmp_path / "ragged.py", "--workers", workers, "--sync", "local:2", dir=f"{workers}"
        ) as run:
            assert run.end() == 0, run.err
        found.add((run.sha256, *(line for line in run.out.splitlines() if line.startswith("rate"))))
    assert len(found) == 1, found


@pytest.mark.chaos
@pytest.mark.parametrize("model", ["normed", "transformer"])
def test_local_steps_give_the_same_bits_though_workers_and_servers_are_killed(tmp_path: Path, model: str) -> None:
    """With a schedule of the learning rate, too: whoever takes a lane over has to go back in it."""
    options = ("--workers", 2, "--servers", 1, "--sync", "local:4")
    with Launch(tmp_path, model, *options, args=slow(tmp_path), dir="struck") as run:
        run.at_step(6)
        run.strike(run.crew_of(2)[1])
        run.at_step(12)
        run.strike(run.wait(lambda s: s["servers"], "a server")["servers"][0]["pid"])
        go(tmp_path)
        assert run.end() == 0, run.err
    with Launch(tmp_path, model, *options, args=slow(tmp_path), dir="calm") as calm:
        assert calm.end() == 0, calm.err
    assert (run.sha256, run.summary["samples"]) == (calm.sha256, 6 * 484)


# ---------------------------------------------------------------- asking for what cannot be


def test_a_loop_that_is_left_early(tmp_path: Path) -> None:
    script = tmp_path / "early.py"
    script.write_text((SCRIPTS / "counting.py").read_text().replace("options.began.touch()", "break"))
    with Launch(tmp_path, script, "--workers", 1, "--sync", "async", args=f"--began {tmp_path}/began") as run:
        assert run.end() != 0
    assert "A loop over the loader was left early, and with sync = async the lanes are at different steps" in run.err


def test_more_for_a_quorum_than_the_script_has_lanes(tmp_path: Path) -> None:
    with Launch(tmp_path, COUNTING, "--workers", 1, "--sync", "quorum:9", args=f"--began {tmp_path}/began") as run:
        assert run.end() != 0
    assert "sync = quorum:9: a quorum of 9 cannot come together: K is 1 to 4, the number of lanes" in run.err


def test_a_run_that_is_asked_to_end(tmp_path: Path) -> None:
    with Launch(
        tmp_path, COUNTING, "--workers", 2, "--servers", 1, "--sync", "bounded:2",
        args=f"--epochs 50 --pace 0.02 --began {tmp_path}/began",
    ) as run:  # fmt: skip
        until((tmp_path / "began").exists, lambda: f"the first unit\n{run.err}")
        run.wait(lambda s: s["step"] and s["step"] > 5, "some steps")
        shown = run.status()["staleness"]
        most = (2 * 2 + 1) * (LANES - 1)  # others make so many versions at most while a lane computes
        assert sum(shown) > 4 and len(shown) <= most + 1, "how stale pushes were, never more than the bound allows"
        run.send(signal.SIGTERM)
        run.end()
    assert run.summary["samples"] == run.summary["steps"] * BATCH, "all lanes have come as far"
    counts = run.summary["staleness"]
    assert len(counts) == run.summary["staleness_most"] + 1 <= most + 1
    assert sum(counts) == 2 * run.summary["steps"], "each push once, and one of a worker for both its lanes"
    assert run.summary["staleness_mean"] == sum(age * count for age, count in enumerate(counts)) / sum(counts)


def test_status_says_why_a_lane_is_held_back(tmp_path: Path) -> None:
    with Launch(
        tmp_path, "normed", "--workers", 2, "--servers", 1, "--sync", "bounded:1", "--set", "crew.settle=10m",
        args="--lanes 2 --epochs 40 --slow 1:0:1000:0.2",
    ) as run:  # fmt: skip
        why = "lane 0 is 2 pushes ahead of lane 1, and 1 is allowed"
        held = run.wait(lambda s: any(worker["why"] == why for worker in s["workers"]), "a lane that is held back")
        assert [worker["waits_for"] for worker in held["workers"] if worker["why"] == why] == [1]
        run.send(signal.SIGTERM)
        run.end()


# ---------------------------------------------------------------- exactly once: see test_exactly_once.py, too


def test_compensation_outlives_workers_and_servers(tmp_path: Path) -> None:
    """What a push was computed from must be there when it is applied, whoever is killed in between.

    With this factor a push takes the other parameters a quarter of the way back to what it was computed from, and then
    1 further. So they rise, and fall by no more than a few pushes can be late. If what a push was computed from were
    lost, that would be a quarter of all the way that they have come.
    """
    with Launch(
        tmp_path, COUNTING, "--workers", 2, "--servers", 1, "--sync", "async", "--set", "staleness=compensate",
        "--set", "compensation=0.0625",
        args=f"--epochs 8 --pace 0.01 --go {tmp_path}/go --began {tmp_path}/began --seen {tmp_path}/seen",
    ) as run:  # fmt: skip
        until((tmp_path / "began").exists, lambda: f"the first unit\n{run.err}")
        for step in (24, 40):
            status = run.wait(
                lambda s, step=step: s["step"] >= step and s["servers"] and s["servers"][0]["slices"], f"step {step}"
            )
            run.strike(status["servers"][0]["pid"])
            run.strike(run.crew_of(2)[1])
        go(tmp_path)
        assert run.end() == 0, run.err
    seen = [list(map(float, line.split())) for line in (tmp_path / "seen").read_text().splitlines()]
    highest = [0.0] * 4
    for values in seen:
        assert all(value > most - 12 for value, most in zip(values, highest, strict=True)), (values, highest)
        highest = [max(pair) for pair in zip(values, highest, strict=True)]
    assert min(highest) > 80, "so far that a quarter of it is much"
    assert (run.summary["steps"], run.summary["samples"]) == (8 * STEPS, 8 * SAMPLES)
    assert run.summary["workers_lost"] >= 3 and run.summary["staleness_most"] >= 1
    assert max(counted(run)[2]) < sum(run.summary["staleness"]), "of so many pushes, stale ones were compensated"


@pytest.mark.chaos
@pytest.mark.parametrize("mode", ["bounded:2", "async", "quorum:4"])
def test_a_push_that_is_not_finite_never_counts(tmp_path: Path, mode: str) -> None:
    with Launch(
        tmp_path, COUNTING, "--workers", 2, "--servers", 1, "--sync", mode, "--set", "staleness=plain",
        args=f"--epochs {EPOCHS} --began {tmp_path}/began --poison 9:2:{tmp_path}/once",
    ) as run:  # fmt: skip
        assert run.end() == 0, run.err
    assert "Step 9, lane 2: the gradient of weight is not finite" in run.err and run.summary["workers_lost"] == 1
    pushes = sum(run.summary["staleness"])
    lowest, highest, more = counted(run)
    assert (lowest, highest, *more) == pytest.approx((EPOCHS, EPOCHS, *[pushes] * 4)), run.err
