"""Who may ask: one place through which every request goes, whichever way it comes and whatever it asks for."""

from __future__ import annotations

import hmac

__all__ = ["Authorization"]

_BEARER = b"bearer "


class Authorization:
    """Compares what a client shows with the token, in a time that does not depend on where they differ.

    >>> Authorization("s" * 32).permits(b"Bearer " + b"s" * 32), Authorization("s" * 32).permits(None)
    (True, False)
    >>> Authorization(None).permits(None)
    True
    """

    def __init__(self, token: str | None) -> None:
        """Without a token everybody may: the server listens to its own machine only then."""
        self._token = token.encode() if token is not None else None

    @property
    def asked(self) -> bool:
        """Is a token needed?"""
        return self._token is not None

    def permits(self, header: bytes | None) -> bool:
        """May a request with this `Authorization` header be answered?"""
        if self._token is None:
            return True
        if header is None or header[: len(_BEARER)].lower() != _BEARER:
            return False
        return hmac.compare_digest(header[len(_BEARER) :].strip(), self._token)
