"""The network between this host and others: which addresses there are, which answer, how fast each is.

Who wants to know dials every address that the other host offers, all at once; those that answer are measured one after
another, because two measurements at once would share what they measure. Connections are made as the exchange makes
its own, with token and TLS, so what is measured is what will be had.

Every host has an identity, made at random, and whoever answers names his own: 172.17.0.1 is an address of the other
machine's containers, but also of this one's. An address where somebody else answers is not used.

What the numbers mean for the choice is the business of `core.routes`.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass, replace

from holdfast.config.limits import NETWORK
from holdfast.core.routes import Address, Choice, Offer, Trial, choose, targets, worth_trying
from holdfast.errors import FrameError, HoldfastError, NetworkError, brief
from holdfast.transport import probes
from holdfast.transport.interfaces import found, leaving_from
from holdfast.transport.stream import Stream

__all__ = [
    "Dial", "Limits", "Offer", "Responder", "candidates", "describe", "identity", "knock", "probe", "survey",
    "survey_from",
]  # fmt: skip

#: Opens a connection of kind "probe" to an address and port. It may block for a second or two, and raise.
Dial = Callable[[str, int], Stream]

_LONGEST_PROBLEM = 200


@dataclass(frozen=True, slots=True)
class Limits:
    """What measuring one way may cost."""

    pings: int = 20
    seconds: float = NETWORK.probe_burst  #: of a burst, in each direction
    size: int = 32 * 2**20  #: bytes of a burst, in each direction


#: For a choice, and for a person who wants a number.
CHOOSING, THOROUGH = Limits(), Limits(seconds=NETWORK.probe_thorough)


def candidates(bound: str = "") -> list[Address]:
    """The addresses of this machine that others may try, best guess first, where `bound` is listened on."""
    return worth_trying(found(), bound)


def identity() -> str:
    """A name that no other host has."""
    return os.urandom(8).hex()


def probe(offer: Offer, dial: Dial, *, here: str = "this host", limits: Limits = CHOOSING) -> Choice:
    """How this host talks to the one that made the offer, and why: measures as much as the choice needs.

    Addresses of the same two interfaces share one wire, so only the first of them is measured; where one wire is all
    there is, nothing but pings is sent. Blocks for about half a second for each wire, and two if an address is dead.

    Raises:
        NoRoute: no address answered; the error names each and what happened there.
    """
    return choose(survey(offer, dial, limits=limits, thorough=False), here, offer.name, offer.port)


def knock(offer: Offer, dial: Dial, *, here: str = "this host") -> None:
    """Whether the host that made the offer answers: as soon as it does at one of its addresses. Measures nothing.

    Raises:
        NoRoute: no address answered; the error names each and what happened there.
    """
    ways, failed = _ways(offer), []
    pool = ThreadPoolExecutor(max(1, len(ways)), "holdfast-knock")
    knocks = [pool.submit(_knock, way, offer, dial) for way in ways]
    try:
        for done in as_completed(knocks):
            trial, stream = done.result()
            if stream is not None:
                return
            failed.append(trial)
        choose(failed, here, offer.name, offer.port)
    finally:
        for one in knocks:
            one.add_done_callback(_hang_up)
        pool.shutdown(wait=False)


def survey(offer: Offer, dial: Dial, *, limits: Limits = THOROUGH, thorough: bool = True) -> list[Trial]:
    """Try every address of the offer; what each is worth, in the order of the offer.

    Unless `thorough`, what `probe` does not need is left out.
    """
    ways = _ways(offer)
    if not ways:
        return []
    with ThreadPoolExecutor(len(ways), "holdfast-knock") as pool:
        knocked = list(pool.map(lambda way: _knock(way, offer, dial), ways))
    try:
        wires = {_wire(trial) for trial, stream in knocked if stream}
        bursts = thorough or len(wires) > 1
        trials: list[Trial] = []
        for trial, stream in knocked:
            if stream is None:
                trials.append(trial)
            elif thorough or _wire(trial) in wires:
                wires.discard(_wire(trial))
                trials.append(_measured(trial, stream, offer, dial, limits if bursts else replace(limits, size=0)))
        return trials
    finally:
        for _, stream in knocked:
            if stream:
                stream.close()


def describe(stream: Stream) -> Offer:
    """What the host at the other end of a connection of kind "probe" offers."""
    return probes.ask(stream, probes.Describe(), probes.Described).offer


def survey_from(stream: Stream, offer: Offer) -> list[Trial]:
    """Have the host at the other end measure its ways to the one that made the offer."""
    return probes.ask(stream, probes.Survey(offer), probes.Surveyed, NETWORK.survey).trials


class Responder:
    """Answers those who measure. With `dial` they may also have it measure its own ways to others.

    Threads: `answer` may run for many connections at once, each in a thread of the caller.
    """

    def __init__(self, offer: Offer, *, dial: Dial | None = None) -> None:
        self.offer = offer
        self._dial = dial

    def answer(self, stream: Stream) -> None:
        """Serve one connection to its end, and close it. Never raises for what the other side does."""
        with closing(stream):
            try:
                while self._answered(stream):
                    pass
            except (OSError, EOFError, NetworkError):
                pass  # whoever measures sees it too, and says it

    def _answered(self, stream: Stream) -> bool:
        """Answer one message; False when the connection has served."""
        stream.settimeout(NETWORK.probe_turn)
        message, size = probes.receive(stream)
        stream.settimeout(NETWORK.probe_silence)
        match message:
            case probes.Ping():
                probes.reply(stream, probes.Pong(self.offer.identity))
            case probes.Describe():
                probes.reply(stream, probes.Described(self.offer))
            case probes.Burst(seconds):
                probes.reply(stream, probes.Got(probes.drink(stream, seconds, size)))
                return False
            case probes.Give(seconds, size):
                probes.pour(stream, seconds, size)
                return False
            case probes.Survey(offer) if self._dial:
                probes.reply(stream, probes.Surveyed(survey(offer, self._dial)))
            case _:
                raise FrameError(f"a {type(message).__name__}, which is not answered here")
        return True


def _ways(offer: Offer) -> list[Trial]:
    """What there is to try."""
    mine = found()
    # A link-local address is dialled through each interface that speaks IPv6.
    names = list(dict.fromkeys(it.interface for it in mine if ":" in it.ip and it.kind != "loopback"))
    return [Trial(dialled, there, _leaving(dialled, mine)) for dialled, there in targets(offer.addresses, names)]


def _hang_up(knocked: Future[tuple[Trial, Stream | None]]) -> None:
    if (stream := knocked.result()[1]) is not None:
        stream.close()


def _knock(trial: Trial, offer: Offer, dial: Dial) -> tuple[Trial, Stream | None]:
    """Whether the right one answers there. The connection stays open for its turn."""
    try:
        stream = dial(trial.dial, offer.port)
        try:
            if probes.ask(stream, probes.Ping(), probes.Pong).identity == offer.identity:
                return trial, stream
        except BaseException:
            stream.close()
            raise
    except (OSError, EOFError, HoldfastError) as error:
        return replace(trial, problem=_problem(error)), None
    stream.close()
    return replace(trial, problem="another machine answers there, or this one itself"), None


def _measured(trial: Trial, stream: Stream, offer: Offer, dial: Dial, limits: Limits) -> Trial:
    """The way with its latency and, where bursts may have a size, its rates."""
    try:
        with closing(stream):
            latency = statistics.median(probes.round_trips(stream, limits.pings))
        if not limits.size:
            return replace(trial, latency=latency)
        sent = probes.sent(dial(trial.dial, offer.port), limits.seconds, limits.size)
        received = probes.received(dial(trial.dial, offer.port), limits.seconds, limits.size)
    except (OSError, EOFError, HoldfastError) as error:
        return replace(trial, problem=_problem(error))
    problem = "" if sent > 0 and received > 0 else "it answers, but no data came through"
    return replace(trial, latency=latency, sent=sent, received=received, problem=problem)


def _leaving(dialled: str, mine: Sequence[Address]) -> Address | None:
    """Our own address at this end of a way, by the routes of this machine."""
    ip = leaving_from(dialled)
    zone = dialled.partition("%")[2]
    return next((it for it in mine if it.ip == ip and zone in ("", it.interface)), Address(ip, zone) if ip else None)


def _wire(trial: Trial) -> tuple[str, str]:
    here = trial.here or Address("", "")
    return here.interface or here.ip, trial.there.interface or trial.there.ip


def _problem(error: Exception) -> str:
    """What is wrong with a way."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else brief(error)
    return text[:_LONGEST_PROBLEM]
