"""Tokens: the one secret of a run. Only a process that holds it may take part.

Made per run from 256 random bits, kept in a file that only its owner can read, and never sent: both sides of
a connection prove that they hold it (`proof`). It is never logged and never on a command line, where
every user of a machine could read it.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from holdfast.errors import UsageError

__all__ = ["SHORTEST", "check", "make", "read_private", "write", "write_private"]

#: Shorter tokens could be guessed by whoever overheard a proof.
SHORTEST = 32
_LONGEST = 1024
_MOST_BYTES = 64 * 1024  # of a file with secrets


def make() -> str:
    """A new token."""
    return secrets.token_urlsafe(32)


def check(token: str, source: str) -> str:
    """The token, or UsageError that tells what is wrong with it and not what it is."""
    token = token.strip()
    if not token:
        raise UsageError(f"The token from {source} is empty. Copy the file `token` from the run's directory.")
    if not token.isascii() or not token.isprintable() or " " in token or len(token) > _LONGEST:
        raise UsageError(
            f"What came from {source} is not a token: that is one word of {SHORTEST} to {_LONGEST} plain characters. "
            "Copy the file `token` from the run's directory."
        )
    if len(token) < SHORTEST:
        raise UsageError(
            f"The token from {source} has {len(token)} characters; at least {SHORTEST} are needed, so that nobody can "
            "guess it. Leave it to `holdfast run` to make one."
        )
    return token


def write(path: Path, token: str) -> None:
    """Keep a token in a new file that only its owner can read."""
    write_private(path, token + "\n")


def write_private(path: Path, text: str) -> None:
    """Write a new file that only its owner can read; it is never there with other rights. Raises FileExistsError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="ascii") as file:
        os.fchmod(fd, 0o600)  # whatever the umask says
        file.write(text)


def read_private(path: Path) -> str:
    """A small secret file, with a token in it at least. Raises UsageError where it is not there, or is not secret."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe that nobody writes must not stop us
    except OSError as error:
        raise UsageError(
            f"The credentials file {path} cannot be read: {error.strerror}. Copy it from the run's directory."
        ) from None
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"The credentials file {path} is not a file. Copy it from the run's directory.")
        if status.st_mode & 0o077:
            raise UsageError(
                f"The credentials file {path} can be read by others (mode {stat.S_IMODE(status.st_mode):04o}). Make it "
                f"yours alone: chmod 600 {path}."
            )
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise UsageError(
            f"The credentials file {path} has more than {_MOST_BYTES} bytes. Copy it from the run's directory again."
        )
    return data.decode("ascii", errors="replace")
