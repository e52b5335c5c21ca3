"""`holdfast checkpoint`: what it shows, and what it says of mistakes."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from holdfast.checkpoint.content import Script
from holdfast.checkpoint.writer import write
from holdfast.cli import checkpoint_report as report
from holdfast.cli.main import main
from tests.unit.checkpoint.contents import content
from tests.unit.checkpoint.test_manifest import sealed

Told = Callable[..., tuple[int, str, str]]
STEP_1, STEP_2 = "run/checkpoints/step-000000000001", "run/checkpoints/step-000000000002"


@pytest.fixture(autouse=True)
def _run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for step in (1, 2):
        write(Path("run/checkpoints"), content(step, loss=float("nan") if step == 2 else 0.25), keep=2)
    Path("run/run.json").write_text("{}")


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    """Run a command: its exit code, and what it printed."""

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["checkpoint", *words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def damage(path: str, file: str = "state.safetensors") -> None:
    with open(Path(path, file), "r+b") as opened:
        opened.seek(-1, os.SEEK_END)
        opened.write(b"?")


def test_list(told: Told) -> None:
    code, out, error = told("list", "run")
    assert (code, re.sub(r" \d+ s ", " 0 s ", out), error) == (0, (
        "run/checkpoints: 2 checkpoints, 930 B\n"
        "       step  epoch     age       size      loss  state\n"
        "          2      0     0 s      465 B       nan  verified when written: step-000000000002\n"
        "          1      0     0 s      465 B      0.25  verified when written: step-000000000001\n"
    ), "")  # fmt: skip
    damage(STEP_2, "manifest.json")
    assert told("list", "run")[1].splitlines()[2] == (
        f"          2      -       -          -         -  The checkpoint {STEP_2} is damaged: manifest.json is cut "
        f"off after {os.stat(f'{STEP_2}/manifest.json').st_size} bytes, or something else"
    )
    code, out, _ = told("list", "run", "--json")
    assert code == 0
    first, second = json.loads(out)
    assert first["usable"] is False and "is damaged" in first["error"] and first["step"] == 2
    created = second.pop("created")
    assert abs(created - time.time()) < 600
    assert second == {
        "path": STEP_1, "step": 1, "usable": True, "epoch": 0, "samples": 64, "loss": 0.25, "bytes": 465, "error": "",
    }  # fmt: skip


def test_list_of_one_and_of_none(told: Told) -> None:
    assert told("list", STEP_1)[1].startswith(f"{STEP_1}: 1 checkpoint, 465 B\n")
    Path("empty/checkpoints").mkdir(parents=True)
    for verb in ("list", "verify"):
        assert told(verb, "empty") == (0, "There is no checkpoint in empty/checkpoints yet.\n", "")
    for verb in (["show", "empty"], ["export", "empty", "--to", "x.pt"], ["diff", "empty", "run"]):
        assert told(*verb) == (15, "", "holdfast: There is no checkpoint in empty/checkpoints yet.\n")


def test_verify(told: Told) -> None:
    code, out, _ = told("verify", "run")
    assert code == 0
    assert [line.split(" in ")[0] for line in out.splitlines()] == [
        f"{STEP_2}: whole, 465 B",
        "  weights_sha256 400982eb6fdefb61d66b92e9a81c1a3e84957cd321910c7eb6f887b67e44eed9",
        f"{STEP_1}: whole, 465 B",
        "  weights_sha256 2e9f5295f0d1919eae941b66661f62fcfa4562070d11199ac6e9d988afad5edd",
    ]
    Path(STEP_1, "notes.txt").write_text("mine")
    damage(STEP_2)
    code, out, _ = told("verify", "run")
    assert code == 15
    assert out.splitlines()[0] == (
        f"The checkpoint {STEP_2} is damaged: state.safetensors, tensor buffers, has other bytes than were "
        "written. Use another one; `holdfast checkpoint verify DIR` says which are whole, and look at the disk: what "
        "was written here was read back and was right."
    )
    assert out.splitlines()[3] == f"{STEP_1} has a file that is not part of it and is not read: notes.txt."
    assert told("verify", STEP_1)[0] == 0
    assert told("verify", STEP_2)[0] == 15
    code, out, _ = told("verify", "run", "--json")
    assert code == 15
    assert [(item["path"], item["whole"], len(item["notes"])) for item in json.loads(out)] == [
        (STEP_2, False, 0), (STEP_1, True, 1),
    ]  # fmt: skip


def test_show(told: Told) -> None:
    code, out, _ = told("show", "run")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == STEP_2
    assert lines[1].startswith("  written   20") and " by Holdfast " in lines[1]
    assert lines[2:] == [
        "  run       runs/mine",
        "  position  step 2, version 2, epoch 0, 128 samples, loss nan",
        "  fixed by  sync exact, lanes 4, seed 0, threads 1",
        "  script    train.py --lr 0.1 (sha256 abababababababab)",
        "configuration",
        "  lanes = 4",
        "  crew.settle = 1.0",
        "model: 3 entries",
        "  fc.weight   float32   2x2                16 B",
        "  fc.bias     float32   2                   8 B",
        "  norm.count  int64     one                 8 B",
        "tensors: 6",
        "  none                   float64   0x4                 0 B",
        "  parameters/float32     float32   6                  24 B",
        "  state/exp_avg/float32  float32   2x3                24 B",
        "  half                   bfloat16  2x1                 4 B",
        "  settings               uint8     3                   3 B",
        "  buffers                uint8     10                 10 B",
    ]
    code, out, _ = told("show", STEP_1, "--json")
    shown = json.loads(out)
    assert shown["facts"]["step"] == 1 and shown["bytes"] == 465 and "control" not in shown
    assert shown["tensors"]["half"]["dtype"] == "bfloat16"


def test_export(told: Told) -> None:
    import torch

    done = told("export", "run", "--to", "out/model.pt")
    size = report.short_size(os.stat("out/model.pt").st_size)
    assert done == (0, f"out/model.pt: 3 entries of step 2, {size}, from {STEP_2}\n", "")
    assert torch.load("out/model.pt")["norm.count"] == 2
    code, out, _ = told("export", STEP_1, "--to", "m.safetensors", "--json")
    assert (code, json.loads(out)) == (0, {
        "from": STEP_1, "to": "m.safetensors", "format": "safetensors", "step": 1, "entries": 3,
        "bytes": os.stat("m.safetensors").st_size,
    })  # fmt: skip
    assert told("export", "run", "--to", "dcp/")[0] == 0 and Path("dcp/.metadata").exists()
    assert told("export", "run", "--to", "named", "--format", "pt")[0] == 0
    assert told("export", "run", "--to", "m.pt", "--format", "ptt") == (
        2, "", "holdfast: --format ptt: there is safetensors, pt, dcp. Did you mean pt?\n"
    )
    assert told("export", "run", "--to", "named", "--format", "pt") == (
        2, "", "holdfast: named exists. Choose another name, or remove it.\n"
    )
    damage(STEP_2)
    code, out, error = told("export", "run", "--to", "before.pt")
    assert (code, "3 entries of step 1" in out) == (0, True)
    assert error.startswith(f"warning: The checkpoint {STEP_2} is damaged: state.safetensors, tensor buffers, has")
    assert told("export", STEP_2, "--to", "x.pt")[0] == 15


def test_diff(told: Told) -> None:
    code, out, _ = told("diff", STEP_1, "run")
    assert code == 1
    lines = out.splitlines()
    assert lines[:2] == [f"{STEP_1} at step 1", f"{STEP_2} at step 2"]
    assert lines[2] == "model: 3 of 3 entries differ, the largest difference is 1.64334"
    assert lines[3].startswith("  fc.weight: 4 numbers, by at most 1.64334")
    assert lines[5:] == [
        "  norm.count: 1 number, by at most 1", "other tensors that differ: state/exp_avg/float32", "script: the same",
        "configuration: the same",
    ]  # fmt: skip
    changed = msgspec.structs.replace(
        content(2), script=Script("train.py", (), "ab" * 32), config={"lanes": 2, "crew": {"settle": 1.0}}
    )
    write(Path("other/checkpoints"), changed, keep=1)
    assert told("diff", "run", "other") == (0, (
        f"{STEP_2} at step 2\nother/checkpoints/step-000000000002 at step 2\nmodel: all 3 entries are the same\n"
        "script: differs\n  args: ('--lr', '0.1') and ()\nconfiguration: differs\n  lanes: 4 and 2\n"
    ), "")  # fmt: skip
    code, out, _ = told("diff", "run", "other", "--json")
    assert (code, json.loads(out)) == (0, {
        "first": STEP_2, "second": "other/checkpoints/step-000000000002", "entries": 3, "differing": 0, "largest": None,
        "model": [], "sections": [], "script": [{"name": "args", "first": ["--lr", "0.1"], "second": []}],
        "config": [{"name": "lanes", "first": 4, "second": 2}],
    })  # fmt: skip


def test_the_first_ten_entries_that_differ_are_named() -> None:
    from holdfast.checkpoint.forms.comparison import Comparison, EntryDifference
    from holdfast.checkpoint.reader import open_checkpoint

    one = open_checkpoint(Path(STEP_1))
    lines = report.differences(
        one, one, Comparison(12, [EntryDifference(f"w{n}", "only in the first") for n in range(12)], [], [], [])
    ).splitlines()
    assert lines[2] == "model: 12 of 12 entries differ"
    assert lines[3] == "  w0: only in the first" and lines[12:14] == ["  w9: only in the first", "  ... and 2 more"]


@pytest.mark.parametrize(
    ("words", "told_of_it"),
    [
        (["lst", "run"], "lst: holdfast checkpoint has no such command. Did you mean list? `holdfast checkpoint"),
        (["list"], "holdfast checkpoint list: the following arguments are required: PATH. `holdfast checkpoint list"),
        (["list", "run", "--jsn"], "--jsn: holdfast checkpoint list has no such option. Did you mean --json?"),
        (["diff", "run"], "holdfast checkpoint diff: the following arguments are required: SECOND."),
        (["export", "run"], "holdfast checkpoint export: the following arguments are required: --to."),
        (["export", "run", "--to", "x.bin"], "x.bin: in which form? Let the name end in .safetensors, .pt or /"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(words: list[str], told_of_it: str, told: Told) -> None:
    code, out, error = told(*words)
    assert (code, out) == (2, "")
    assert error.startswith(f"holdfast: {told_of_it}") and len(error.splitlines()) == 1


@pytest.mark.parametrize("verb", ["list", "verify", "show", "export", "diff"])
def test_a_path_that_means_none_is_told_and_code_15(verb: str, told: Told) -> None:
    Path("other").mkdir()
    Path("other/run.json").write_text("{}")
    more = {"export": ["--to", "x.pt"], "diff": ["run"]}.get(verb, [])
    for path, why in [
        ("none", "there is nothing"), ("run/run.json", "it is a file"), (".", "it has no manifest.json"),
        ("other", "it is a run that has written none"),
    ]:  # fmt: skip
        code, out, error = told(verb, path, *more)
        assert (code, out) == (15, "")
        assert error.startswith(f"holdfast: {path} is no checkpoint: {why}. Give a run's directory, its folder")


def test_one_of_a_later_version_is_told(told: Told) -> None:
    Path(STEP_2, "manifest.json").write_bytes(sealed('{\n  "holdfast": "9.0", "format": 2\n}'))
    told_of_it = f"The checkpoint {STEP_2} has format 2, and this version of Holdfast reads formats up to 1."
    assert told("show", STEP_2)[2].startswith(f"holdfast: {told_of_it}")
    assert told("verify", "run")[1].startswith(told_of_it)
    assert told_of_it.rstrip(".") in told("list", "run")[1]
    assert told("show", "run")[1].startswith(STEP_1)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission_is_told(told: Told) -> None:
    os.chmod(STEP_2, 0)
    try:
        assert told("show", STEP_2)[2].startswith(f"holdfast: {STEP_2} cannot be read: Permission denied. Look at its")
    finally:
        os.chmod(STEP_2, 0o755)


def test_help_of_each_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {verb}" in shown for verb in ("list", "verify", "show", "export", "diff"))
    assert main(["checkpoint"]) == 2
    for verb in ("list", "verify", "show", "export", "diff"):
        with pytest.raises(SystemExit):
            main(["checkpoint", verb, "--help"])
