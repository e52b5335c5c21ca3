"""`hf.join()` in ranks that another launcher has started: the same weights as under plain python, and the same calm."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.process.harness import TRAIN, golden, until
from tests.process.ranks import Ranks, free_port

pytestmark = [pytest.mark.process, pytest.mark.sharing]

RELAXED = ("--epochs", 6, "--pace", 0.01)


def weights() -> str:
    return golden("normed", 4, "--epochs", "6")


# ---------------------------------------------------------------- torchrun


def test_torchrun_gives_the_weights_of_plain_python(tmp_path: Path) -> None:
    with Ranks(tmp_path, "normed") as ranks:
        ranks.torchrun("--standalone", "--nproc-per-node", 2)
        assert ranks.ends() == [0], ranks.all_said
        ranks.trace.audit(samples=484, steps_of_epoch=16, epochs=3)
        assert ranks.trace.tries == len(ranks.trace.units), "a unit was computed twice without need"
    assert ranks.sha256 == golden("normed", 4)
    assert f"weights_sha256 {ranks.sha256}" in ranks.said(), "the script sees other weights than the summary"
    summary = ranks.summary
    assert summary["outcome"] == "ok" and summary["steps"] == 48 and summary["workers_lost"] == 0
    assert summary["config"]["workers"] == 2 and summary["config"]["lanes"] == 4 and summary["config"]["seed"] == 7
    assert ranks.story[1].startswith("the run starts with 2 of 4 possible workers")


@pytest.mark.chaos
def test_torchrun_on_two_nodes(tmp_path: Path) -> None:
    with Ranks(tmp_path, "normed") as ranks:
        place = f"localhost:{free_port()}"
        for _ in range(2):
            ranks.torchrun(
                "--nnodes", 2, "--nproc-per-node", 1, "--rdzv-backend", "c10d", "--rdzv-endpoint", place,
                "--rdzv-id", "job",
            )  # fmt: skip
        assert ranks.ends() == [0, 0], ranks.all_said
    assert ranks.sha256 == golden("normed", 4)
    assert ranks.summary["config"]["hosts"] == 2
    assert any(re.search(r"host 1 \(.*\) joined with 1 slot: worker 1 starts on host 1", line) for line in ranks.story)
    assert not list(ranks.dir.glob("token")), "nobody else is invited"


@pytest.mark.chaos
def test_torchrun_starts_its_ranks_anew(tmp_path: Path) -> None:
    """A rank that is killed ends all of them, as torchrun does it; the restart is a run of its own."""
    script = tmp_path / "once.py"
    script.write_text(
        "import os, runpy, signal, sys, threading, time\n"
        f"trace, train = {str(tmp_path / 'trace')!r}, {str(TRAIN)!r}\n"
        "def strike():\n"
        "    while not os.path.exists(trace) or b'\\n5 ' not in open(trace, 'rb').read():\n"
        "        time.sleep(0.01)\n"
        "    os.unlink(trace)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and os.environ['RANK'] == '1':\n"
        "    threading.Thread(target=strike, daemon=True).start()\n"
        "sys.argv = [train, 'normed', '--pace', '0.02', '--trace', trace]\n"
        "runpy.run_path(train, run_name='__main__')\n"
    )
    with Ranks(tmp_path, script) as ranks:
        ranks.torchrun("--standalone", "--nproc-per-node", 2, "--max-restarts", 1)
        assert ranks.ends() == [0], ranks.all_said
        first, ranks.dir = ranks.dir, ranks.dir.with_name("run-2")
        assert "worker 1 lost (signal 9)" in (first / "story.jsonl").read_text()
    assert ranks.sha256 == golden("normed", 4) and ranks.summary["workers_lost"] == 0


# ---------------------------------------------------------------- any launcher


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.chaos)])
def test_a_rank_is_killed_and_the_others_go_on_without_it(tmp_path: Path, victim: int) -> None:
    with Ranks(tmp_path, "normed", *RELAXED) as ranks:
        ranks.plain(3)
        ranks.at_step(30)
        ranks.kill(victim)
        ends = ranks.ends()
        assert ends == [-9 if number == victim else 0 for number in range(3)], ranks.all_said
        ranks.trace.audit(samples=484, steps_of_epoch=16, epochs=6)
    assert ranks.sha256 == weights()
    assert ranks.summary["workers_lost"] == 1 and ranks.summary["generations"] == 2
    assert any(f"worker {victim} lost (signal 9)" in line for line in ranks.story)
    lead = 0 if victim else 1
    assert f"weights_sha256 {ranks.sha256}" in ranks.said(lead)


@pytest.mark.chaos
def test_a_whole_node_is_killed(tmp_path: Path) -> None:
    with Ranks(tmp_path, "normed", *RELAXED) as ranks:
        ranks.plain(2, GROUP_RANK="{rank}")  # two nodes, as a launcher would say
        ranks.at_step(30)
        assert len(ranks.helpers()) == 2
        ranks.kill(1)
        assert ranks.ends() == [0, -9], ranks.all_said
    assert ranks.sha256 == weights() and ranks.summary["workers_lost"] == 1
    assert any("host 1 lost" in line or "host 1 is let go" in line for line in ranks.story), ranks.story


@pytest.mark.chaos
def test_sigterm_to_one_rank_is_a_leave_and_to_all_an_early_end(tmp_path: Path) -> None:
    with Ranks(tmp_path, "normed", "--epochs", 6, "--pace", 0.06) as ranks:
        ranks.plain(3)
        ranks.at_step(20)
        ranks.kill(1, signal.SIGTERM)
        until(lambda: any("worker 1 is to leave (SIGTERM)" in line for line in ranks.story), "a leave")
        assert ranks.processes[1].wait(20) == 0
        assert ranks.trace.read().step < 80, "too fast for this test"
        for number in (0, 2):
            ranks.kill(number, signal.SIGTERM)
        assert ranks.ends() == [0, 0, 0], ranks.all_said
        assert ranks.trace.tries == len(ranks.trace.units), "who leaves ends its unit first"
    assert ranks.summary["outcome"] == "stopped" and ranks.summary["workers_lost"] == 0
    assert f"weights_sha256 {ranks.sha256}" in ranks.said(0), "the script did not come to its end"


@pytest.mark.chaos
def test_a_script_that_raises_in_one_rank_fails_everywhere_and_says_so_once(tmp_path: Path) -> None:
    script = tmp_path / "bad.py"
    script.write_text(
        "import os, torch, holdfast as hf\n"
        "run = hf.join(lanes=2)\n"
        "model = torch.nn.Linear(2, 1)\n"
        "data = torch.utils.data.TensorDataset(torch.ones(8, 2))\n"
        "model, optimizer, loader = run.prepare(model, torch.optim.SGD(model.parameters(), 0.1),\n"
        "                                       torch.utils.data.DataLoader(data, batch_size=2))\n"
        "if os.environ['RANK'] == '1':\n"
        "    raise ValueError('no such file')\n"
        "for (x,) in loader:\n"
        "    model(x).sum().backward(); optimizer.step(); optimizer.zero_grad()\n"
    )
    with Ranks(tmp_path, script) as ranks:
        ranks.plain(2)
        assert all(ranks.ends()), ranks.all_said
    assert ranks.summary["outcome"] == "failed" and ranks.summary["exit_code"] == 1
    assert ranks.summary["error"].startswith("ScriptFailed: worker 1 failed with ValueError: no such file at bad.py:8")
    assert "ValueError: no such file" in ranks.said(1)
    assert "Rank 0 ends because the run has failed elsewhere." in ranks.said(0) and "Traceback" not in ranks.said(0)


@pytest.mark.chaos
def test_a_killed_helper_is_no_good_end(tmp_path: Path) -> None:
    with Ranks(tmp_path, "normed", *RELAXED) as ranks:
        ranks.plain(2)
        ranks.at_step(10)
        (helper,) = ranks.helpers()
        os.kill(helper, signal.SIGKILL)
        assert ranks.ends(20) == [1, 1], ranks.all_said
        for name in ("control.sock", "lock"):  # swept by the next command
            (ranks.dir / name).unlink(missing_ok=True)
        for left in ranks.temp.glob("holdfast-*"):
            left.rmdir()
    told = "ends, because the process that connects it with the run is gone"
    assert f"rank 0 {told}" in ranks.said(0) and f"rank 1 {told}" in ranks.said(1)


def test_a_directory_that_is_taken_is_told_by_every_rank(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "summary.json").write_text("{}")
    with Ranks(tmp_path, "normed") as ranks:
        ranks.plain(2)
        assert ranks.ends() == [1, 1], ranks.all_said
    for number in range(2):
        assert "DirectoryBusy: " in ranks.said(number) and "holds another run" in ranks.said(number)
