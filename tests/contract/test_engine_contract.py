"""What every engine must do (see `engines.engine.Engine`), as a user meets it: `holdfast run --on NAME`.

That it ends with the same weights wherever it runs takes real machines or their likes: `test_same_weights` (local) and
`test_ray` of tests/process, `test_slurm_on_hosts` and `test_kubernetes_on_hosts` of tests/hosts.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli.launch.engine_table import engine as engine_of
from holdfast.cli.main import main
from holdfast.config.resolve import Sources
from holdfast.config.run_config import ENGINES
from holdfast.errors import UsageError
from tests.process.harness import ROOT

#: What each cannot do without.
NEEDED = {"kubernetes": ("--set", "kubernetes.image=train")}
#: A setting of each that no other looks at.
OWN = {"ray": "ray.wait=1m", "slurm": "slurm.qos=high", "kubernetes": "kubernetes.claim=disk"}
#: What is missing on a machine that has nothing but Holdfast, and what to do about it.
MISSING = {
    "ray": ("--on ray needs the package ray", "pip install 'holdfast[ray]'"),
    "slurm": ("sbatch was not found", "--dry-run"),
    "kubernetes": ("kubectl was not found", "--dry-run"),
}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An engine, in a directory with a script, on a machine that has nothing but Holdfast."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    Path("without").mkdir()
    Path("without", "ray.py").write_text("raise ModuleNotFoundError(\"No module named 'ray'\")\n")
    monkeypatch.setenv("PYTHONPATH", f"{Path.cwd()}/without:{ROOT / 'src'}")
    Path("train.py").write_text("print('trains')\n")
    return str(request.param)


def run(engine: str, *words: str, script: str = "train.py") -> int:
    return main(["run", "--on", engine, *NEEDED.get(engine, ()), *words, script])


def written() -> list[Path]:
    return sorted(Path().rglob("*"))


@pytest.mark.parametrize("how", [(), ("--dry-run",)], ids=["run", "rehearse"])
def test_a_script_that_is_not_there(engine: str, how: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    before = written()
    assert run(engine, *how, script="absent.py") == 2
    error = capsys.readouterr().err
    nobody = "--dry-run" in how and engine in ("local", "ray")
    assert ("--dry-run prints" if nobody else "absent.py: there is no such script. Give the path of") in error
    assert written() == before


def test_a_rehearsal_does_nothing_and_says_the_same_each_time(
    engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before, said = written(), []
    for _ in range(2):
        code = run(engine, "--dry-run", "--dir", "runs/x", "--hosts", "3", "--listen", "127.0.0.1")
        said.append((code, *capsys.readouterr()))
    assert said[0] == said[1] and written() == before
    code, out, error = said[0]
    if code:
        assert "--dry-run prints what a cluster would be told. Say which: --on slurm or --on kubernetes.\n" in error
    else:
        assert "holdfast.cli.main join " in out or "holdfast join " in out


def test_settings_of_another_engine_are_refused(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = written()
    for other, setting in OWN.items():
        if other != engine:
            assert run(engine, "--set", setting) == 2
            assert f"this run is on {engine}, which does not look at it" in capsys.readouterr().err
    assert written() == before


def test_what_is_needed_and_missing_is_named(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    if engine not in MISSING:
        sources = Sources().flag("script", "train.py").flag("on", engine)
        with pytest.raises(UsageError, match="--dry-run prints"):  # nothing is: it is there, and says so
            engine_of(engine).rehearse(sources.resolve())
        return
    assert run(engine, "--dir", "runs/x") != 0
    shown = capsys.readouterr()
    assert all(words in shown.err for words in MISSING[engine]), shown.err
    assert "Traceback" not in shown.err
