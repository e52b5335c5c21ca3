"""Report how long the source files are: `python tools/file_sizes.py [DIRECTORY...]`.

A report, not a limit: above 300 lines a file is named, above 400 the question is whether it is two nouns.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

LONG, VERY_LONG = 300, 400


def main(directories: list[str]) -> None:
    for directory in directories or ["src"]:
        sizes = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in Path(directory).rglob("*.py")}
        if not sizes:
            print(f"{directory}: no Python files")
            continue
        middle = statistics.median(sizes.values())
        print(f"{directory}: {len(sizes)} files, {sum(sizes.values())} lines, median {middle:.0f}")
        for path, lines in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
            if lines > LONG:
                print(f"  {lines:5d}  {path}{'   is this two nouns?' if lines > VERY_LONG else ''}")


if __name__ == "__main__":
    main(sys.argv[1:])
