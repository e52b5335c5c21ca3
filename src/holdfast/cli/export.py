"""`holdfast export RUN|CHECKPOINT|FILE --to DIR`: a model as files that can be served, checked to answer as before."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.cli.options import Parser
from holdfast.errors import ConfigError, ModelError, NotACheckpoint, UsageError

if TYPE_CHECKING:
    from holdfast.checkpoint.content import Script

__all__ = ["main"]

_FILES = (".onnx", ".skops")
#: What would make the script a rank of another launcher's world.
_OF_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


class _Origin(NamedTuple):
    """What a run or a checkpoint says of its model."""

    weights: Path
    script: Script
    cwd: Path
    seed: int
    source: dict[str, Any]
    name: str


def main(argv: Sequence[str]) -> int:
    """Export; say where it is, how large and how fast."""
    options = _options(argv)
    to = Path(options.to)
    name = options.name or _name_before(to)
    if _is_file(options.what):
        return _file(options, to, name)
    origin = _origin(Path(options.what))
    _check_script(origin, changed_ok=options.changed_script == "ok")
    return _run(options, origin, to, name)


def _options(argv: Sequence[str]) -> argparse.Namespace:
    it = Parser(
        "export", "Make a model that can be served: weights, how it is computed, and what goes in and comes out.",
        "For a run the script is run from its top until it first calls its model. Examples:\n"
        "  holdfast export runs/mine --to models/digits --classes 0,1,2,3,4,5,6,7,8,9\n"
        "  holdfast export model.py:Model --to models/mine --example request.json",
    )  # fmt: skip
    it.add_argument("what", metavar="WHAT", help="a run, a checkpoint, FILE.onnx, FILE.skops, or FILE.py:Class")
    it.add_argument("--to", metavar="DIR", required=True, help="the model's folder; it becomes the next version there")
    it.add_argument("--name", help="what clients call it (default: as before in DIR, or the run's or file's name)")
    it.add_argument("--classes", metavar="A,B,C", default="", help="what the entries of its output stand for")
    it.add_argument("--model", metavar="N", default="", help="which one, where a script prepares several")
    it.add_argument("--module", metavar="SPEC", default="", help="not traced: package.module:Class or FILE.py:Class")
    it.add_argument("--args", metavar="JSON", default="", help="the arguments of that class: an object or a list")
    it.add_argument("--example", metavar="FILE", default="", help="a request in JSON: what goes in")
    it.add_argument(
        "--variable", metavar="INPUT:N", action="append", default=[],
        help="a dimension of an input, besides the first, that may have any size; again for more",
    )  # fmt: skip
    it.add_argument("--unbatched", action="store_true", help="the first dimension does not count items")
    it.add_argument(
        "--with", metavar="FILE", action="append", default=[], dest="extra", help="a file that a Python class reads"
    )
    it.add_argument("--changed-script", metavar="ok", help="the script is another one than the run was started with")
    it.add_argument("--json", action="store_true", help="as JSON, stable enough to script against")
    options = it.parse(argv)
    if options.changed_script not in (None, "ok"):
        raise ConfigError("changed-script", options.changed_script, 'can only be "ok"', source="--changed-script")
    if options.args and not options.module:
        raise UsageError("--args goes with --module: they are the arguments of that class.")
    return options


def _is_file(what: str) -> bool:
    path, _, name = what.rpartition(":")
    return what.endswith(_FILES) or (path.endswith(".py") and name.isidentifier()) or (
        not os.path.isdir(what) and os.path.isfile(what)
    )  # fmt: skip


def _name_before(to: Path) -> str:
    """What the model in that folder is called already."""
    from holdfast.model.library import versions

    return next((found.manifest.name for found in versions(to) if found.manifest is not None), "")


# ---------------------------------------------------------------- files


def _file(options: argparse.Namespace, to: Path, name: str) -> int:
    from holdfast.model.example import decode_example
    from holdfast.model.export import write_checked

    example = None
    if options.example:
        example = decode_example(_read(Path(options.example)), options.example)
    with contextlib.redirect_stdout(sys.stderr):  # what the user's code prints is not the result
        draft, given = _draft(options, name, example)
        if options.classes:
            import msgspec

            draft = msgspec.structs.replace(draft, classes=tuple(options.classes.split(",")))
        import torch

        torch.set_num_threads(1)
        exported = write_checked(to, draft, given)
    from holdfast.train.weights.exported_model import told

    _tell(options, to, exported.version.path, told(exported), exported[1:])
    return 0


def _draft(options: argparse.Namespace, name: str, example: Any) -> Any:
    from holdfast.model.manifest import model_name

    what = options.what
    if what.endswith(".onnx"):
        from holdfast.model.kinds import onnx_file

        return onnx_file.draft(_read(Path(what)), what, name or model_name(Path(what).stem), example)
    if what.endswith(".skops"):
        from holdfast.model.kinds import sklearn_estimator

        return sklearn_estimator.draft(_read(Path(what)), what, name or model_name(Path(what).stem), example)
    if ":" not in what:
        raise UsageError(
            f"{what} is a file of another kind. A model is exported from a run, a checkpoint, FILE.onnx, FILE.skops "
            "(skops.io.dump writes an estimator so; pickles are not read, as that would run what is in them), or "
            "FILE.py:Class."
        )
    from holdfast.model.kinds import python_class
    from holdfast.model.user_code import parse_class

    where = parse_class(what)
    name = name or model_name(where.file.stem if where.file else where.name)
    extra = [Path(file) for file in options.extra]
    return python_class.draft(where, name, example, variable=_variable(options.variable), extra=extra)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}).") from None


# ---------------------------------------------------------------- runs


def _origin(path: Path) -> _Origin:
    """Where weights and script are. Raises NotACheckpoint, CheckpointError, NoWeights, UsageError."""
    from holdfast.checkpoint.content import Script
    from holdfast.checkpoint.forms.weights import FINAL, locate_weights
    from holdfast.checkpoint.reader import found, open_checkpoint
    from holdfast.model.manifest import model_name
    from holdfast.model.publishing import source_of
    from holdfast.observe.directory import CHECKPOINTS, read_json

    weights, passed_over = locate_weights(path)
    for sentence in passed_over:
        print(f"warning: {sentence}", file=sys.stderr)
    directory = weights.parent if weights.name == FINAL else weights.resolve().parent.parent
    record, summary = read_json(directory / "run.json"), read_json(directory / "summary.json")
    config = record.get("config") or {}
    if weights.is_dir():
        manifest = open_checkpoint(weights).manifest
        script, seed = manifest.script, manifest.facts.seed
        source = source_of(weights)
    elif config.get("script"):
        usable = [one.manifest for one in found(directory / CHECKPOINTS) if one.manifest is not None]
        sha256 = record.get("script_sha256") or (usable[0].script.sha256 if usable else "")
        script, seed = Script(config["script"], tuple(config.get("args") or ()), sha256), summary.get("seed") or 0
        source = {
            "run": record.get("run", ""), "step": summary.get("steps"), "weights_sha256": summary.get("weights_sha256"),
            "script": {"path": script.path, "sha256": sha256},
        }  # fmt: skip
    else:
        raise NotACheckpoint(path, "it does not say which script has trained it")
    cwd = Path(record.get("cwd") or ".")
    cwd = cwd if cwd.is_dir() else Path()
    return _Origin(weights.resolve(), script, cwd, seed, source, model_name(directory.name))


def _check_script(origin: _Origin, *, changed_ok: bool) -> None:
    """Refuse another script than the run had, as --resume does."""
    from holdfast.cli.launch.resumption import hash_of

    script = origin.cwd / origin.script.path
    now = hash_of(str(script))
    if not now:
        raise UsageError(
            f"{script}, the script of this run, cannot be read, and it says how the model is built. Put it back, or "
            "call run.export(model, example) in it."
        )
    if origin.script.sha256 and now != origin.script.sha256 and not changed_ok:
        raise UsageError(
            f"{script} is not the script any more that the run was started with: its SHA-256 is {now[:12]}, and was "
            f"{origin.script.sha256[:12]}. Put that one back; or, if it still builds the same model, add "
            "--changed-script ok."
        )


def _run(options: argparse.Namespace, origin: _Origin, to: Path, name: str) -> int:
    """Have the script followed in a process of its own: it is the user's code, and needs torch."""
    request = {
        "script": origin.script.path, "args": origin.script.args, "seed": origin.seed, "weights": str(origin.weights),
        "to": str(to.absolute()), "model": options.model,
        "example": str(Path(options.example).absolute()) if options.example else "",
        "options": {
            "name": name or origin.name, "classes": options.classes.split(",") if options.classes else [],
            "variable": _variable(options.variable), "batched": not options.unbatched, "source": origin.source,
            "module": _module(options.module), "arguments": _arguments(options.args),
        },
    }  # fmt: skip
    environment = {key: value for key, value in os.environ.items() if key not in _OF_LAUNCHERS}
    with tempfile.TemporaryDirectory(prefix="holdfast-export-") as folder:
        file = Path(folder, "request.json")
        file.write_text(json.dumps(request))
        done = subprocess.run(
            [sys.executable, "-m", "holdfast.train.capture", str(file)], cwd=origin.cwd, env=environment,
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        if done.returncode:
            if done.returncode < 0:
                raise ModelError(
                    f"The process that ran {origin.script.path} to see how its model is called was ended by signal "
                    f"{-done.returncode}. Run the script alone, with python, to see."
                )
            return done.returncode
        result = json.loads(file.with_name(file.name + ".result").read_bytes())
    timed = [result[key] for key in ("difference", "load_seconds", "one_seconds", "many_seconds")]
    _tell(options, to, Path(result["path"]), result["line"], timed)
    return 0


def _variable(words: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """`tokens:1` says that dimension 1 of `tokens` may have any size."""
    found: dict[str, tuple[int, ...]] = {}
    for word in words:
        name, _, number = word.rpartition(":")
        if not name or not number.isdigit():
            raise UsageError(f"--variable {word}: write INPUT:N, such as tokens:1; dimensions count from 0.")
        found[name] = (*found.get(name, ()), int(number))
    return found


def _module(text: str) -> str:
    """Of a class in a file the path as the other process sees it."""
    if not text:
        return ""
    from holdfast.model.user_code import parse_class

    where = parse_class(text)
    return f"{where.file.absolute()}:{where.name}" if where.file else text


def _arguments(text: str) -> Any:
    try:
        value = json.loads(text) if text else None
    except ValueError as error:
        raise UsageError(f"--args {text}: is not JSON ({error}).") from None
    if value is not None and not isinstance(value, (dict, list)):
        raise UsageError(f"--args {text}: write an object of arguments by name, or a list of them.")
    return value


# ---------------------------------------------------------------- what is said


def _tell(options: argparse.Namespace, to: Path, path: Path, line: str, timed: Sequence[float | None]) -> None:
    from holdfast.model.library import version_at

    shown = to / path.name
    if not options.json:
        print(line.replace(str(path), str(shown)))
        return
    manifest = version_at(path).manifest
    names = ("largest_difference", "load_seconds", "seconds_for_one", "seconds_for_32")
    print(json.dumps({
        "path": str(shown), "name": manifest.name, "version": manifest.version, "kind": manifest.kind,
        "platform": manifest.platform, "bytes": manifest.size, "source": manifest.source,
        **dict(zip(names, timed, strict=True)),
    }, indent=2))  # fmt: skip
