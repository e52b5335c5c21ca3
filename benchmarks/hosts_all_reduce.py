"""All-reduce between hosts: Holdfast's peer session beside gloo, at 1 Gbit/s and as fast as the kernel copies.

Both run in the same processes, one on each host, in turns. gloo is called once for the whole tensor, and in four pieces
that are under way together; the way with the better median stands for it. CPU seconds are those of all hosts'
processes, per GB of numbers on each host.

Hosts have the system's congestion control, from which ours departs where that is good for it. Because part of the
difference may come from that alone, some of it is measured again with one that goes by loss for everybody: reno, which
is the only one that a namespace may choose.
"""

from __future__ import annotations

import json
import sys
from typing import Any, NamedTuple

from benchmarks.harness import finish, scratch, script
from benchmarks.hosts import GIGABIT, congestion, floor, lab_of, on_hosts, peer_environment
from benchmarks.report import Check, Line, Result, Series, quantity
from benchmarks.scripts.between import PEERS

MB = 1_000_000
HOSTS = (2, 4)
#: bytes -> iterations of a round
LIMITED = {10 * MB: 8, 25 * MB: 4, 100 * MB: 2}
UNLIMITED = {10 * MB: 20, 25 * MB: 10, 100 * MB: 4}
#: Of what the link can carry by arithmetic, for 25 MB; how many times gloo there, where both are at the end of the line
#: and the rest is chance; and how many times gloo without a limit, for 10 and 100 MB.
SHARE, EVEN, FASTER = 0.92, 0.995, 1.2


class Setting(NamedTuple):
    """What the hosts are joined by."""

    hosts: int
    rate: float | None
    everybody: str = ""  #: TCP's congestion control on all hosts, for all programs; empty: the system's own

    def __str__(self) -> str:
        rate = f"{self.rate / 1000:g} Gbit/s" if self.rate else "unlimited"
        return f"{self.hosts} hosts, {rate}" + f", {self.everybody} for everybody" * bool(self.everybody)


#: What is measured, in this order; of what is measured again with reno for everybody one size is enough.
SETTINGS = {
    **{Setting(hosts, rate): sizes for rate, sizes in ((GIGABIT, LIMITED), (None, UNLIMITED)) for hosts in HOSTS},
    **{Setting(hosts, GIGABIT, "reno"): {25 * MB: 4} for hosts in HOSTS},
    **{Setting(hosts, None, "reno"): {100 * MB: 4} for hosts in HOSTS},
}


class Found(NamedTuple):
    """Figures of one contender: one per round, for each size."""

    wall: dict[int, list[float]]  #: seconds of an all-reduce
    cpu: dict[int, list[float]]  #: CPU seconds of all hosts, per GB


def run(setting: Setting, rounds: int, sizes: dict[int, int], *more: str) -> tuple[dict[str, Found], bool]:
    """All contenders on these hosts; and whether all sums were right. `more` goes to the script."""
    with scratch() as where, lab_of(setting.hosts, setting.rate) as lab:
        if setting.everybody:
            chosen = f"net.ipv4.tcp_congestion_control={setting.everybody}"
            finish([lab.run(host.number, ["sysctl", "-qw", chosen]) for host in lab.hosts], where / "log")
        told = ["--out", where, "--rounds", rounds, "--sizes", *(f"{size}:{n}" for size, n in sizes.items())]
        told += ["--addresses", *(host.address for host in lab.hosts), *more]
        commands = {
            host.number: [sys.executable, script("between"), "--rank", host.number, *told] for host in lab.hosts
        }
        with on_hosts(lab, commands, where / "log", peer_environment()) as running:
            finish(running, where / "log")
        ranks: list[dict[str, Any]] = [json.loads((where / f"rank-{n}.json").read_text()) for n in range(setting.hosts)]
    found = {name: Found({}, {}) for name in ranks[0]["found"][str(next(iter(sizes)))]}
    for name, figures in found.items():
        for size in sizes:
            seen = [rank["found"][str(size)][name] for rank in ranks]
            figures.wall[size] = [max(wall for wall, _ in turn) for turn in zip(*seen, strict=True)]
            share = size / 1e9 * setting.hosts
            figures.cpu[size] = [sum(cpu for _, cpu in turn) / share for turn in zip(*seen, strict=True)]
    return found, all(rank["right"] for rank in ranks)


def faster(found: dict[str, Found], size: int) -> Found:
    """gloo in that of its two ways which has the better median."""
    return min((found[name] for name in PEERS), key=lambda one: Series(tuple(one.wall[size])).median)


def measure(repeats: int, quick: bool) -> Result:
    """Every setting; for a quick look two sizes between two hosts."""
    lines: list[Line] = []
    checks: list[Check] = []
    notes: list[str] = []
    raw: dict[str, Any] = {}
    for setting, sizes in SETTINGS.items():
        if quick and (setting.hosts != HOSTS[0] or setting.everybody):
            continue
        found, right = run(setting, repeats, dict(list(sizes.items())[:2]) if quick else sizes)
        raw[str(setting)] = {name: {"wall": one.wall, "cpu": one.cpu} for name, one in found.items()}
        checks.append(Check(f"{setting}: all sums are right", str(right).lower(), "true", right))
        for size in found["gloo"].wall:
            compare(setting, size, found, lines, checks, notes)
    notes.append(f"TCP's congestion control: {congestion()}; CPU seconds are of all hosts, per GB on each of them")
    return Result("hosts_all_reduce", "All-reduce between hosts (float32)", lines, checks, notes, raw)


def compare(
    setting: Setting, size: int, found: dict[str, Found], lines: list[Line], checks: list[Check], notes: list[str]
) -> None:
    """What one size shows in one setting."""
    hosts, rate, everybody = setting
    peer = faster(found, size)
    wall, cpu = Series(tuple(peer.wall[size])), Series(tuple(peer.cpu[size]))
    what = f"{size // MB} MB, {setting}"
    notes.append(f"{what}: gloo {spoken(wall, size, setting)}, CPU {cpu.shown(' s/GB')}")
    if "ours" not in found:
        return
    mine, used = Series(tuple(found["ours"].wall[size])), Series(tuple(found["ours"].cpu[size]))
    target = held = None
    if not everybody:
        target = (EVEN if size == 25 * MB else None) if rate else (FASTER if size != 25 * MB else None)
        held = 1.0 if rate and size == 25 * MB else None
    lines.append(Line(what, "ms", in_ms(mine), in_ms(wall), "gloo", higher=False, target=target))
    lines.append(Line(f"{what}, CPU", "s/GB", used, cpu, "gloo", higher=False, target=held))
    if rate and size == 25 * MB:
        share = floor(size, hosts, rate) / mine.median
        checks.append(Check(f"{what}: of the link", f"{share:.1%}", f">= {SHARE:.0%}", share >= SHARE))
    notes.append(f"{what}: ours {spoken(mine, size, setting)}, CPU {used.shown(' s/GB')}")


def spoken(wall: Series, size: int, setting: Setting) -> str:
    """Milliseconds, and what that is of the link."""
    hosts, rate, _ = setting
    sent = 2 * (hosts - 1) / hosts * size * 8 / 1e9 / wall.median
    shown = f"{in_ms(wall).shown(' ms')}, {quantity(sent)} Gbit/s each way"
    return shown + (f", {floor(size, hosts, rate) / wall.median:.1%} of the link" if rate else "")


def in_ms(seconds: Series) -> Series:
    """The same in milliseconds."""
    return Series(tuple(1e3 * value for value in seconds.values))
