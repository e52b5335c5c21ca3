"""Credentials: what a machine needs to be let in: the token, and with TLS a certificate.

With TLS they travel in one file, `DIR/credentials`, that only its owner can read.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.errors import UsageError
from holdfast.transport.auth import token
from holdfast.transport.auth.tls import Material, client_context, server_context

__all__ = ["Credentials", "Secrets", "secrets_for"]


class _CredentialsFile(msgspec.Struct, forbid_unknown_fields=True):
    token: str
    tls: Material | None = None


@dataclass(frozen=True)
class Credentials:
    """The token, and the material for TLS where the run uses it. Neither is ever shown."""

    token: str = field(repr=False)
    tls: Material | None = field(default=None, repr=False)

    @cached_property
    def server(self) -> ssl.SSLContext | None:
        """How to listen; None: without TLS."""
        return server_context(self.tls) if self.tls else None

    @cached_property
    def client(self) -> ssl.SSLContext | None:
        """How to call; None: without TLS."""
        return client_context(self.tls) if self.tls else None

    @property
    def text(self) -> str:
        """What `parse` takes."""
        return msgspec.json.encode(_CredentialsFile(self.token, self.tls)).decode("ascii") + "\n"

    def write(self, path: Path) -> None:
        """Keep them in a new file that only its owner can read."""
        token.write_private(path, self.text)

    @classmethod
    def read(cls, path: Path) -> Credentials:
        """What `write` wrote, or a plain token file. Raises UsageError."""
        return cls.parse(token.read_private(path), f"the file {path}")

    @classmethod
    def parse(cls, text: str, source: str) -> Credentials:
        """What a file holds, or a plain token, come by some other way. Raises UsageError, and shows none of it."""
        if not text.lstrip().startswith("{"):
            return cls(token.check(text, source))
        try:
            found = msgspec.json.decode(text, type=_CredentialsFile)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise UsageError(
                f"The credentials from {source} cannot be used: {error}. Copy the file `credentials` from the run's "
                "directory again."
            ) from None
        return cls(token.check(found.token, source), found.tls)


class Secrets(NamedTuple):
    """What lets machines in: whoever listens shows `ours`, who comes `theirs`. The same where a file had it all."""

    ours: Credentials
    theirs: Credentials


def secrets_for(name: str, file: Path | str | None, tls: bool) -> Secrets:
    """Those of a file (a token, or credentials with certificates); what is missing is made. Raises UsageError."""
    given = Credentials.read(Path(file)) if file else Credentials(token.make())
    if given.tls is not None and not tls:
        raise UsageError(f"{file} has certificates, but TLS was not asked for. Use --tls (tls=True), or a plain token.")
    if given.tls is not None or not tls:
        return Secrets(given, given)
    from holdfast.transport.auth.tls import Authority

    authority = Authority(name)
    return Secrets(*(Credentials(given.token, authority.issue(whose)) for whose in ("who listens", "who comes")))
