"""Partitions: hosts that others cannot reach are let go, so that the rest trains on. Pure.

The coordinator speaks with every host, but they must also reach each other, and a firewall may let the one through and
not the other. Who has tried for too long says so (`HostUnreached`). One report does not tell whose fault it is, so the
others have a moment to say whom they cannot reach. Then, until no report is left about two hosts that train:

* the host goes that most reports are about; among equals the newest, since the run went on without it before;
* one whose state is newer than that of all others stays: its steps are not lost;
* host 0, where the coordinator is, goes on without workers. Any other may join again, and is looked at at the door.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from holdfast.control.membership import host_events
from holdfast.control.protocol.commands import ReleaseHost
from holdfast.control.protocol.events import HostLost, HostUnreached
from holdfast.control.state import RunState

__all__ = ["judge", "outcast", "unreached"]

_ADVICE = "let the port through the firewalls between them, or choose one that is open with --listen ADDRESS:PORT"


def unreached(run: RunState, event: HostUnreached, now: float) -> None:
    """A host cannot reach another one."""
    pair = event.host, event.other
    if not set(pair) <= run.hosts.live.keys() or event.host == event.other or pair in run.unreached:
        return
    if not run.unreached:
        # Where there are but two, nobody else has anything to say.
        run.judged = now + (run.limits.crew.unreached if len(run.hosts.live) > 2 else 0.0)
    run.unreached[pair] = event.reason
    run.happened.append(event.reason)


def judge(run: RunState, now: float) -> None:
    """Let go of those who are to go, once everybody has had the time to say whom he cannot reach."""
    while run.unreached and now >= run.judged:
        live = run.hosts.live
        there = {pair: why for pair, why in run.unreached.items() if set(pair) <= live.keys()}
        gone = outcast(there, [number for number in live if _can_do_without(run, number)])
        if gone is None:
            run.unreached = {}
            return
        pair = host, other = min(pair for pair in there if gone in pair)
        why = f"it cannot reach host {other}" if gone == host else f"host {host} cannot reach it"
        if gone:
            host_events.lost(run, HostLost(gone, why), how="is let go")
            run.crew.out.append(ReleaseHost(gone, f"{there[pair]}. {_ADVICE[0].upper()}{_ADVICE[1:]}.", "lost"))
        else:
            live[gone].share = 0
            run.happened.append(f"host {gone} is to have no workers ({why})")
        if _ADVICE not in run.follows:
            run.follows.append(_ADVICE)
        run.unreached = {pair: why for pair, why in there.items() if gone not in pair}


def outcast(pairs: Collection[tuple[int, int]], able: Collection[int]) -> int | None:
    """Which host goes, of those of which one cannot reach the other; only these are `able` to. None: nobody.

    >>> outcast([(1, 2)], [1, 2]), outcast([(1, 0), (1, 2)], [0, 1, 2]), outcast([(1, 2), (2, 1), (0, 3)], [1, 2, 3])
    (2, 1, 3)
    >>> outcast([(1, 2)], [1]), outcast([], [1])
    (1, None)
    """
    about = Counter(host for pair in {frozenset(pair) for pair in pairs} for host in pair if host in able)
    return max(about, key=lambda host: (about[host], host), default=None)


def _can_do_without(run: RunState, number: int) -> bool:
    """Whether no step is lost with this host, but for one that is under way."""
    crew, hosts = run.crew, run.hosts
    # While the crew works, what is known of its levels is old; those that need not fetch are the newest by themselves.
    newest = {worker.host for worker in crew.driving()}.difference(crew.sources)
    era, level = hosts.age(hosts.live[number])
    least = era, level - (not run.central)
    return any(
        other in newest or hosts.age(host) >= least for other, host in hosts.live.items() if other != number
    )
