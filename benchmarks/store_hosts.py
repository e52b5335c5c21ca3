"""Push + apply + pull between two hosts at 1 Gbit/s: the part of the store's benchmark that needs a network.

The arithmetic: what is pushed goes one way and what is pulled the other way, and a link carries both at once. So no
push + apply + pull of `size` bytes takes less than size / payload(rate) seconds, headers counted; the share of the link
is that time over the measured one. Who sends first and receives afterwards reaches one half.
"""

from __future__ import annotations

import json
import sys

from benchmarks.harness import finish, scratch, script
from benchmarks.hosts import GIGABIT, lab_of, on_hosts, peer_environment
from benchmarks.report import Check, Line, Series
from tests.hosts.lab import payload

MB = 1_000_000
#: bytes -> trips of a round
SIZES = {MB: 20, 10 * MB: 5, 100 * MB: 2}
SHARE = 0.92
#: Where the share is a target: a value of 1 MB is as long on its way as a few round trips are.
HELD = (10 * MB, 100 * MB)


def across(rounds: int, quick: bool) -> tuple[list[Line], list[Check]]:
    """Lines and checks of the store between hosts."""
    sizes = dict(list(SIZES.items())[:2]) if quick else SIZES
    with scratch() as where, lab_of(2, GIGABIT) as lab:
        told = [where, where / "found.json", rounds, *(f"{size}:{times}" for size, times in sizes.items())]
        command = [sys.executable, script("store_across")]
        serving = {0: [*command, "serve", lab.hosts[0].address, where]}
        with (
            on_hosts(lab, serving, where / "log", peer_environment()),
            on_hosts(lab, {1: [*command, "trips", *told]}, where / "log", peer_environment()) as running,
        ):
            finish(running, where / "log")
        found = json.loads((where / "found.json").read_text())
    lines: list[Line] = []
    checks = [Check("between hosts: the server has the true value", str(found["right"]), "True", found["right"])]
    for size in sizes:
        took = Series(tuple(found["found"][str(size)]))
        lines.append(Line(f"{size // MB} MB, 2 hosts, 1 Gbit/s", "ms", Series(tuple(1e3 * one for one in took.values))))
        share = size / payload(GIGABIT) / took.median
        if size in HELD:
            what = f"{size // MB} MB between hosts: of the link, both ways"
            checks.append(Check(what, f"{share:.1%}", f">= {SHARE:.0%}", share >= SHARE))
    return lines, checks
