"""`holdfast predict MODEL --data SOURCE --out PATH`: what a model says of every row of a data set."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.cli.options import Parser
from holdfast.errors import UsageError
from holdfast.quantities import Duration

if TYPE_CHECKING:
    from holdfast.serve.predict.job import Outcome, PredictOptions

__all__ = ["main"]

_EPILOG = """\
SOURCE is a file (.npy, .npz, .csv, .tsv, .jsonl, .parquet) or a data set by its name (digits/test, fashion-mnist).

    holdfast predict models/mine --data new.parquet --out labels.parquet --workers 2

Whatever ends it, the same command goes on where it was, and the file is the same as if nothing had happened."""


def main(argv: Sequence[str]) -> int:
    """Predict, until all is done or a signal ends it."""
    given = _parser().parse(argv)
    options = _options(given)
    import asyncio

    from holdfast.observe.screen import Screen
    from holdfast.serve.predict.job import PredictJob

    with asyncio.Runner() as runner:
        outcome = runner.run(PredictJob(options, Screen(sys.stderr, sys.stdout)).run())
    if given.json:
        print(_json(options, outcome))
    _tell(options, outcome)
    return 128 + outcome.stopped if outcome.stopped else 0


def _tell(options: PredictOptions, outcome: Outcome) -> None:
    name = options.out
    if outcome.stopped:
        what = "Ctrl-C" if outcome.stopped == signal.SIGINT else signal.Signals(outcome.stopped).name
        done = outcome.written + outcome.bad
        told = (
            f"{what}: {done:,} of {outcome.rows:,} rows are done and kept in {name}.progress; run the same command "
            "again to go on"
        )
    else:
        now = outcome.written + outcome.bad - outcome.resumed
        rate = f" ({now / outcome.computing:,.0f} rows/s)" if now and outcome.computing else ""
        told = f"{outcome.written:,} rows in {outcome.seconds:.1f} s{rate}: {name}, {outcome.bytes:,} bytes"
        if outcome.bad:
            told += f"; {outcome.bad:,} rows are left out, and listed in {name}.bad.jsonl"
    print(f"holdfast: {told}", file=sys.stderr, flush=True)


def _json(options: PredictOptions, outcome: Outcome) -> str:
    import msgspec

    now = outcome.written + outcome.bad - outcome.resumed
    rate = now / outcome.computing if outcome.computing else 0.0
    told = {"out": str(options.out), **outcome._asdict(), "rows_per_second": rate}
    return msgspec.json.encode(told).decode()


def _parser() -> Parser:
    it = Parser("predict", "Have a model predict every row of a data set, each exactly once, in order.", _EPILOG)
    it.add_argument("model", type=Path, metavar="MODEL", help="a model's folder, or one version in it")
    it.add_argument("--data", required=True, metavar="SOURCE", help="a file, or a data set by its name")
    it.add_argument("--out", type=Path, required=True, metavar="PATH", help="the file that is made")
    it.add_argument("--format", default="", help="csv, jsonl or parquet; by default the ending of --out says it")
    it.add_argument("--columns", action="append", default=[], metavar="INPUT=COLUMN,...", help="which columns are "
                    "which input, * and ? matching several; by default by name, or what fits the only one")
    it.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), metavar="N",
                    help="processes that compute (default: one per CPU)")  # fmt: skip
    it.add_argument("--batch", type=int, default=0, metavar="N", help="rows computed together (default: at most 512, "
                    "fewer where rows are large)")  # fmt: skip
    it.add_argument("--top", type=int, default=1, metavar="K", help="of a model with classes, write the K likeliest "
                    "(default 1; 0 for none)")  # fmt: skip
    it.add_argument("--index", action="store_true", help="write the number of each row, too")
    it.add_argument("--bad", choices=("stop", "skip"), default="stop", help="what becomes of a row that the model "
                    "fails on: the end (default), or it is left out and listed in PATH.bad.jsonl")  # fmt: skip
    it.add_argument("--fresh", action="store_true", help="begin again, and replace the file that is there")
    it.add_argument("--threads", type=int, default=1, metavar="T", help="of torch, in each process (default 1)")
    it.add_argument("--hang", default="60s", metavar="TIME", help="after which a batch is given up (default 60s)")
    it.add_argument("--json", action="store_true", help="print how it ended as JSON")
    return it


def _options(given: argparse.Namespace) -> PredictOptions:
    from holdfast.serve.predict.job import PredictOptions

    for name, least in (("workers", 1), ("threads", 1), ("batch", 0), ("top", 0)):
        if getattr(given, name) < least:
            raise UsageError(f"--{name} {getattr(given, name)}: must be at least {least}.")
    return PredictOptions(
        model=given.model, data=given.data, out=given.out, workers=given.workers, batch=given.batch,
        format=given.format, columns=tuple(given.columns), top=given.top, numbered=given.index,
        skip=given.bad == "skip", fresh=given.fresh, threads=given.threads, hang=Duration(given.hang).seconds,
    )  # fmt: skip
