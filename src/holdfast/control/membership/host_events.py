"""What is known of machines: the part of `machine` that notes their events. Pure.

Each function takes in one event; what follows from it is `reconcile`'s business.
"""

from __future__ import annotations

from holdfast.control import state_holders
from holdfast.control.membership.roster import Stage
from holdfast.control.protocol.events import CatchUpEnded, HostJoined, HostLeaving, HostLevel, HostLost, LinkBroken
from holdfast.control.state import RunState

__all__ = ["following_ended", "is_news", "joined", "leaving", "link_broken", "lost"]


def joined(run: RunState, event: HostJoined) -> None:
    """A machine is part of the run now."""
    hosts, limits = run.hosts, run.limits
    if event.host in hosts.live:
        return
    full = run.wanted >= limits.lanes
    first = not hosts.ever
    slots = min(event.slots, 1) if limits.alone else event.slots
    hosts.joined(event.host, event.name, slots, refills=event.refills)
    if first and event.host == 0:
        run.happened.append(f"the run starts with {run.wanted} of {limits.lanes} possible workers")
    else:
        offer = f"{event.slots} slot{'s' * (event.slots != 1)}"
        spare = ": a spare, since every lane has a worker" if full and not first and run.crew.generation else ""
        run.happened.append(f"host {event.host} ({event.name}) joined with {offer}{spare}")
    missing = limits.hosts - len(hosts.staying())
    if missing > 0 and not run.crew.generation:
        run.follows.append(f"{missing} more host{'s are' if missing > 1 else ' is'} awaited")


def leaving(run: RunState, event: HostLeaving) -> None:
    """A machine wants to go."""
    host = run.hosts.live.get(event.host)
    if host is None or host.leaving:
        return
    host.leaving = event.reason
    run.hosts.bequeath(host.share)
    run.replacing = any(w.host == host.number for w in run.crew.active())
    stays = "" if state_holders.can_go(run, host) else "; it goes on until another host has the state of the run"
    run.happened.append(f"host {host.number} ({host.name}) is to leave ({event.reason}){stays}")


def lost(run: RunState, event: HostLost, how: str = "lost") -> None:
    """A machine is gone, and with it, as far as the run goes, all its workers."""
    crew = run.crew
    host = run.hosts.live.pop(event.host, None)
    if host is None:
        return
    if not host.leaving:
        run.hosts.bequeath(host.share)
    gone = [crew.workers.pop(w.number) for w in list(crew.workers.values()) if w.host == host.number]
    if run.seeder in {w.number for w in gone}:
        run.seeder = None
    missed = [w.number for w in gone if w.stage not in (Stage.FINISHED, Stage.DISMISSED, Stage.REFUSED)]
    run.lost += len(missed)
    run.replacing = bool(missed)
    whom = f" with {crew.cast.all(missed)}" if missed else ""
    run.happened.append(f"host {host.number} {how} ({event.reason}){whom}")
    for other in run.hosts.live.values():
        if other.donor == host.number:
            other.left_alone()
    if host.number in crew.where and crew.change is None:  # its workers may have finished, but others need its sums
        run.renew = run.renew or f"host {host.number} is not there any more"
    if host.arena:
        run.bereft = f"host {host.number} ({host.name}) was lost ({event.reason})"
    if run.seeded and not crew.generation and not any(other.holds for other in run.hosts.live.values()):
        run.seeded = False
        for worker in crew.joining():
            if worker.stage is Stage.WAITING:  # it has given up its own weights for those that are gone
                crew.dismiss(worker, f"the weights of the run were lost with host {host.number}")


def is_news(run: RunState, event: HostLevel) -> bool:
    """Whether a host says another level than before; most times it does not."""
    host = run.hosts.live.get(event.host)
    return host is not None and (
        (host.level, host.of, host.given) != (event.level, event.of, tuple(event.given))
    )


def link_broken(run: RunState, event: LinkBroken) -> None:
    """A connection between hosts has ended: a new generation makes a new one. A change under way does that anyway."""
    if event.host in run.crew.where and run.crew.change is None and not run.renew:
        run.renew = f"host {event.host} has lost a connection ({event.reason})"


def following_ended(run: RunState, event: CatchUpEnded) -> None:
    """A donor has given a host up."""
    host = run.hosts.live.get(event.host)
    if host is not None and host.donor >= 0:
        host.left_alone()
        run.happened.append(f"host {event.host} follows nobody any more ({event.reason})")
