"""The batch script of Slurm: its text, and what it does when it runs (on a real Slurm: tests/hosts)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from holdfast.config.cluster_config import SlurmConfig
from holdfast.engines import slurm
from holdfast.engines.batch import BatchJob
from holdfast.errors import DirectoryBusy, ResourceError, UsageError
from tests.unit.engines.submitted import golden, said, tool

ALONE = BatchJob("holdfast-train-1", "/shared/runs/train-1", "train.py")
THREE = BatchJob(
    "holdfast-train-2", "/shared/my runs/100%/train-2", "/shared/it's mine/train.py", ("--name", "a b", "$HOME"),
    options=("--lanes", "8", "--servers", "1", "--set", "crew.settle=2.0"), hosts=3, workers=2, servers=1, threads=2,
    listen="[::]", tls=True,
    holdfast=("/opt/my venv/bin/python", "-m", "holdfast.cli.main"),
)  # fmt: skip
EVERYTHING = SlurmConfig(
    gpus=1, memory="1.5GiB", time=93784.0, notice=120.0, retries=2, partition="gpu", account="lab",
    qos="long", constraint="intel&ssd", requeue=False, setup="module load python\nsource ~/venv/bin/activate",
    options="--exclusive --nodelist=a,b,c",
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "job", "config"),
    [("slurm_alone.sh", ALONE, SlurmConfig()), ("slurm_three.sh", THREE, EVERYTHING)],
)
def test_the_script_is_this(name: str, job: BatchJob, config: SlurmConfig) -> None:
    text = slurm.render(job, config, cwd="/shared/my work")
    assert text == golden(name, text)
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.0, "0-00:01:00"), (90.4, "0-00:01:30"), (7200.0, "0-02:00:00"), (93784.0, "1-02:03:04")],
)
def test_times(seconds: float, text: str) -> None:
    assert f"#SBATCH --time={text}\n" in slurm.render(ALONE, SlurmConfig(time=seconds), cwd="/")


def test_memory_is_never_less_than_was_asked_for() -> None:
    assert "#SBATCH --mem=2M\n" in slurm.render(ALONE, SlurmConfig(memory="1048577B"), cwd="/")


def test_a_token_that_was_given_is_used_by_all() -> None:
    text = slurm.render(BatchJob("n", "/d", "train.py", hosts=2, token_file="/my token"), SlurmConfig(), cwd="/")
    assert "--listen 0.0.0.0 --token-file '/my token' --dir" in text
    assert """join "$host:${address##*:}" --token-file '\\''/my token'\\'' --workers 1\n""" in text


@pytest.mark.parametrize("path", ['/a"b', "/a\\b", "/a\nb"])
def test_a_path_that_sbatch_cannot_read_is_refused(path: str) -> None:
    with pytest.raises(UsageError) as caught:
        slurm.render(ALONE, SlurmConfig(), cwd=path)
    assert str(caught.value) == (
        f"{path!r} cannot stand in a batch script of Slurm. Use one without quotes and backslashes."
    )


# ------------------------------------------------------------ a job that runs, with tools of a few lines


SRUN = """
echo "$*" >>"$said"
while [[ $1 == --* ]]; do shift; done
SLURM_LAUNCH_NODE_IPADDR=${ADDRESS:-10.0.0.1} "$@"
echo "ended $?" >>"$said"
"""
HOLDFAST = """
echo "$1 $$: $*" >>"$said"
while [[ $# -gt 0 ]]; do [[ $1 == --dir ]] && dir=$2; [[ $1 == run || $1 == join ]] && what=$1; shift; done
if [[ $what == join ]]; then
    tried=$(grep -c ^join "$said")
    [[ $tried -ge ${JOINS:-1} ]]; exit $(( $? ? ${CODE:-10} : 0 ))
fi
(umask 077; echo secret-token >"$dir/token")
touch "$dir/run.json"
echo "0.0.0.0:4711" >"$dir/address.new"; mv "$dir/address.new" "$dir/address"
until grep -q ended "${said%/*}/srun.said"; do sleep 0.05; done
exit "${RUN:-0}"
"""


def carry_out(tmp_path: Path, **environment: str) -> tuple[int, Path]:
    """Run a job's script here: srun starts its command on this machine, and what stands for holdfast takes notes."""
    tools = tmp_path / "tools"
    tool(tools, "srun", SRUN)
    tool(tools, "holdfast", HOLDFAST)
    (tmp_path / "run").mkdir(exist_ok=True)
    job = BatchJob("name", str(tmp_path / "run"), "train.py", ("$HOME",), hosts=2, workers=3)
    script = tmp_path / "run" / "job.sh"
    script.write_text(slurm.render(job, SlurmConfig(retries=2), cwd="/"))
    variables = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", **environment}
    # `sleep` between two tries of an agent is not what is tried here.
    tool(tools, "sleep", 'exec /bin/sleep 0.02')
    with subprocess.Popen(["bash", str(script)], env=variables) as child:
        code = child.wait(60)
    runs = [line for line in said(tools, "holdfast") if line.startswith("run")]
    assert runs[-1].startswith(f"run {child.pid}:")  # the shell has become the coordinator: it gets Slurm's signals
    return code, tools


@pytest.mark.process
@pytest.mark.sharing
def test_the_first_node_coordinates_and_the_others_join(tmp_path: Path) -> None:
    code, tools = carry_out(tmp_path)
    assert code == 0
    first, second = sorted(line.partition(": ")[2] for line in said(tools, "holdfast"))
    where = tmp_path / "run"
    assert first == f"join 10.0.0.1:4711 --token-file {where}/token --workers 3"
    assert second == f"run --on local --listen 0.0.0.0 --dir {where} --hosts 2 --workers 3 train.py $HOME"
    assert "secret-token" not in "".join(said(tools, "srun") + said(tools, "holdfast"))


@pytest.mark.process
@pytest.mark.sharing
def test_an_address_of_ipv6_is_put_in_brackets(tmp_path: Path) -> None:
    _, tools = carry_out(tmp_path, ADDRESS="fe80::1")
    assert any(": join [fe80::1]:4711 " in line for line in said(tools, "holdfast"))


@pytest.mark.process
@pytest.mark.sharing
@pytest.mark.parametrize(
    ("joins", "code", "tries", "end"), [("3", "10", 3, 0), ("9", "137", 3, 137), ("9", "11", 1, 11), ("9", "1", 1, 1)]
)
def test_an_agent_that_was_killed_or_lost_the_run_is_tried_again(
    joins: str, code: str, tries: int, end: int, tmp_path: Path
) -> None:
    _, tools = carry_out(tmp_path, JOINS=joins, CODE=code)
    assert sum(line.startswith("join") for line in said(tools, "holdfast")) == tries
    assert said(tools, "srun")[-1] == f"ended {end}"


@pytest.mark.process
@pytest.mark.sharing
def test_the_job_ends_as_the_run_ends(tmp_path: Path) -> None:
    assert carry_out(tmp_path, RUN="4")[0] == 4


@pytest.mark.process
@pytest.mark.sharing
def test_a_second_attempt_does_not_meet_the_first(tmp_path: Path) -> None:
    carry_out(tmp_path)
    code, _ = carry_out(tmp_path)
    assert code == 0
    assert sorted(path.name for path in (tmp_path / "run" / "attempt-0").iterdir()) == ["address", "run.json", "token"]


# ------------------------------------------------------------ submitting


def test_without_sbatch_nothing_is_left_and_a_sentence_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError) as caught:
        slurm.submit("#!/bin/bash\n", tmp_path / "runs" / "x")
    assert str(caught.value) == (
        "sbatch was not found on this machine. Submit from a login node of the cluster, or use --dry-run, which prints "
        "the script."
    )
    assert not (tmp_path / "runs" / "x").exists()


def test_submitting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tmp_path / "tools", "sbatch", 'echo "$*" >>"$said"; echo "42;cluster"')
    monkeypatch.setenv("PATH", f"{tmp_path / 'tools'}:{os.environ['PATH']}")
    directory = tmp_path / "runs" / "x"
    assert slurm.submit("#!/bin/bash\n", directory) == (
        f"submitted to Slurm as job 42; its output goes to {directory}/slurm-42.out. `squeue -j 42` shows it, "
        "`scancel 42` ends it."
    )
    assert said(tmp_path / "tools", "sbatch") == [f"--parsable {directory}/job.sh"]
    assert (directory / "job.sh").read_text() == "#!/bin/bash\n"
    with pytest.raises(DirectoryBusy) as caught:
        slurm.submit("", directory)
    assert str(caught.value) == f"{directory} is not empty, and a run's directory holds one run. Use another --dir."


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ResourceError) as caught:
        slurm.submit("", tmp_path / "file" / "x")
    assert str(caught.value) == f"{tmp_path}/file/x cannot be used as a run's directory: Not a directory."
