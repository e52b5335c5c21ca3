"""What every engine that hands a run to a cluster has to keep, whatever the cluster is called.

This is beyond what all engines keep (`test_engine_contract`). Slurm and Kubernetes start a job when they please: what
can be held is what they are handed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.transport.auth import token
from tests.unit.engines.submitted import tool

#: The engine's name, its options, and the tool that it hands a job to, with what that does in a test.
ENGINES = {
    "slurm": ((), "sbatch", 'cat "${@: -1}" >"$said"; echo 7'),
    "kubernetes": (("--set", "kubernetes.image=train"), "kubectl", 'cat >"$said"'),
}
Hand = Callable[..., int]


@pytest.fixture(params=list(ENGINES))
def engine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An engine, in a directory with a script, without any tool of a cluster."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    Path("train.py").write_text("print('trains')\n")
    return str(request.param)


@pytest.fixture
def hand(engine: str) -> Hand:
    """Call `holdfast run --on ENGINE --hosts 3`, with further words."""

    def called(*words: str, script: str = "train.py") -> int:
        more = ENGINES[engine][0]
        return main(["run", "--on", engine, "--hosts", "3", "--dir", "runs/x", *more, *words, script, "--mine", "a b"])

    return called


@pytest.fixture
def cluster(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cluster's tool is there; the file that has what it was handed."""
    _, name, text = ENGINES[engine]
    tool(tmp_path / "tools", name, text)
    monkeypatch.setenv("PATH", f"{tmp_path}/tools:/usr/bin:/bin")
    return tmp_path / "tools" / f"{name}.said"


def test_a_dry_run_says_all_and_does_nothing(hand: Hand, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(Path().rglob("*"))
    assert hand("--dry-run", "--workers", "2") == 0
    first = capsys.readouterr().out
    assert hand("--dry-run", "--workers", "2") == 0
    assert capsys.readouterr().out == first
    assert sorted(Path().rglob("*")) == before


def test_one_machine_coordinates_and_the_others_join(hand: Hand, capsys: pytest.CaptureFixture[str]) -> None:
    hand("--dry-run", "--workers", "2")
    out = capsys.readouterr().out
    assert "run --on local --listen 0.0.0.0" in out
    assert "--hosts 3 --workers 2" in out
    assert "train.py --mine 'a b'" in out, "the script's own words are handed on as they are"
    assert " join " in out and "--token-file" in out


def test_what_was_set_is_handed_on_and_what_was_not_is_left_to_the_job(
    hand: Hand, capsys: pytest.CaptureFixture[str]
) -> None:
    hand("--dry-run", "--sync", "bounded:2", "--servers", "1", "--set", "crew.settle=9s")
    out = capsys.readouterr().out
    assert "--sync bounded:2" in out and "--servers 1" in out and "--set crew.settle=9.0" in out
    assert "--seed" not in out and "--replicas" not in out


def test_the_cluster_is_handed_what_the_dry_run_printed(
    hand: Hand, cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hand("--dry-run") == 0
    printed = capsys.readouterr().out.splitlines()
    assert hand() == 0
    handed = cluster.read_text().splitlines()
    differ = [line for line in handed if line not in printed]
    assert [line.partition(":")[0].strip() for line in differ] in ([], ['"token"']), "a token is not printed"
    assert capsys.readouterr().out.startswith("submitted to ")


def test_a_token_is_in_no_command_and_not_on_the_screen(
    engine: str, hand: Hand, cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = token.make()
    Path("mine").write_text(secret)
    Path("mine").chmod(0o600)
    assert hand("--dry-run", "--token-file", "mine") == 0
    assert hand("--token-file", "mine") == 0
    shown = capsys.readouterr()
    assert secret not in shown.out + shown.err
    lines = [line.strip() for line in cluster.read_text().splitlines() if secret in line]
    assert len(lines) == (1 if engine == "kubernetes" else 0), "in the Secret, or in the file that it is in"
    assert all(line.startswith('"token": ') for line in lines)


def test_no_tool_of_the_cluster_here(engine: str, hand: Hand, capsys: pytest.CaptureFixture[str]) -> None:
    assert hand() == 2
    said = capsys.readouterr().err
    assert f"{ENGINES[engine][1]} was not found on this machine" in said and "--dry-run" in said
    assert not Path("runs/x").exists(), "what was begun is taken back"


def test_a_cluster_that_does_not_take_the_job(
    engine: str, hand: Hand, cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = ENGINES[engine][1]
    tool(cluster.parent, name, "echo 'no such queue' >&2; exit 3")
    assert hand() == 2
    assert f"{name} did not take the job: no such queue" in capsys.readouterr().err
    assert not Path("runs/x").exists()


def test_no_such_script(hand: Hand, capsys: pytest.CaptureFixture[str]) -> None:
    assert hand("--dry-run", script="absent.py") == 2
    assert "absent.py" in capsys.readouterr().err
