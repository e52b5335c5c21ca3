"""Which network two hosts use: the addresses worth trying, and the choice among those that answered.

A machine has many addresses, and the wrong one costs a factor of 40: a management port, a container bridge, a
tunnel. So nothing is taken from names or from what a driver claims; every address that answers is measured, and:

* the exchange sends and receives at once, so a way is as fast as its slower direction;
* the best way is the one over which a slice would travel in the least time, round trip included;
* what is not slower by more than `EQUAL` counts as equal, and then the order of `worth_trying` decides, so that a
  measurement's noise does not send neighbours over different networks;
* every choice comes with its reason as a sentence, which names the runner-up and by what factor it lost.

Rates are bits a second, latencies are whole round trips in seconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from math import inf
from statistics import median
from typing import Literal

from holdfast.errors import Unreachable

__all__ = [
    "EQUAL", "MAX_ADDRESSES", "SLICE", "Address", "Choice", "NoRoute", "Offer", "Trial", "bits", "choose", "merged",
    "slope", "targets", "worth_trying",
]  # fmt: skip

#: What one slice weighs: a way is judged by how long it takes to carry one.
SLICE = 4 * 2**20
#: Ways that differ by less than this share are equally fast.
EQUAL = 0.15
#: A machine with more than this has mostly virtual ones; the first are enough.
MAX_ADDRESSES = 16
_MOST_TARGETS = 64
_WINDOWS = 16

Kind = Literal["plain", "inner", "link", "loopback"]
#: In order of preference. "inner": a bridge without a wire, as containers have, or a dummy. The same inner address
#: exists on many machines, so it is tried last; "link": valid on one cable only.
_PREFERENCE: tuple[Kind, ...] = ("plain", "inner", "link", "loopback")


class NoRoute(Unreachable):
    """Two hosts have no address over which one can reach the other."""


@dataclass(frozen=True, slots=True)
class Address:
    """An address of a machine and the interface that has it."""

    ip: str
    interface: str
    kind: Kind = "plain"
    speed: int = 0  #: Mbit/s as the driver claims, 0 where it claims nothing. Shown, never trusted


@dataclass(frozen=True, slots=True)
class Offer:
    """What a host tells the others, so that they can reach it."""

    identity: str  #: made at random, so that nobody takes another machine for it
    name: str  #: for sentences
    port: int
    addresses: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class Trial:
    """One way from here to there, and what it is worth. `problem` is empty when it was measured."""

    dial: str  #: what to dial from here: the address there, with this side's interface where it needs one
    there: Address
    here: Address | None = None  #: where the connection leaves from
    latency: float = inf
    sent: float = 0.0  #: rate from here to there
    received: float = 0.0  #: rate from there to here
    problem: str = ""

    @property
    def seconds(self) -> float:
        """How long a slice takes, both directions being busy; infinite when it cannot travel."""
        slower = min(self.sent, self.received)
        return self.latency + SLICE * 8 / slower if slower > 0 and not self.problem else inf


@dataclass(frozen=True, slots=True)
class Choice:
    """The way to use, and why."""

    trial: Trial
    sentence: str


# ---------------------------------------------------------------- before measuring


def worth_trying(addresses: Iterable[Address], bound: str = "") -> list[Address]:
    """The addresses to offer to other hosts, best guess first.

    `bound` is the address that is listened on: where it is a definite one, no other can be reached. Loopback is
    offered only by a machine that has nothing else, a link-local address only by an interface without a better one.

    >>> lo, eth = Address("127.0.0.1", "lo", "loopback"), Address("10.0.0.2", "eth0")
    >>> worth_trying([lo, eth]) == [eth], worth_trying([lo]) == [lo], worth_trying([lo, eth], "127.0.0.1") == [lo]
    (True, True, True)
    """
    found = list(addresses)
    if bound and not ip_address(bound.partition("%")[0]).is_unspecified:
        wanted = ip_address(bound.partition("%")[0])
        exact = [it for it in found if ip_address(it.ip) == wanted]
        return exact[:1] or [Address(str(wanted), "", "loopback" if wanted.is_loopback else "plain")]
    if bound and ip_address(bound).version == 4:
        found = [it for it in found if ip_address(it.ip).version == 4]
    wider = {it.interface for it in found if it.kind != "link"}
    kept = [it for it in found if it.kind != "link" or it.interface not in wider]
    far = [it for it in kept if it.kind != "loopback"] or kept
    # Stable, so within a kind and family the kernel's order stays.
    return sorted(far, key=lambda it: (_PREFERENCE.index(it.kind), ip_address(it.ip).version))[:MAX_ADDRESSES]


def targets(offered: Sequence[Address], interfaces: Sequence[str]) -> list[tuple[str, Address]]:
    """What to dial for each address: itself, and a link-local one through each interface of this side.

    What is no address is left out: an offer comes from outside, and nobody's names are looked up for it.

    >>> targets([Address("10.0.0.2", "eth0"), Address("fe80::2", "eth1", "link")], ["a", "b"])  # doctest: +ELLIPSIS
    [('10.0.0.2', Address(...)), ('fe80::2%a', Address(...)), ('fe80::2%b', Address(...))]
    """
    return [
        (f"{it.ip}%{name}" if name else it.ip, it)
        for it in offered[:MAX_ADDRESSES]
        if _numeric(it.ip)
        for name in (interfaces if it.kind == "link" and ":" in it.ip else [""])
    ][:_MOST_TARGETS]


def _numeric(ip: str) -> bool:
    try:
        ip_address(ip)
    except ValueError:
        return False
    return "%" not in ip


# ---------------------------------------------------------------- after measuring


def slope(marks: Sequence[tuple[float, int]]) -> float:
    """The steady rate of a transfer, from the times at which the receiver had so many bytes in all.

    It is the median over windows of half the transfer's length. So how a transfer begins (slowly, as connections do, or
    with a burst that a shaper had saved up) does not mislead it, nor does a stall and the lump that comes after it.

    >>> slope([(0.0, 0), (1.0, 900_000), (2.0, 1_000_000), (3.0, 1_100_000), (4.0, 1_200_000)])
    800000.0
    """
    if len(marks) < 2 or marks[-1][0] <= marks[0][0]:
        return 0.0
    begin, half = marks[0][0], (marks[-1][0] - marks[0][0]) / 2
    starts = [begin + half * number / _WINDOWS for number in range(_WINDOWS + 1)]
    return median((_count(marks, start + half) - _count(marks, start)) * 8 / half for start in starts)


def _count(marks: Sequence[tuple[float, int]], when: float) -> float:
    """How many bytes there were at a time between two marks."""
    after = min(max(1, bisect_left(marks, when, key=lambda mark: mark[0])), len(marks) - 1)
    (early, few), (late, many) = marks[after - 1], marks[after]
    share = (when - early) / (late - early) if late > early else 1.0
    return few + (many - few) * min(share, 1.0)


def merged(ours: Iterable[Trial], theirs: Iterable[Trial]) -> list[Trial]:
    """The trials of both sides as seen from ours: one for each pair of addresses.

    Where both measured, the mean counts. A way that only the other side could open is kept as it is: connections may be
    made from there.
    """
    found: dict[tuple[str, str], Trial] = {}
    for trial in [*ours, *map(_turned, theirs)]:
        key = (trial.here.ip if trial.here else "", trial.there.ip)
        before = found.get(key)
        if before is None or (before.problem and not trial.problem):
            found[key] = trial
        elif not trial.problem:
            found[key] = replace(
                before, latency=(before.latency + trial.latency) / 2, sent=(before.sent + trial.sent) / 2,
                received=(before.received + trial.received) / 2,
            )
    return list(found.values())


def choose(
    trials: Sequence[Trial], here: str = "this host", there: str = "the other host", port: int = 0
) -> Choice:
    """The fastest way, and the sentence that says which and why. The trials stand in order of preference.

    Raises NoRoute when no address could be reached; the error names each and what happened there.
    """
    answered = [trial for trial in trials if not trial.problem]
    good = [trial for trial in answered if trial.seconds < inf] or answered[:1]
    if not good:
        each = "; ".join(f"{_named(trial)}: {trial.problem}" for trial in trials)
        raise NoRoute(
            f"{here} cannot reach {there} at any of its addresses{f', port {port}' if port else ''} "
            f"({each or 'it offered none'}). Let that port through the firewalls between them, or have {there} listen "
            f"on an address and a port that {here} can reach (--listen ADDRESS:PORT)."
        )
    least = min(trial.seconds for trial in good)
    best = next(trial for trial in good if trial.seconds <= least * (1 + EQUAL))
    others = sorted((trial for trial in good if trial is not best), key=lambda trial: trial.seconds)
    parts = [f"{here} and {there} talk over {_named(best)} {_speed(best)}"]
    slower = [trial for trial in others if trial.seconds > best.seconds * (1 + EQUAL)]
    for lost in slower[:1] + slower[1:][-1:]:  # the runner-up and the worst
        parts.append(f"{_factor(lost.seconds / best.seconds)} faster than {_named(lost)} {_speed(lost)}")
    if len(slower) < len(others):
        parts.append(f"no slower than {_named(others[0])}, which is the second choice")
    if not others:
        parts.append("the only network that connects them")
    return Choice(best, ", ".join(parts))


def _turned(trial: Trial) -> Trial:
    """A trial as the other side would have seen it."""
    if trial.here is None:  # it never left there, so all we know is what was dialled: an address of ours
        return replace(trial, here=trial.there, there=Address("", ""))
    # A link-local address needs the interface of whoever dials: the one that the other side has on this way.
    scoped = trial.here.kind == "link" and ":" in trial.here.ip
    back = f"{trial.here.ip}%{trial.there.interface}" if scoped else trial.here.ip
    return Trial(back, trial.here, trial.there, trial.latency, trial.received, trial.sent, trial.problem)


def _named(trial: Trial) -> str:
    name = trial.here.interface if trial.here and trial.here.interface else trial.there.interface
    return f"{name} to {trial.there.ip}" if name else trial.there.ip


def _speed(trial: Trial) -> str:
    trip = f"round trip {trial.latency * 1000:.2g} ms"
    slower = min(trial.sent, trial.received)
    return f"({bits(slower)}, {trip})" if slower > 0 else f"({trip})"


def _factor(ratio: float) -> str:
    return f"{ratio:.2g}x" if ratio < 10 else f"{ratio:.0f}x"


def bits(rate: float) -> str:
    """A rate for people.

    >>> bits(949_300_000), bits(49_600_000), bits(12_340_000_000), bits(800)
    ('949 Mbit/s', '49.6 Mbit/s', '12.3 Gbit/s', '0.0008 Mbit/s')
    """
    return f"{rate / 1e9:.3g} Gbit/s" if rate >= 999.5e6 else f"{rate / 1e6:.3g} Mbit/s"
