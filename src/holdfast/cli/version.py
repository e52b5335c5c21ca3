"""`holdfast version`."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.cli.options import Parser

__all__ = ["installed", "main"]


def installed(package: str) -> str:
    """A package's version without importing it; empty when it is not installed."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def main(argv: Sequence[str]) -> int:
    """Print the version."""
    Parser("version", "Print the version.").parse(argv)
    print(f"holdfast {installed('holdfast') or '(not installed)'}")
    return 0
