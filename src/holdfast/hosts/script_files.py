"""The script's own files: what a machine that joins must have, and gets where it has not the same.

The script is one file or a few: those that end in .py beside it travel along, because it may import them. A machine
that has all of them, byte for byte, at the same path uses its own; any other gets copies in a place of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from holdfast.config.limits import AGENT
from holdfast.errors import UsageError

__all__ = ["ScriptFiles", "files_with", "has_same", "safe_name"]

_PIECE = 512 * 1024


class ScriptFiles:
    """The files of the script at `script`, read once: what the workers of every host run."""

    def __init__(self, script: str) -> None:
        self.script = Path(script).resolve()
        self._files: dict[str, bytes] = {}
        for path in files_with(self.script):
            try:
                self._files[path.name] = path.read_bytes()
            except OSError:
                if path == self.script:
                    raise
        self.size = sum(map(len, self._files.values()))

    @property
    def digests(self) -> dict[str, str]:
        """File name -> SHA-256 of its content, the script's own first."""
        return {name: _digest(data) for name, data in self._files.items()}

    def refusal(self) -> str:
        """Why these files do not travel; empty where they do."""
        if self.size <= AGENT.script_bytes:
            return ""
        return (
            f"the script and the Python files beside it are {self.size / 2**20:.1f} MiB, and no more than "
            f"{AGENT.script_bytes / 2**20:.0f} MiB are sent along; copy {self.script.parent} to the same path on that "
            "machine"
        )

    def pieces(self) -> Iterator[tuple[str, bytes, bool]]:
        """(name, data, is it the last one), each small enough for one message."""
        parts = [
            (name, data[at : at + _PIECE])
            for name, data in self._files.items()
            for at in range(0, max(len(data), 1), _PIECE)
        ]
        for number, (name, data) in enumerate(parts, 1):
            yield name, data, number == len(parts)


def files_with(script: Path) -> list[Path]:
    """The script's own file, and those beside it that it may import, in order."""
    return [script, *sorted(path for path in script.parent.glob("*.py") if path != script and path.is_file())]


def has_same(script: str, digests: Mapping[str, str]) -> bool:
    """Does this machine have the script and all that travels with it, byte for byte, at this path?"""
    folder = Path(script).parent
    try:
        return all(_digest((folder / name).read_bytes()) == digest for name, digest in digests.items())
    except OSError:
        return False


def safe_name(name: str) -> str:
    """A file name that came from elsewhere, or UsageError: it must be a name and no path."""
    if not name or name in (".", "..") or "/" in name or "\0" in name or len(name.encode()) > 255:
        raise UsageError(f"The coordinator sent a file named {name[:80]!r}, which cannot lie beside a script.")
    return name


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
