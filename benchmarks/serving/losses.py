"""A replica that is killed, stopped for five seconds or told to end, every ten seconds, under load.

Two replicas, half of what they can do. *Failed* is a request that got an error, a broken connection or a wrong answer;
*hung* is one whose answer took over two seconds, or never came. Full capacity is back when as many replicas as before
are ready, the lost one not among them; for one that was stopped, and is not replaced, that time counts from when it
goes on. LitServe beside it, with as many workers, for information.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness import Failed, finish, scratch
from benchmarks.report import Check, Result, Series
from benchmarks.serving import exchange, grid, ours
from benchmarks.serving.contenders import PEERS, Server, cores, going, python_of
from benchmarks.serving.load import Plan, begun, load_found
from benchmarks.serving.networks import answers
from benchmarks.serving.schedule import Outcome

__all__ = ["measure"]

MODEL, REPLICAS, SHARE, EVERY, STOPPED, OBJECTIVE, CONNECTIONS = "lenet", 2, 0.5, 10.0, 5.0, 0.05, 64
HUNG, BACK = 2.0, 2.0  #: seconds
SIGNALS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)
_LITSERVE = ("--batch", "16", "--wait", "0.002", "--fast-queue", "--workers", str(REPLICAS))


class Loss(NamedTuple):
    """What was done to a replica, and the seconds until full capacity was back; infinite: not before the next one."""

    how: str
    when: float
    back: float


def measure(repeats: int, quick: bool) -> Result:
    """`repeats`: how many losses of each server."""
    notes, raw = [], dict[str, Any]()
    with scratch() as where:
        directory = ours.library(MODEL, where)
        with ours.going(directory, "json", where, replicas=REPLICAS, objective=OBJECTIVE) as server:
            mine = raw["holdfast"] = _lossy(server, where / "ours", repeats, lambda: ours.ready(server))
        peer = PEERS["litserve"].with_options(*_LITSERVE)
        if python_of(peer) is None:
            notes.append("LitServe is not installed here (python -m benchmarks.serving.contenders)")
        else:
            with going(peer, MODEL, "json", where) as server:
                raw[peer.name] = _lossy(server, where / "litserve", repeats, lambda: len(server.replicas()))
    back = Series(tuple(loss.back for loss in mine["losses"]))
    checks = [
        Check("failed requests", f"{mine['failed']} of {mine['requests']}", "0", mine["failed"] == 0),
        Check("hung requests", str(mine["hung"]), "0", mine["hung"] == 0),
        Check("refused requests", str(mine["refused"]), "0", mine["refused"] == 0),
        Check("full capacity is back", back.shown(" s"), f"< {BACK} s", max(back.values) < BACK),
    ]
    for name, found in raw.items():
        backs = ", ".join(f"{loss.how} {loss.back:.2f} s" for loss in found["losses"][: len(SIGNALS)])
        notes.append(
            f"{name}: {found['requests']} requests at {found['rate']:.0f}/s, {found['failed']} failed, "
            f"{found['hung']} hung, {found['refused']} refused, slowest answer {found['slowest']:.2f} s; "
            f"capacity back after {backs}"
        )
    return Result("serving.losses", f"A replica lost every {EVERY:.0f} s", (), checks, notes, raw)


def _lossy(server: Server, where: Path, losses: int, ready: Callable[[], int]) -> dict[str, Any]:
    where.mkdir()
    closed = grid.closed(server, MODEL, 16, where / "closed", warm=2, seconds=3).figures["rate"]
    plan = Plan(
        target=server.target, connections=CONNECTIONS, rate=SHARE * closed, poisson=True, warm=2,
        seconds=EVERY * losses + 2, objective=OBJECTIVE, core=cores()[1],
        expected=answers(MODEL, exchange.numbers(server.target, exchange.DIFFERENT, 1)),
    )  # fmt: skip
    found = []
    with begun(plan, where / "load") as running:
        start = time.monotonic() + 4
        for number in range(losses):
            time.sleep(max(0.0, start + EVERY * number - time.monotonic()))
            found.append(_lose(server, SIGNALS[number % len(SIGNALS)], number, ready))
        finish(running, where / "load" / "load.log", 2 * EVERY + plan.patience + 60)
    load = load_found(where / "load")
    took = [s.done - s.intended for s in load.samples]
    outcomes = [s.outcome for s in load.samples]
    unanswered = sum(outcome == Outcome.UNANSWERED for outcome in outcomes)
    late = sum(t > HUNG for t, outcome in zip(took, outcomes, strict=True) if outcome == Outcome.OK)
    return {
        "requests": len(took), "rate": plan.rate, "failed": sum(o in (Outcome.FAILED, Outcome.WRONG) for o in outcomes),
        "hung": unanswered + late, "refused": sum(o == Outcome.REFUSED for o in outcomes), "slowest": max(took),
        "losses": found, "figures": load.figures,
    }  # fmt: skip


def _lose(server: Server, number: signal.Signals, turn: int, ready: Callable[[], int]) -> Loss:
    """Do it to one of the replicas, and see when all of them are there again. Raises Failed."""
    there = server.replicas()
    if len(there) < REPLICAS:
        return Loss(number.name, time.monotonic(), float("inf"))  # the one before is not over
    victim, when = there[turn % len(there)], time.monotonic()
    os.kill(victim, number)
    with _resumed(victim, number):
        limit = when + (STOPPED if number == signal.SIGSTOP else EVERY - 0.5)
        while time.monotonic() < limit:
            if _whole(server, ready, victim):
                return Loss(number.name, when, time.monotonic() - when)
            time.sleep(0.02)
    if number != signal.SIGSTOP:
        return Loss(number.name, when, float("inf"))
    resumed = time.monotonic()
    while time.monotonic() < when + EVERY - 0.5:
        if _whole(server, ready, 0):
            return Loss(number.name, when, time.monotonic() - resumed)
        time.sleep(0.02)
    return Loss(number.name, when, float("inf"))


def _whole(server: Server, ready: Callable[[], int], lost: int) -> bool:
    others = [pid for pid in server.replicas() if pid != lost]
    if len(others) < REPLICAS:
        return False
    try:
        return ready() >= REPLICAS
    except OSError as error:
        raise Failed(f"the server does not say how many of its replicas are ready: {error}") from None


@contextlib.contextmanager
def _resumed(pid: int, number: signal.Signals) -> Iterator[None]:
    """Whoever was stopped goes on after its time, if it is still there."""
    until = time.monotonic() + STOPPED
    try:
        yield
    finally:
        if number == signal.SIGSTOP:
            time.sleep(max(0.0, until - time.monotonic()))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
