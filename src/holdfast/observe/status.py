"""A run's status: the stable JSON that scripts read, and the table that people read. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.control.membership.roster import CrewStatus, WorkerStatus, titled
from holdfast.dataplane.relaxed.ages import BUCKETS
from holdfast.observe.meter import RunView
from holdfast.observe.progress import line, short_number

__all__ = ["of_ended", "of_going", "table"]

#: How stale pushes were: `dataplane.relaxed.ages`.
_STALENESS = ("staleness", "staleness_mean", "staleness_most")
#: What a host has where one of them holds the state.
_ROLES = {"home": "the home: holds the state", "replica": "holds a replica", "mirror": "mirrors the state"}


def of_going(
    snapshot: CrewStatus, view: RunView, *, pid: int, host: str, seconds: float, directory: str,
    peers: Mapping[int, str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The status of a going run. The names here are an interface: add, never rename.

    `peers` are the addresses of the hosts that joined, by number.
    """
    names = {there.host: there.name for there in snapshot.hosts}
    return {
        "state": "stopping" if snapshot.stopping else "running" if snapshot.generation else "starting",
        "dir": directory,
        "training": view.training,
        "step": view.step,
        "total_steps": view.total_steps or None,
        "epoch": view.epoch,
        "epochs": view.epochs or None,
        "generation": snapshot.generation,
        "loss": view.loss,
        "samples": view.samples,
        "samples_per_second": round(view.samples_per_second, 1),
        "eta_seconds": None if view.eta is None else round(view.eta, 1),
        "seconds": round(seconds, 3),
        "workers_wanted": snapshot.wanted,
        "servers_wanted": snapshot.servers_wanted,
        "workers_lost": snapshot.lost,
        "waiting_for": snapshot.waiting,
        "units": view.units or None,
        "sync": snapshot.sync,
        "sync_wanted": snapshot.sync_wanted,
        **dict.fromkeys(_STALENESS), "staleness": [], **view.ages.facts(),
        "coordinator": {"pid": pid, "host": host},
        "workers": [
            {**_process(person, view, names.get(person.host, host)), "lanes": person.lanes,
             "speed": round(view.speeds.get(person.worker, 0.0), 1), "lead": person.worker == snapshot.lead}
            for person in sorted(snapshot.people, key=lambda person: person.worker)
            if not person.server
        ],
        "hosts": [
            {
                "host": there.host,
                "name": there.name,
                "address": (peers or {}).get(there.host),
                "slots": there.slots,
                "workers": sum(person.host == there.host for person in snapshot.people),
                "level": there.level,
                "role": there.role or None,
                "leaving": there.leaving or None,
            }
            for there in sorted(snapshot.hosts, key=lambda there: there.host)
        ],
        "servers": [
            {**_process(person, view, names.get(person.host, host)), "slices": view.owned.get(person.worker, 0),
             "share": round(person.share, 4), "speed": round(view.paces.get(person.worker, 0.0), 1),
             "bytes_per_second": round(view.rates.get(person.worker, 0.0))}
            for person in sorted(snapshot.people, key=lambda person: person.worker)
            if person.server
        ],
        "progress": line(view),
    }


def _process(person: WorkerStatus, view: RunView, host: str) -> dict[str, Any]:
    whom, why = view.waiting.get(person.worker, (None, ""))
    by, share = view.held_up.get(person.worker, (None, 0.0))
    return {
        "worker": person.worker,
        "pid": person.pid,
        "host": host,
        "host_number": person.host,
        "step": view.steps.get(person.worker, 0),
        "wait": round(view.waits.get(person.worker, 0.0), 4),
        "waits_for": whom,
        "why": why or None,
        "held_up_by": by,
        "held_up": round(share, 2),
        "state": person.stage,
    }


def of_ended(summary: Mapping[str, Any], directory: str) -> dict[str, Any]:
    """The same shape for a run that has ended, from its summary."""
    return {
        "state": "ended",
        "outcome": summary.get("outcome"),
        "error": summary.get("error"),
        "dir": directory,
        "step": summary.get("steps"),
        "epoch": summary.get("epochs"),
        "generation": summary.get("generations"),
        "loss": summary.get("loss"),
        "samples": summary.get("samples"),
        "samples_per_second": summary.get("samples_per_second"),
        "seconds": summary.get("seconds"),
        "workers_lost": summary.get("workers_lost"),
        "modes": summary.get("modes"),
        "units": summary.get("units"),
        **{name: summary.get(name) for name in _STALENESS},
        "weights_sha256": summary.get("weights_sha256"),
        "trainings": summary.get("trainings"),
        "coordinator": {"pid": None, "host": summary.get("host")},
        "workers": [],
        "hosts": [],
        "servers": [],
    }


