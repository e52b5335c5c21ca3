"""What every batch job has in common: its commands, its name, what a second attempt finds, what its tools answer."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from holdfast.config.cluster_config import SlurmConfig
from holdfast.config.resolve import Sources
from holdfast.config.run_config import RunConfig
from holdfast.engines import batch
from holdfast.engines.batch import ATTEMPTS, BatchJob, NodeShare, Shell
from holdfast.errors import ConfigError, ResourceError, UsageError

JOB = BatchJob("name", "/shared/run", "train.py")


def test_what_was_set_is_passed_on_and_defaults_are_not() -> None:
    sources = Sources().file("run.toml", 'audit = true\nseed = 3\n[crew]\nhang_limit = "2m"\n')
    sources.assign("crew.luck_budget=9").flag("workers", 2).flag("lanes", 8).flag("threads", 2).flag("dir", "runs/x")
    resolved = sources.flag("script", "train.py").flag("args", ("--epochs", "3")).resolve()
    job = batch.plan(resolved.config, resolved.sources, name="n", dir="/d", hosts=3, holdfast=["holdfast"])
    assert (job.hosts, job.workers, job.threads, job.dir) == (3, 2, 2, "/d")
    command = job.run("--dir", job.dir)
    assert command == [
        "holdfast", "run", "--on", "local", "--dir", "/d", "--hosts", "3", "--workers", "2", "--set", "audit=true",
        "--seed", "3", "--set", "crew.hang_limit=120.0", "--set", "crew.luck_budget=9", "--lanes", "8",
        "--threads", "2", "train.py", "--epochs", "3",
    ]  # fmt: skip
    assert job.join("a:1") == ["holdfast", "join", "a:1", "--workers", "2"]


def test_what_is_passed_on_means_the_same_there() -> None:
    sources = Sources().assign("crew.settle=250ms").assign("audit=true").flag("lanes", 6).flag("seed", 0)
    first = sources.flag("script", "train.py").flag("workers", 2).resolve()
    job = batch.plan(first.config, first.sources, name="n", dir="/d", hosts=1, holdfast=[])
    again = Sources()
    for name, value in zip(job.options[::2], job.options[1::2], strict=True):
        again.assign(value) if name == "--set" else again.assign(f"{name[2:]}={value}")
    there = again.flag("script", "train.py").flag("workers", 2).resolve().config
    assert there == first.config


def test_one_worker_with_one_thread_unless_more_are_asked_for() -> None:
    job = batch.plan(RunConfig("train.py"), {}, name="n", dir="/d", hosts=2, holdfast=["holdfast"])
    assert (job.workers, job.threads, job.options) == (1, 1, ())
    assert batch.share(job, SlurmConfig()) == NodeShare(1, 0, 0)


def test_a_machine_is_asked_for_what_all_its_workers_need() -> None:
    job = BatchJob("name", "/d", "train.py", workers=3, threads=2)
    assert batch.share(job, SlurmConfig()) == NodeShare(6, 0, 0)
    assert batch.share(job, SlurmConfig(cpus=4, gpus=1, memory="2GiB")) == NodeShare(12, 3, 3 * 2 * 2**30)


def test_servers_are_passed_on_and_there_is_room_for_them_on_every_machine() -> None:
    resolved = Sources().flag("script", "train.py").flag("workers", 2).flag("servers", 1).flag("on", "slurm").resolve()
    job = batch.plan(resolved.config, resolved.sources, name="n", dir="/d", hosts=3, holdfast=["holdfast"])
    assert job.run() == [
        "holdfast", "run", "--on", "local", "--hosts", "3", "--workers", "2", "--servers", "1", "train.py",
    ]  # fmt: skip
    assert job.join("a:1") == ["holdfast", "join", "a:1", "--workers", "2"]
    assert batch.share(job, SlurmConfig(cpus=4, gpus=1, memory="2GiB")) == NodeShare(12, 2, 3 * 2 * 2**30)


@pytest.mark.parametrize(
    ("directory", "name"),
    [
        ("runs/train-20260131-100000", "holdfast-train-20260131-100000"),
        ("/a/My_Model.v2/", "holdfast-my-model-v2"),
        ("runs/Übung 1", "holdfast-bung-1"),
        ("runs/---", "holdfast"),
        ("x" * 100, "holdfast-" + "x" * 47),
        ("x" * 46 + "-y", "holdfast-" + "x" * 46),
    ],
)
def test_the_name_of_a_job(directory: str, name: str) -> None:
    assert batch.job_name(directory) == name


def test_what_a_user_gave_is_never_expanded_by_the_shell(tmp_path: Path) -> None:
    given = ["a b", "$HOME", "$(touch x)", "`touch x`", "'", '"', "a\nb", ";touch x", "*"]
    text = batch.words(["printf", "%s\\0", *given, Shell("$mine")])
    for shell in ("sh", "bash"):
        out = subprocess.check_output([shell, "-c", f"mine='m n'; {text}"], cwd=tmp_path, text=True)
        assert out.split("\0") == [*given, "m n", ""]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_what_an_earlier_attempt_left_is_moved_aside(shell: str, tmp_path: Path) -> None:
    def attempt() -> list[str]:
        subprocess.run([shell, "-euc", ATTEMPTS], env={"dir": str(tmp_path), "PATH": "/usr/bin:/bin"}, check=True)
        return sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())

    for name in ("job.sh", "slurm-7.out"):
        (tmp_path / name).touch()
    assert attempt() == ["job.sh", "slurm-7.out"]
    left = []
    for number in range(2):
        (tmp_path / "logs").mkdir()
        for name in ("run.json", "token", "address", "logs/worker-0.log"):
            (tmp_path / name).touch()
            left.append(f"attempt-{number}/{name}")
        assert attempt() == sorted([*left, "job.sh", "slurm-7.out"])


def test_a_tool_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError) as caught:
        batch.call("no-such-tool", [], "", missing="Do this.")
    assert str(caught.value) == "no-such-tool was not found on this machine. Do this."


def test_a_tool_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    with pytest.raises(ResourceError) as caught:
        batch.call(str(tmp_path), [], "", missing="")
    assert str(caught.value) == f"{tmp_path} could not be started: Permission denied."


def test_what_a_tool_says_against_the_job_is_passed_on() -> None:
    with pytest.raises(UsageError) as caught:
        batch.call("sh", ["-c", "echo no such partition >&2; exit 1"], "", missing="")
    assert str(caught.value) == "sh did not take the job: no such partition"
    with pytest.raises(UsageError) as caught:
        batch.call("sh", ["-c", "exit 3"], "", missing="")
    assert str(caught.value) == "sh did not take the job: it ended with 3 and said nothing"


def test_a_tool_gets_the_text_and_its_answer_comes_back() -> None:
    assert batch.call("cat", [], "text\n", missing="") == "text"


def test_where_and_how_machines_are_let_in_is_taken_over() -> None:
    config = RunConfig("train.py", listen="[::]:4000", tls=True, token_file="secret")
    sources = dict.fromkeys(("listen", "tls", "token_file"), "--set")
    job = batch.plan(config, sources, name="n", dir="/d", hosts=2, holdfast=["holdfast"])
    assert (job.listen, job.tls, job.token_file, job.options) == ("[::]:4000", True, "secret", ())


def test_a_first_machine_without_workers_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        batch.plan(RunConfig("train.py", workers=0), {"workers": "--workers"}, name="n", dir="/d", hosts=2, holdfast=[])
    assert str(caught.value) == (
        "workers = 0: the first machine of a job has workers like all others (set by --workers). Use --workers 1."
    )
