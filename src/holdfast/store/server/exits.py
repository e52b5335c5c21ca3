"""How servers have ended, and what is to be said of one that is not started again. Pure.

A server that dies is replaced, and asked again what it did not answer. If that kills it again and again, with nothing
applied in between, it is given up, and its clients are told why.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

import msgspec

from holdfast.config.limits import STORE

__all__ = ["ServerExit", "exit_reason", "given_up", "row_of"]

_SHOWN = 5  #: names of keys


class ServerExit(msgspec.Struct, frozen=True):
    """One end of a server's process. `applying`: the push (client, key) that its handler was at, if any."""

    changes: int  #: that the server had behind it
    code: int  #: how the process ended, as Popen says it
    applying: tuple[str, str] | None = None


def row_of(deaths: Sequence[ServerExit], death: ServerExit) -> list[ServerExit]:
    """One more: those in a row, between which nothing has changed."""
    return [*(one for one in deaths if one.changes == death.changes), death]


def given_up(deaths: Sequence[ServerExit]) -> bool:
    """Is this server not to be started again?"""
    return len(deaths) >= STORE.deaths


def exit_reason(server: int, num_servers: int, deaths: Sequence[ServerExit], keys: Sequence[str]) -> str:
    """What clients are told: what happened, what became of the keys there, and what to do."""
    last, pushes = deaths[-1], {one.applying for one in deaths}
    begin = f"Server {server} of the store ended {len(deaths)} times in a row"
    end = f"the last time {_how(last.code)}; it is not started again"
    if pushes == {last.applying} and last.applying is not None:
        client, key = last.applying
        what = f"{begin}, each time while its handler applied a push of client {client!r} on key {key!r}, {end}"
        fate, advice = "That push was not applied", "See what the handler does with it, correct it"
    else:
        named = sorted({f"one of client {push[0]!r} on key {push[1]!r}" for push in pushes if push is not None})
        known = f"; pushes that were under way: {', '.join(named)}" if named else ", and its handler was at no push"
        what = f"{begin} and applied nothing in between{known}; {end}"
        fate, advice = "What was not answered may or may not have been applied", "See what ended it"
    shown = ", ".join(map(repr, keys[:_SHOWN])) + (", ..." if len(keys) > _SHOWN else "")
    others = " Keys of the other servers go on." if num_servers > 1 else ""
    rest = f"its keys ({shown}) cannot be reached any more" if keys else "it had no keys"
    return f"{what}. {fate}; {rest}.{others} {advice}, and start the store anew."


def _how(code: int) -> str:
    if code >= 0:
        return f"with exit status {code}"
    try:
        return f"by {signal.Signals(-code).name}"
    except ValueError:
        return f"by signal {-code}"
