"""`holdfast run --on slurm|kubernetes`: what is printed by --dry-run, and what is handed over without it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import pytest

from holdfast.cli.launch.engine_table import engine
from holdfast.config.cluster_config import KubernetesConfig, SlurmConfig
from holdfast.config.resolve import Resolved, Sources
from holdfast.engines import kubernetes
from holdfast.errors import ConfigError, UsageError
from holdfast.transport.auth import token
from holdfast.transport.auth.credentials import Credentials
from tests.unit.engines.submitted import said, tool


@pytest.fixture(autouse=True)
def _script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print('trains')\n")


def resolved(on: str, **flags: object) -> Resolved:
    sources = Sources().flag("script", "train.py").flag("on", on)
    for name, value in flags.items():
        sources.flag(name, value)
    return sources.resolve()


def submit(told: Resolved, asked: SlurmConfig | KubernetesConfig, *, hosts: int, dry_run: bool) -> int:
    """Hand it over, or print it."""
    config = msgspec.structs.replace(told.config, hosts=hosts, **{told.config.on: asked})
    chosen, told = engine(config.on), Resolved(config, told.sources)
    if dry_run:
        print(chosen.rehearse(told), end="")
    return 0 if dry_run else chosen.run(told)


def test_a_dry_run_for_slurm_prints_the_script_and_makes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert submit(resolved("slurm", dir="runs/x", workers=2), SlurmConfig(), hosts=3, dry_run=True) == 0
    out = capsys.readouterr().out
    assert out.startswith("#!/bin/bash\n")
    assert "#SBATCH --job-name=holdfast-x\n#SBATCH --chdir=" in out
    assert f'#SBATCH --output="{Path.cwd()}/runs/x/slurm-%j.out"\n' in out
    assert out.endswith(
        f'exec {sys.executable} -m holdfast.cli.main run --on local --listen 0.0.0.0 --dir "$dir" --hosts 3 '
        "--workers 2 train.py\n"
    )
    assert not Path("runs").exists()


def test_a_dry_run_for_kubernetes_hides_the_token_unless_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    config = KubernetesConfig(image="train")
    assert submit(resolved("kubernetes", dir="runs/x"), config, hosts=2, dry_run=True) == 0
    out = capsys.readouterr().out
    assert kubernetes.HIDDEN in out
    (files,) = [one["data"] for one in json.loads(out)["items"] if one["kind"] == "ConfigMap"]
    start = files.pop("holdfast-start.sh")
    assert "--dir \"$dir\" --hosts 2 --workers 1 /holdfast/brought/train.py\n" in start
    assert "dir=/holdfast/data/runs/x\n" in start
    assert files == {"train.py": "print('trains')\n"}
    shown = msgspec.structs.replace(config, show_token=True)
    assert submit(resolved("kubernetes", dir="runs/x"), shown, hosts=2, dry_run=True) == 0
    first = capsys.readouterr().out
    submit(resolved("kubernetes", dir="runs/x"), shown, hosts=2, dry_run=True)
    second = capsys.readouterr().out
    differ = [line for line in second.splitlines() if line not in first.splitlines()]
    assert [line.partition(":")[0].strip() for line in differ] == ['"token"']  # a new one each time


def test_a_script_of_the_image_is_not_looked_for_here(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").unlink()
    config = KubernetesConfig(image="train", bring=False)
    assert submit(resolved("kubernetes", dir="runs/x"), config, hosts=1, dry_run=True) == 0
    (files,) = [one["data"] for one in json.loads(capsys.readouterr().out)["items"] if one["kind"] == "ConfigMap"]
    assert files["holdfast-start.sh"].endswith("--workers 1 train.py\n")
    with pytest.raises(UsageError) as caught:
        submit(resolved("slurm"), SlurmConfig(), hosts=1, dry_run=True)
    assert str(caught.value) == "train.py: there is no such script. Give the path of a Python file."


def test_settings_are_checked_first() -> None:
    with pytest.raises(UsageError, match="the port is not a number"):
        submit(resolved("slurm", listen="0.0.0.0:x"), SlurmConfig(), hosts=1, dry_run=True)
    with pytest.raises(ConfigError, match=r"kubernetes\.image"):
        submit(resolved("kubernetes"), KubernetesConfig(), hosts=1, dry_run=True)


def test_a_token_that_was_given_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    given = token.make()
    token.write(Path("secret"), given)
    config = KubernetesConfig(image="train", show_token=True)
    submit(resolved("kubernetes", token_file="secret"), config, hosts=2, dry_run=True)
    manifests = json.loads(capsys.readouterr().out)["items"]
    assert [one["stringData"] for one in manifests if one["kind"] == "Secret"] == [{"token": given}]
    submit(resolved("slurm", token_file="secret"), SlurmConfig(), hosts=2, dry_run=True)
    assert f"--token-file {Path.cwd()}/secret" in capsys.readouterr().out


def test_with_tls_every_pod_gets_certificates_that_were_made_here(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("cryptography", reason="making certificates needs cryptography (holdfast[tls])")
    config = KubernetesConfig(image="t", show_token=True)
    assert submit(resolved("kubernetes", tls=True), config, hosts=2, dry_run=True) == 0
    manifests = json.loads(capsys.readouterr().out)["items"]
    secret = next(one["stringData"]["token"] for one in manifests if one["kind"] == "Secret")
    found = Credentials.parse(secret, "the Secret")
    assert found.tls is not None and found.server is not None and found.client is not None
    start = next(one["data"]["holdfast-start.sh"] for one in manifests if one["kind"] == "ConfigMap")
    assert ' --tls --token-file "$token" --dir "$dir" --hosts 2 ' in start
    assert submit(resolved("kubernetes", tls=True), KubernetesConfig(image="t"), hosts=2, dry_run=True) == 0
    assert "PRIVATE KEY" not in capsys.readouterr().out


def test_what_would_be_ignored_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        submit(resolved("kubernetes"), KubernetesConfig(image="t", show_token=True), hosts=2, dry_run=False)
    assert str(caught.value) == (
        "kubernetes.show_token = True: it is for --dry-run; what is applied has a token of its own in any case (set by "
        "default). Add --dry-run, or leave it out."
    )
    with pytest.raises(ConfigError) as caught:
        submit(resolved("kubernetes", dir="/big/x"), KubernetesConfig(image="t"), hosts=2, dry_run=True)
    assert str(caught.value) == (
        "dir = /big/x: a job's directory is /holdfast/data/runs/NAME, in its volume (set by --dir). Use --dir x, and "
        "kubernetes.claim."
    )


def test_workers_beyond_the_lanes_are_pointed_out(capsys: pytest.CaptureFixture[str]) -> None:
    submit(resolved("slurm", lanes=4, workers=2), SlurmConfig(), hosts=2, dry_run=True)
    assert capsys.readouterr().err == ""
    submit(resolved("slurm", lanes=4, workers=2), SlurmConfig(), hosts=3, dry_run=True)
    assert capsys.readouterr().err == "note: 3 hosts make 6 workers, and a step has 4 lanes: the rest wait as spares\n"


def test_without_dry_run_it_is_handed_over(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    tools = Path("tools").absolute()
    tool(tools, "sbatch", "echo 7")
    tool(tools, "kubectl", 'echo "$*" >>"$said"')
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    assert submit(resolved("slurm", dir="runs/x"), SlurmConfig(), hosts=2, dry_run=False) == 0
    assert capsys.readouterr().out.startswith("submitted to Slurm as job 7; ")
    assert Path("runs/x/job.sh").read_text().startswith("#!/bin/bash\n")
    assert submit(resolved("kubernetes", dir="runs/y"), KubernetesConfig(image="t"), hosts=2, dry_run=False) == 0
    assert capsys.readouterr().out.startswith("submitted to Kubernetes as job holdfast-y. ")
    assert said(tools, "kubectl") == ["apply --server-side -f -"]
