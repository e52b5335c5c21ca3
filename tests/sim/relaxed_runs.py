"""Runs in relaxed modes whose primary is lost, or whose lanes are of unequal speed: a seed says when, and which."""

from __future__ import annotations

from dataclasses import replace

from holdfast.testing import faults
from holdfast.testing.cluster import Config, SimReport
from holdfast.testing.faults import Fault, Schedule
from holdfast.testing.model import Model, Violation
from holdfast.testing.relaxed.relaxed_cluster import relaxed, simulate

__all__ = ["config", "draw_lost", "draw_rounds", "draw_turning", "draw_unequal", "primaries", "run", "unharmed"]

MODEL = Model(lanes=6, slices=4, steps=12)


def config(*found: Fault, mode: str = "bounded:2", replicas: int = 2, hosts: tuple[int, ...] = (2, 2, 2)) -> Config:
    plain = Config(model=MODEL, workers=0, hosts=hosts, awaited=len(hosts), schedule=Schedule(found))
    return relaxed(plain, mode, replicas)


def run(*found: Fault, seed: int = 1, mode: str = "bounded:2", replicas: int = 2) -> SimReport:
    return simulate(seed, config(*found, mode=mode, replicas=replicas))


def primaries(report: SimReport) -> set[str]:
    """Hosts that others got the state from."""
    return {part.split()[0].rstrip(";") for part in report.story.split("gets the state from host ")[1:]}


def draw_lost(seed: int) -> Config:
    """Three hosts hold the state, and its primary is lost."""
    (primary,) = primaries(run(seed=seed))
    return config(faults.host(int(primary), after=0.7 + 0.01 * seed).lose())


def draw_unequal(seed: int, mode: str = "quorum:5") -> Config:
    """One host, and a lane that is slower than all others, which come to wait for it: steps exceed a quorum's bound."""
    slow = faults.at(worker=seed % 6, step=0, during="start").slow(1.9)  # with a lane less it would do nothing
    plain = Config(model=replace(MODEL, steps=40), workers=6, schedule=Schedule((slow,)))
    return relaxed(plain, mode, replicas=0)


def draw_turning(seed: int) -> Config:
    """The mode changes, and the primary is lost at whatever moment before, meanwhile or after. There is one replica."""
    before, after = ("bounded:2", "async", "quorum:3", "bounded:0")[seed % 4], ("async", "bounded:1")[seed % 3 == 0]
    (primary,) = primaries(run(seed=seed, mode=before, replicas=1))
    lost = faults.host(int(primary), after=0.95 + 0.01 * (seed % 40)).lose()
    return config(faults.after(1.0).sync(after if after != before else "bounded:3"), lost, mode=before, replicas=1)


def draw_rounds(seed: int) -> Config:
    """The same to and from local steps, there and back again, or to rounds of another length."""
    modes = (("async", "local:2"), ("local:2", "bounded:1"), ("local:2", "local:3"), ("local:2", "async", "local:2"))
    before, *after = modes[seed % 4]
    (primary,) = primaries(run(seed=seed, mode=before, replicas=1))
    asked = [faults.after(1.1 + 0.6 * index).sync(mode) for index, mode in enumerate(after)]
    lost = faults.host(int(primary), after=1.05 + 0.007 * (seed % 60)).lose()
    return replace(config(*asked, lost, mode=before, replicas=1), model=replace(MODEL, steps=40))


def unharmed(seed: int, drawn: Config) -> SimReport:
    """Play it. The state must not be lost, nor anything that was shown."""
    report = simulate(seed, drawn)
    if report.outcome != "end" or "made again" in report.story:
        raise Violation(f"seed {seed}: {report.message}")
    return report
