"""`holdfast bench`: the side-by-side benchmarks, which live in a checkout and not in the package."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast.errors import UsageError

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Hand all arguments to benchmarks/run.py."""
    here = Path(__file__).resolve().parents[3]
    for place in (Path.cwd(), here):
        script = place / "benchmarks" / "run.py"
        if script.is_file():
            return subprocess.run([sys.executable, str(script), *argv], check=False).returncode
    raise UsageError(
        "The benchmarks are not part of the installed package: they run against other frameworks and bring their own "
        "scripts. Use a checkout of the repository (benchmarks/run.py), or `make bench` there."
    )
