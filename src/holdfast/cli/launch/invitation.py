"""How other machines are let into a run: the secret that they need, where they find the run, and what to type there.

    DIR/token         the secret, readable by its owner only
    DIR/credentials   with --tls: the same, with a certificate
    DIR/address       where the run listens

All of them go when the run ends.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.config.run_config import RunConfig
from holdfast.errors import ResourceError
from holdfast.transport.auth import token as tokens
from holdfast.transport.auth.credentials import secrets_for
from holdfast.transport.endpoint import listening_on, parse
from holdfast.transport.stream import name_of

__all__ = ["Invitation", "near"]


class Invitation:
    """Made before anything is started, so that what cannot be is said at once. Raises UsageError."""

    def __init__(self, config: RunConfig, run: str) -> None:
        host, port = parse(config.listen, port=0)
        self.bind = listening_on(host), port
        self._given = config.token_file
        self.credentials, self.theirs = secrets_for(run, config.token_file, config.tls)

    def write(self, directory: Path, addresses: list[str], port: int) -> str:
        """Keep it in the run's directory; the sentence that invites. `addresses` are this machine's, the best first."""
        place = name_of((addresses[0], port))
        try:
            if self.theirs.tls is not None:
                self.theirs.write(directory / "credentials")
                how = f"--credentials {near(directory)}/credentials"
            elif self._given:
                how = f"--token-file {self._given}"
            else:
                tokens.write(directory / "token", self.theirs.token)
                how = f"--token-file {near(directory)}/token"
            # Last, and whole: who waits for it finds the secret as well.
            (directory / ".address.new").write_text(place + "\n")
            (directory / ".address.new").rename(directory / "address")
        except OSError as error:
            raise ResourceError(
                f"{directory} does not take what other machines need to join: {error.strerror}. Use another --dir."
            ) from None
        return f"other machines join with: holdfast join {place} {how} (copy that file there; whoever has it can join)"


def near(path: Path) -> str:
    """A path as people here would write it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
