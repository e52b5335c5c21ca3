"""From a run to a model on disk: by its script that is followed to its first call, and by run.export in the script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest

from holdfast.checkpoint.forms.weights import open_weights
from holdfast.model.library import open_version
from holdfast.model.loading import load
from holdfast.model.publishing import publish_weights
from tests.process.harness import SCRIPTS, Launch, environment, holdfast

pytestmark = [pytest.mark.process, pytest.mark.sharing]
WARM, EXPORTING, GAN = SCRIPTS / "warm.py", SCRIPTS / "exporting.py", SCRIPTS / "gan.py"
X = numpy.random.default_rng(0).standard_normal((7, 6)).astype("f4")


def ran(tmp_path: Path, script: Path, *options: object, args: str = "", dir: str = "run", code: int = 0) -> Launch:
    """A run that has ended."""
    with Launch(tmp_path, script, *options, args=args, dir=dir) as run:
        run._traced = False
        assert run.end() == code, run.err
    return run


def export(*words: object, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = holdfast("export", *words, cwd=cwd)
    assert done.returncode == code, done.stderr
    assert not list(Path(cwd).glob("*/.new-*"))
    return done


def same_weights(version: Path, run: Path) -> bool:
    """Does a version have the weights that the run ended with?"""
    one, other = open_weights(version / "weights.safetensors"), open_weights(run / "model.safetensors")
    return one.kinds == other.kinds and all(one.read(name) == other.read(name) for name in one.kinds)


def by_hand(weights: Path, x: Any) -> Any:
    """What the net of `exporting.py` answers with these weights, without torch and without what was exported."""
    stored = open_weights(weights)
    w = {name: numpy.frombuffer(stored.read(name), "<f4").reshape(kind.shape) for name, kind in stored.kinds.items()
         if kind.dtype == "float32"}  # fmt: skip
    hidden = x @ w["body.weight"].T + w["body.bias"]
    hidden = (hidden - w["norm.running_mean"]) / numpy.sqrt(w["norm.running_var"] + 1e-5)
    hidden = numpy.maximum(hidden * w["norm.weight"] + w["norm.bias"], 0)
    return hidden @ w["head.weight"].T + w["head.bias"]


def test_a_run_its_checkpoint_and_new_weights(tmp_path: Path) -> None:
    ran(tmp_path, EXPORTING, "--workers", 2, args="--epochs 3")
    script = EXPORTING
    done = export("run", "--to", "models/net", "--classes", "a,b,c", cwd=tmp_path)
    assert done.stdout.startswith("model: models/net/1, program, ") and "it answers as before" in done.stdout
    assert "what a script prints" not in done.stdout
    told = json.loads(export("run/checkpoints", "--to", "models/net", "--json", cwd=tmp_path).stdout)
    assert (told["version"], told["kind"], told["name"], told["source"]["step"]) == (2, "program", "run", 9)
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    for number in (1, 2):
        version = tmp_path / f"models/net/{number}"
        manifest = open_version(version)
        assert manifest.source["weights_sha256"] == summary["weights_sha256"]
        assert manifest.source["script"]["path"] == str(script) and len(manifest.source["script"]["sha256"]) == 64
        assert same_weights(version, tmp_path / "run")
        assert manifest.signature.inputs[0].shape == (-1, 6)
        want = by_hand(tmp_path / "run/model.safetensors", X)
        numpy.testing.assert_allclose(load(version).predict({"x": X})["output"], want, rtol=1e-4, atol=1e-5)
    assert manifest.classes == ()
    assert open_version(tmp_path / "models/net/1").classes == ("a", "b", "c")
    ran(tmp_path, EXPORTING, "--workers", 1, args="--epochs 1", dir="other")
    assert publish_weights(tmp_path / "models/net", tmp_path / "other/checkpoints") == tmp_path / "models/net/3"
    assert same_weights(tmp_path / "models/net/3", tmp_path / "other")
    assert open_version(tmp_path / "models/net").source["step"] == 3
    want = by_hand(tmp_path / "other/model.safetensors", X)
    numpy.testing.assert_allclose(load(tmp_path / "models/net").predict({"x": X})["output"], want, rtol=1e-4, atol=1e-5)


def test_by_the_script_on_two_workers(tmp_path: Path) -> None:
    run = ran(tmp_path, EXPORTING, "--workers", 2, args="--what whole")
    assert f"exported {run.dir / 'model'}" in run.out
    assert "holdfast: model: " in run.out + run.err
    model = load(run.dir / "model")
    assert (model.manifest.version, model.manifest.name, model.manifest.classes) == (1, "run", ("a", "b", "c"))
    assert model.manifest.source["step"] == 6
    assert same_weights(run.dir / "model/1", run.dir)
    want = by_hand(run.dir / "model.safetensors", X)
    numpy.testing.assert_allclose(model.predict({"x": X})["output"], want, rtol=1e-4, atol=1e-5)
    alone = ran(tmp_path, EXPORTING, "--workers", 1, dir="alone")
    assert alone.sha256 == run.sha256  # exporting leaves no trace in what is trained


def test_what_is_around_a_model_and_its_next_weights(tmp_path: Path) -> None:
    ran(tmp_path, EXPORTING, "--workers", 2, args="--what around --to served")
    ran(tmp_path, EXPORTING, "--workers", 1, args="--epochs 1", dir="later")
    publish_weights(tmp_path / "served", tmp_path / "later/checkpoints")
    for number, run in ((1, "run"), (2, "later")):
        scores = numpy.exp(by_hand(tmp_path / run / "model.safetensors", X))
        want = scores / scores.sum(1, keepdims=True)
        answer = load(tmp_path / f"served/{number}").predict({"input": X})["output"]
        numpy.testing.assert_allclose(answer, want, rtol=1e-4, atol=1e-5)


def test_under_plain_python(tmp_path: Path) -> None:
    words = [sys.executable, str(EXPORTING), "--what", "whole"]
    process: dict[str, Any] = {"env": environment(), "cwd": tmp_path, "capture_output": True, "text": True}
    done = subprocess.run(words, **process, check=False, timeout=60)
    assert "UsageError: run.export: this process has no directory of a run" in done.stderr
    done = subprocess.run([*words, "--to", "m"], **process, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert open_version(tmp_path / "m").name == "m"


@pytest.mark.parametrize(
    ("what", "code", "told"),
    [
        ("inside", 2, "run.export was called inside of the loop over the units of step 0, where workers are apart."),
        ("branches", 16, "Branching cannot be exported: torch.export cannot trace it ("),
    ],
)
def test_by_the_script_refused(tmp_path: Path, what: str, code: int, told: str) -> None:
    run = ran(tmp_path, EXPORTING, "--workers", 2, args=f"--what {what} --to m", code=code)
    assert told in run.err + run.out
    assert not list(tmp_path.glob("m/[0-9]*"))


def test_by_its_class(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(EXPORTING.read_text())
    ran(tmp_path, EXPORTING, "--workers", 1)
    export("run", "--to", "m", "--module", "nets.py:Net", cwd=tmp_path)
    (tmp_path / "nets.py").unlink()
    model = load(tmp_path / "m")
    assert model.manifest.kind == "module"
    want = by_hand(tmp_path / "run/model.safetensors", X)
    numpy.testing.assert_allclose(model.predict({"x": X})["output"], want, rtol=1e-4, atol=1e-5)


def test_what_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(EXPORTING.read_text())
    ran(tmp_path, script, "--workers", 1, "--checkpoint", "off", args="--never")
    never = export("run", "--to", "m", cwd=tmp_path, code=16)
    assert "Net cannot be exported: the script trains it without calling it, so what goes in" in never.stderr
    script.write_text(script.read_text() + "\n# changed\n")
    changed = export("run", "--to", "m", cwd=tmp_path, code=2)
    assert "is not the script any more that the run was started with" in changed.stderr
    script.write_text(EXPORTING.read_text().replace("8", "9").replace("net.forward(a) if args.never else ", ""))
    other = export("run", "--to", "m", "--changed-script", "ok", cwd=tmp_path, code=16)
    apart = "body.weight, body.bias, norm.weight, norm.bias, norm.running_mean"
    assert f"Net cannot be exported: {apart} of it is not in {tmp_path / 'run'}" in other.stderr
    script.write_text("raise KeyError('gone')\n")
    fails = export("run", "--to", "m", "--changed-script", "ok", cwd=tmp_path, code=1)
    assert "mine.py raised KeyError before it called its model" in fails.stderr
    script.unlink()
    gone = export("run", "--to", "m", cwd=tmp_path, code=2)
    assert "mine.py, the script of this run, cannot be read, and it says how the model is built" in gone.stderr
    assert not (tmp_path / "m").exists()


def test_an_example_and_several_models(tmp_path: Path) -> None:
    ran(tmp_path, GAN, "--workers", 1, args="anew")
    which = export("run", "--to", "m", cwd=tmp_path, code=2)
    assert "The script prepares 2 models (0: Sequential, 1: Sequential). Say which one: --model NUMBER" in which.stderr
    wrong = export("run", "--to", "m", "--model", "5", cwd=tmp_path, code=2)
    assert "--model 5: there is no such one. The script prepares 0: " in wrong.stderr
    export("run", "--to", "m", "--model", "1", "--name", "critic", cwd=tmp_path)
    model = load(tmp_path / "m")
    assert model.manifest.name == "critic"
    ended = open_weights(tmp_path / "run/model.safetensors")
    own = open_weights(tmp_path / "m/1/weights.safetensors")
    assert own.kinds and all(own.read(name) == ended.read(f"1.{name}") for name in own.kinds)
    assert publish_weights(tmp_path / "m", tmp_path / "run") == tmp_path / "m/2"
    ran(tmp_path, EXPORTING, "--workers", 1, dir="net")
    (tmp_path / "x.json").write_text(json.dumps({"x": X[:3].tolist()}))
    export("net", "--to", "net-model", "--example", "x.json", cwd=tmp_path)
    served = json.loads((tmp_path / "net-model/1/example.json").read_text())
    assert served["inputs"][0]["shape"] == [1, 6]
    numpy.testing.assert_allclose(served["inputs"][0]["data"], X[0], rtol=1e-6)
    (tmp_path / "y.json").write_text('{"y": [[1.0]]}')
    missing = export("net", "--to", "net-model", "--example", "y.json", cwd=tmp_path, code=2)
    assert "y.json has no x, which the script calls its model with." in missing.stderr


def test_a_script_in_another_folder_and_a_launchers_environment(tmp_path: Path) -> None:
    """It runs where the run was started, and is nobody's rank."""
    run = ran(tmp_path, WARM, "--workers", 1, args="--epochs 1")
    (tmp_path / "elsewhere").mkdir()
    more = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "LOCAL_RANK": "1"}
    done = holdfast("export", run.dir, "--to", "m", cwd=tmp_path / "elsewhere", **more)
    assert done.returncode == 0, done.stderr
    assert os.listdir(tmp_path / "elsewhere") == ["m"]
    assert load(tmp_path / "elsewhere/m").manifest.signature.inputs[0].shape == (-1, 1, 28, 28)
