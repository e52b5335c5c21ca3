"""`holdfast checkpoint VERB PATH`: what a run has saved, whether it is whole, and taking the model out of it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.cli.options import Parser, nearest
from holdfast.errors import CheckpointError, UsageError

if TYPE_CHECKING:
    from holdfast.checkpoint.reader import Checkpoint

__all__ = ["main"]

_PATH = "a run's directory, its folder `checkpoints`, or one checkpoint"
_VERBS = {
    "list": "the checkpoints of a run, the newest first",
    "verify": "read all of them, and say which are whole",
    "show": "what one is: facts, script, configuration, tensors",
    "export": "the model's state_dict as safetensors, for torch.load, or as torch's DCP",
    "diff": "what differs between two",
}


def main(argv: Sequence[str]) -> int:
    """Do what the verb says."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_help())
        return 0 if argv else UsageError.exit_code
    if argv[0] not in _VERBS:
        raise UsageError(
            f"{argv[0]}: holdfast checkpoint has no such command.{nearest(argv[0], list(_VERBS))} "
            "`holdfast checkpoint --help`."
        )
    act: dict[str, Callable[[Sequence[str]], int]] = {
        "list": _list, "verify": _verify, "show": _show, "export": _export, "diff": _diff,
    }  # fmt: skip
    return act[argv[0]](argv[1:])


def _help() -> str:
    verbs = "\n".join(f"  {name:<8} {what}" for name, what in _VERBS.items())
    return (
        f"usage: holdfast checkpoint COMMAND PATH [OPTIONS]\n\n{verbs}\n\n"
        f"PATH is {_PATH}; where one is needed, the newest\nthat is whole. `holdfast checkpoint COMMAND "
        "--help` shows a command's options."
    )


def _parser(verb: str, *paths: str) -> Parser:
    it = Parser(f"checkpoint {verb}", _VERBS[verb][0].upper() + _VERBS[verb][1:] + ".")
    for path in paths or ("path",):
        it.add_argument(path, metavar=path.upper(), help=_PATH)
    it.add_argument("--json", action="store_true", help="as JSON, stable enough to script against")
    return it


def _list(argv: Sequence[str]) -> int:
    options = _parser("list").parse(argv)
    from holdfast.checkpoint.location import locate
    from holdfast.cli import checkpoint_report as report

    location = locate(Path(options.path))
    listed = location.listed()
    if options.json:
        _print_json([report.listed(item) for item in listed])
    else:
        print(report.table(location.one or location.root, listed, time.time()))
    return 0


def _verify(argv: Sequence[str]) -> int:
    options = _parser("verify").parse(argv)
    from holdfast.checkpoint.forms.export import weights_sha256
    from holdfast.checkpoint.location import locate
    from holdfast.checkpoint.reader import open_checkpoint
    from holdfast.cli import checkpoint_report as report

    location = locate(Path(options.path))
    results: list[dict[str, Any]] = []
    for item in location.listed():
        began, notes, error, weights = time.monotonic(), list[str](), item.why, ""
        if item.manifest is not None:
            try:
                checkpoint = open_checkpoint(item.path)
                notes, weights = checkpoint.verify(), weights_sha256(checkpoint)
            except CheckpointError as why:
                error = str(why)
        told = {
            "path": str(item.path), "step": item.step, "whole": not error, "error": error, "notes": notes,
            "weights_sha256": weights,
        }  # fmt: skip
        results.append(told)
        if not options.json:
            print(report.verified(item, told, time.monotonic() - began))
    if options.json:
        _print_json(results)
    elif not results:
        print(f"There is no checkpoint in {location.root} yet.")
    return 0 if all(result["whole"] for result in results) else CheckpointError.exit_code


def _show(argv: Sequence[str]) -> int:
    options = _parser("show").parse(argv)
    from holdfast.checkpoint.location import locate
    from holdfast.checkpoint.reader import open_checkpoint
    from holdfast.cli import checkpoint_report as report

    # Only its manifest is read: what a checkpoint is can be told in no time, however large it is.
    location = locate(Path(options.path))
    listed = location.listed()
    one = location.one or next((item.path for item in listed if item.manifest is not None), None)
    if one is None:
        none = f"There is no checkpoint in {location.root} yet."
        raise CheckpointError(" ".join(item.why for item in listed) or none)
    checkpoint = open_checkpoint(one)
    if options.json:
        _print_json(report.shown(checkpoint))
    else:
        print(report.page(checkpoint, time.time()))
    return 0


def _export(argv: Sequence[str]) -> int:
    it = _parser("export")
    it.add_argument("--to", metavar="NAME", required=True, help="a new NAME.safetensors, NAME.pt, or NAME/ for DCP")
    it.add_argument("--format", help="safetensors, pt or dcp, where the name does not say it")
    options = it.parse(argv)
    from holdfast.checkpoint.forms.export import FORMATS, export, format_of
    from holdfast.cli import checkpoint_report as report

    if options.format is not None and options.format not in FORMATS:
        raise UsageError(f"--format {options.format}: there is {', '.join(FORMATS)}.{nearest(options.format, FORMATS)}")
    kind = options.format or format_of(options.to)
    checkpoint = _one(options.path)
    to = Path(options.to)
    entries = export(checkpoint, to, kind)
    step, size = checkpoint.manifest.facts.step, report.weight(to)
    if options.json:
        _print_json({"from": str(checkpoint.path), "to": str(to), "format": kind, "step": step, "entries": entries,
                     "bytes": size})  # fmt: skip
    else:
        print(f"{to}: {entries} entries of step {step}, {report.short_size(size)}, from {checkpoint.path}")
    return 0


def _diff(argv: Sequence[str]) -> int:
    options = _parser("diff", "first", "second").parse(argv)
    from holdfast.checkpoint.forms.comparison import compare
    from holdfast.cli import checkpoint_report as report

    first, second = _one(options.first), _one(options.second)
    comparison = compare(first, second)
    if options.json:
        _print_json(report.compared(first, second, comparison))
    else:
        print(report.differences(first, second, comparison))
    return 1 if comparison.model else 0


def _one(path: str) -> Checkpoint:
    """The checkpoint that is meant, proven whole; newer ones that are not are told."""
    from holdfast.checkpoint.location import locate

    checkpoint, passed_over = locate(Path(path)).newest()
    for sentence in passed_over:
        print(f"warning: {sentence}", file=sys.stderr)
    return checkpoint


def _print_json(value: Any) -> None:
    from holdfast.cli.checkpoint_report import plain

    print(json.dumps(plain(value), indent=2))
