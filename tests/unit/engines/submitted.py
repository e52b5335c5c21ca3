"""Cluster tools that are a few lines of shell, for jobs that are tried without a cluster; and golden files."""

from __future__ import annotations

import os
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"


def golden(name: str, text: str) -> str:
    """What a golden file says. HOLDFAST_GOLDEN=write makes it say `text`: read the difference before you keep it."""
    path = GOLDEN / name
    if os.environ.get("HOLDFAST_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return path.read_text(encoding="utf-8")


def tool(folder: Path, name: str, text: str) -> None:
    """Put a command of this name into `folder`. `$said` is a file for what it has to say."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/bash\nsaid={folder}/{name}.said\n{text}\n")
    path.chmod(0o755)


def said(folder: Path, name: str) -> list[str]:
    """What a tool has written to `$said`, by lines."""
    path = folder / f"{name}.said"
    return path.read_text().splitlines() if path.exists() else []
