"""`holdfast run`: options in, a checked configuration out, then `launcher`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast.cli.options import Parser
from holdfast.config.resolve import Resolved, Sources
from holdfast.errors import UsageError

__all__ = ["configure", "main"]

_EPILOG = """\
What fixes the result is the script, --lanes, --seed and --threads; the number of workers does not.
Options stand before SCRIPT; what stands after it is the script's own.
Ctrl-C ends the run at its next step, with its summary; a second one kills it.
"""


def parser() -> Parser:
    """The options of `holdfast run`."""
    it = Parser("run", "Train SCRIPT on a crew of workers.", _EPILOG)
    it.add_argument("--workers", type=int, metavar="N", help="worker processes (default: one per CPU, at most lanes)")
    it.add_argument("--servers", type=int, metavar="N", help="processes that own the parameters")
    it.add_argument("--replicas", type=int, metavar="R", help="other machines that hold a copy (in exact, all do)")
    it.add_argument("--lanes", type=int, metavar="L", help="lanes of a step (default: the script's, or 4)")
    it.add_argument("--threads", type=int, metavar="T", help="threads per worker (default: the script's, or 1)")
    it.add_argument("--seed", type=int, metavar="K", help="seed of the run (default: the script's, or 0)")
    it.add_argument("--verify", metavar="SHARE", help="of later steps, in which a unit is computed twice; off: of none")
    it.add_argument("--sync", metavar="MODE", help="exact, bounded:S, async, quorum:K or local:H")
    it.add_argument("--checkpoint", metavar="EVERY", help="a time, steps (200steps) or off (default: 5m)")
    it.add_argument("--keep", type=int, metavar="N", help="checkpoints that stay (default: 3)")
    it.add_argument("--checkpoint-to", metavar="URL", help="copy each there, too: s3://bucket/name, file:///...")
    it.add_argument("--notice", metavar="SOURCE", help="a file, a URL or command:WORDS that tells of a preemption")
    it.add_argument("--resume", metavar="DIR", help="go on from the newest checkpoint of that run, or from this one")
    it.add_argument("--changed-script", metavar="ok", help="with --resume: the script may be another one now")
    it.add_argument("--init-from", metavar="PATH", help="weights to begin with: a run, a checkpoint, a file or DCP")
    it.add_argument("--dir", metavar="DIR", help="the run's directory (default: a new one under runs/)")
    it.add_argument("--listen", metavar="ADDRESS[:PORT]", help="let other machines join here: 0.0.0.0 or :: for any")
    it.add_argument("--hosts", type=int, metavar="N", help="wait for so many machines before the first step")
    it.add_argument("--tls", action="store_true", default=None, help="encrypt what goes over the network")
    it.add_argument("--token-file", metavar="FILE", help="the secret that lets machines in (default: a new one)")
    it.add_argument("--on", metavar="ENGINE", help="what starts the machines: local, ray, slurm, kubernetes")
    it.add_argument("--dry-run", action="store_true", help="with a cluster: print what it would be told, and end")
    it.add_argument("--config", metavar="FILE", help="a TOML file with settings")
    it.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help="any setting, e.g. crew.settle=5s")
    it.add_argument("--show-config", action="store_true", help="print every setting with its source, and end")
    it.add_argument("script", metavar="SCRIPT", nargs="?", help="the training script")
    it.add_argument("args", metavar="ARGS", nargs=argparse.REMAINDER, help="the script's own arguments")
    return it


def configure(argv: Sequence[str]) -> tuple[Resolved, argparse.Namespace]:
    """Read the command line, and the file it names."""
    options = parser().parse(argv)
    sources = Sources()
    if options.resume is not None:
        from holdfast.cli.launch.resumption import fetched, settings

        options.resume = fetched(options.resume, options.dir)
        for name, value in settings(options.resume).items():
            sources.flag(name, value, "the run that is resumed")
    if options.config is not None:
        try:
            text = Path(options.config).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--config {options.config} cannot be read: {error}.") from None
        sources.file(options.config, text)
    for text in options.set:
        sources.assign(text)
    crew = ("workers", "servers", "replicas", "lanes", "threads", "seed", "verify", "sync")
    for name in (*crew, "dir", "on", "listen", "hosts", "tls"):
        sources.flag(name, getattr(options, name))
    for name in ("checkpoint", "keep", "notice", "resume"):
        sources.flag(name, getattr(options, name))
    sources.flag("checkpoint_to", options.checkpoint_to, "--checkpoint-to")
    sources.flag("changed_script", options.changed_script, "--changed-script")
    sources.flag("init_from", options.init_from, "--init-from")
    sources.flag("token_file", options.token_file, "--token-file")
    sources.flag("script", options.script, "the command line")
    sources.flag("args", tuple(options.args) or None, "the command line")
    return sources.resolve(), options


def main(argv: Sequence[str]) -> int:
    """Run a script; the exit code."""
    resolved, options = configure(argv)
    if options.show_config:
        print(resolved.show())
        return 0
    ours = {name for action in parser()._actions for name in action.option_strings}
    for word in options.args:
        if (name := word.partition("=")[0]) in ours - {"-h", "--help"}:
            print(f"note: {name} stands after the script, so the script gets it, not holdfast run", file=sys.stderr)
    from holdfast.cli.launch.engine_table import engine

    chosen = engine(resolved.config.on)
    if options.dry_run:
        print(chosen.rehearse(resolved).rstrip("\n"))
        return 0
    return chosen.run(resolved)
