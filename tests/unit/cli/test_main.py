"""The command line itself: what it knows, what it says, and how fast."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli.main import COMMANDS, main
from holdfast.cli.run import configure, parser
from tests.unit.cli.launched import ENVIRONMENT, holdfast


def test_the_commands_and_flags_are_these() -> None:
    """A frozen set: scripts stand on it."""
    assert list(COMMANDS) == [
        "run", "join", "status", "scale", "set", "explain", "checkpoint", "export", "serve", "replica", "predict",
        "doctor", "bench", "version",
    ]  # fmt: skip
    flags = {name for action in parser()._actions for name in action.option_strings}
    assert flags == {
        "-h", "--help", "--workers", "--servers", "--replicas", "--lanes", "--threads", "--seed", "--sync", "--dir",
        "--on", "--config", "--set", "--show-config", "--listen", "--hosts", "--tls", "--token-file", "--dry-run",
        "--verify", "--checkpoint", "--keep", "--checkpoint-to", "--resume", "--changed-script", "--notice",
        "--init-from",
    }


@pytest.mark.parametrize("words", [["--help"], *([command, "--help"] for command in COMMANDS if command != "bench")])
def test_help_is_quick_and_imports_no_torch(words: list[str]) -> None:
    code = f"import sys; from holdfast.cli.main import main; main({words!r}); assert 'torch' not in sys.modules"
    if words != ["--help"]:
        code = (
            "import sys\nfrom holdfast.cli.main import main\n"
            f"try: main({words!r})\nexcept SystemExit: pass\nassert not {{'torch', 'numpy'}} & set(sys.modules)"
        )
    # Beside something else that Python starts with, in turns: how fast a machine is, and what else it does, is in both.
    both = [(cpu_seconds(code, "usage: holdfast"), cpu_seconds("import asyncio", "")) for _ in range(3)]
    ours, other = map(min, zip(*both, strict=True))
    assert ours < 2 * other, f"{ours:.3f} s of CPU, where importing asyncio takes {other:.3f} s"


def cpu_seconds(code: str, says: str) -> float:
    """What it takes to run some code in a new process, which says this."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0 and says in done.stdout, done.stderr
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_the_launcher_imports_no_torch() -> None:
    code = "import sys, holdfast.cli.launch.launcher, holdfast.hosts.fork_spawner; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, check=False).returncode == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["scael"], "scael: there is no such command. Did you mean scale?"),
        (["run", "--wokers", "2", "train.py"], "--wokers: holdfast run has no such option. Did you mean --workers?"),
        (["status", "--jsn"], "--jsn: holdfast status has no such option. Did you mean --json?"),
        (["run"], "No script was named"),
        (["run", "--lanes", "x", "train.py"], "argument --lanes: invalid int value: 'x'"),
        (["run", "no_such_script.py"], "no_such_script.py: there is no such script."),
        (["run", "--config", "no_such.toml", "x.py"], "--config no_such.toml cannot be read"),
        (["status", "/"], "/ is not a run's directory."),
        (["scale", "/", "--workers", "0"], "workers = 0: must be 1 or more (set by --workers)."),
        (["set", "/", "sync"], "sync: a setting is written name=value. For example: sync=bounded:2."),
        (["set", "/", "foo=1"], "foo = 1: cannot be set while a run is going; what can: sync (set by holdfast set)."),
        (["set", "/", "synk=async"], "(set by holdfast set). Did you mean sync?"),
        (["set", "/", "servers=1"], "(set by holdfast set). For the number of servers there is holdfast scale."),
        (["set", "/", "sync=quorum"], "sync = quorum: quorum:K needs a whole number for K, not '' (set by holdfast"),
        (["scale", "/"], "Nothing was asked for. Say what there shall be: --workers N, --servers N, or both."),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert told in error
    assert len(error.splitlines()) == 1


def test_what_stands_after_the_script_is_the_scripts() -> None:
    resolved, _ = configure(["--workers", "2", "train.py", "--epochs", "3", "--workers", "9", "--", "-x"])
    assert resolved.config.workers == 2
    assert resolved.config.args == ("--epochs", "3", "--workers", "9", "--", "-x")


def test_set_names_every_mode(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["set", "--help"])
    shown = capsys.readouterr().out
    assert [mode for mode in ("exact", "bounded:S", "quorum:K", "async", "local:H") if mode not in shown] == []


def test_an_option_after_the_script_is_pointed_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(tmp_path / "none.py"), "--workers=2"]) == 2
    assert "note: --workers stands after the script, so the script gets it" in capsys.readouterr().err


def test_show_config(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("workers = 2")
    assert main(["run", "--config", str(file), "--set", "crew.settle=2s", "--show-config", "train.py"]) == 0
    shown = capsys.readouterr().out
    assert f"workers = 2                      # {file}" in shown
    assert "crew.settle = 2.0                # --set" in shown


def test_doctor(tmp_path: Path) -> None:
    done = holdfast("doctor", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    words = [line.split()[1] for line in done.stdout.splitlines() if line[:1].strip()]
    assert words == ["python", "torch", "cpus", "memory", "/dev/shm", "kernel", "disk", "runs"]
    assert '"verdict": "ok"' in holdfast("doctor", "--json", cwd=tmp_path).stdout


def test_version_and_bench(tmp_path: Path) -> None:
    assert holdfast("--version").stdout.startswith("holdfast ")
    assert holdfast("version").stdout.startswith("holdfast ")