def table(status: Mapping[str, Any]) -> str:
    """The status for people."""
    if status["state"] == "ended":
        lines = [f"{status['dir']}: ended ({status['outcome']})"]
        if status["error"]:
            lines.append(f"  {str(status['error']).splitlines()[0]}")
        if status["step"] is not None:
            lines.append(f"  {status['step']} steps, weights_sha256 {status['weights_sha256'] or 'unknown'}")
        return "\n".join(lines)
    head = f"{status['dir']}: {status['state']}, generation {status['generation']}, launcher pid "
    lines = [f"{head}{status['coordinator']['pid']}", f"  {status['progress']}"]
    if (status["sync"], status["sync_wanted"]) != ("exact", "exact"):
        coming = f", {status['sync_wanted']} from the next step boundary on" * (status["sync"] != status["sync_wanted"])
        lines.append(f"  sync {status['sync']}{coming}")
    if status["staleness"]:
        most = f"mean {status['staleness_mean']:.2f}, most {status['staleness_most']}"
        lines.append(f"  staleness of pushes: {_histogram(status['staleness'])} ({most})")
    several = any(there["host"] for there in status["hosts"])
    head = f"  {'worker':>6} {'pid':>8} {'state':<10} {'lanes':<14} {'step':>7} {'samples/s':>10} {'wait':>5}"
    lines.append(head + ("  host" if several else ""))
    for worker in status["workers"]:
        lanes = ",".join(map(str, worker["lanes"])) or "-"
        lines.append(
            f"  {worker['worker']:>6} {worker['pid']:>8} {worker['state']:<10} {lanes:<14} {worker['step']:>7} "
            f"{short_number(worker['speed']):>10} {worker['wait']:>5.0%}"
            + (f"  {worker['host_number']}" if several else "") + ("  lead" if worker["lead"] else "")
        )
    if status["servers"]:
        head = f"  {'server':>6} {'pid':>8} {'state':<10} {'slices':<14} {'step':>7} {'updates/s':>10} {'wait':>5}"
        lines.append(head)
    for server in status["servers"]:
        slices = f"{server['slices']} ({server['share']:.0%})" if server["share"] else str(server["slices"])
        lines.append(
            f"  {server['worker']:>6} {server['pid']:>8} {server['state']:<10} {slices:<14} "
            f"{server['step']:>7} {short_number(server['speed']):>10} {server['wait']:>5.0%}"
        )
    serving = {server["worker"] for server in status["servers"]}
    for worker in status["workers"]:
        whom, why = worker["waits_for"], worker["why"]
        if not why and worker["held_up_by"] is not None:
            whom, why = worker["held_up_by"], f"{worker['held_up']:.0%} of the last seconds"
        if why:
            lines.append(f"  {titled([worker['worker']], serving)} waits for {titled([whom], serving)}: {why}")
    for there in status["hosts"] if several else ():
        room = f"{there['workers']} of {there['slots']} slots"
        state = _ROLES[there["role"]] if there["role"] else "no state yet" if there["level"] < 0 else ""
        facts = [there["address"] or "this machine", room, state]
        facts.append(f"leaving ({there['leaving']})" if there["leaving"] else "")
        lines.append(f"  host {there['host']} ({there['name']}): {', '.join(filter(None, facts))}")
    return "\n".join(lines)


def _histogram(counts: Sequence[int]) -> str:
    """Shares by staleness, the rare ones too.

    >>> _histogram([90, 9, 0, 1])
    '0: 90%, 1: 9%, 3: 1%'
    >>> _histogram([199] + [0] * 30 + [1])
    '0: 100%, 31+: 0.5%'
    """
    total = sum(counts)
    return ", ".join(
        f"{age}{'+' * (age == BUCKETS - 1)}: {count / total:.{int(count < total / 100)}%}"
        for age, count in enumerate(counts) if count
    )
