"""Run the benchmarks one after the other, print their tables, keep their numbers.

    python -m benchmarks [--only NAME ...] [--quick] [--repeats N] [--json FILE]

Each benchmark is a module with `measure(repeats, quick) -> Result`. Its numbers go to
benchmarks/results/NAME.json; those of a `--quick` run, which only shows that everything works, do not.
The exit status is 1 when a target was missed or a check failed in a full run.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":  # started as a file, by `holdfast bench`: the package is the directory above
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.report import Result, machine

#: In the order of the documentation; the value is how many rounds a full run makes.
BENCHMARKS = {
    "all_reduce": 7,
    "training": 5,
    "overhead": 9,
    "loops": 5,
    "verify": 7,
    "checkpoints": 3,
    "slow_worker": 3,
    "pause": 12,
    "memory": 1,
    "leftovers": 50,
    "store": 7,
    "modes": 3,
    "servers": 5,
    "hosts_all_reduce": 7,
    "hosts_training": 5,
    "hosts_pause": 5,
    "failover": 5,
    "hosts_strangers": 3,
    "tls": 7,
    "on_ray": 5,
    "serving.throughput": 5,
    "serving.latency": 5,
    "serving.overload": 5,
    "serving.swaps": 50,
    "serving.losses": 12,
}
QUICK = {
    "all_reduce": 2, "training": 1, "overhead": 1, "loops": 1, "verify": 1, "checkpoints": 1, "slow_worker": 1,
    "pause": 2, "memory": 1, "leftovers": 6, "store": 2, "modes": 1, "servers": 1, "hosts_all_reduce": 2,
    "hosts_training": 1, "hosts_pause": 1, "failover": 1, "hosts_strangers": 1, "tls": 2, "on_ray": 1,
    "serving.throughput": 1, "serving.latency": 1, "serving.overload": 1, "serving.swaps": 6, "serving.losses": 3,
}  # fmt: skip
RESULTS = Path(__file__).resolve().parent / "results"


def main(argv: Sequence[str]) -> int:
    """Run what was asked for; 1 when a target was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Holdfast side by side with its peers.")
    names = ", ".join(BENCHMARKS)
    parser.add_argument("--only", action="append", choices=sorted(BENCHMARKS), metavar="NAME", help=names)
    parser.add_argument("--quick", action="store_true", help="show that everything works; the numbers mean little")
    told = "rounds (for pause, leftovers and serving.losses: kills; for serving.swaps: versions)"
    parser.add_argument("--repeats", type=int, metavar="N", help=told)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results into one file, too")
    options = parser.parse_args(argv)
    facts, results = machine(), []
    print(", ".join(f"{name} {value}" for name, value in facts.items()), flush=True)
    for name, full in BENCHMARKS.items():
        if options.only and name not in options.only:
            continue
        repeats = options.repeats or (QUICK[name] if options.quick else full)
        started = time.monotonic()
        result: Result = importlib.import_module(f"benchmarks.{name}").measure(repeats, options.quick)
        results.append(result)
        print(f"\n{result.table()}\n({time.monotonic() - started:.0f} s)", flush=True)
        if not options.quick:
            _write(RESULTS / f"{name}.json", {"machine": facts, **result.plain()})
    if options.json:
        _write(options.json, {"machine": facts, "quick": options.quick, "results": [r.plain() for r in results]})
    missed = [f"{result.name}: {what}" for result in results for what in result.missed()]
    print("\n" + ("all targets met" if not missed else "missed: " + "; ".join(missed)), flush=True)
    return 1 if missed and not options.quick else 0


def _write(path: Path, tree: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(tree, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
