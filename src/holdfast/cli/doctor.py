"""`holdfast doctor`: is this machine fit for a run? Each line: what, its value, the verdict, the fix.

A check is a function that returns a `Check`; none of them imports torch or changes anything. What takes two machines
is in `network_report`.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from holdfast.cli.options import Parser
from holdfast.cli.version import installed
from holdfast.errors import UsageError
from holdfast.observe.directory import read_json, running
from holdfast.transport.memory import available

__all__ = ["Check", "main", "parser"]

_TORCH = ((2, 8), (2, 14))


class Check(NamedTuple):
    """One finding. `verdict` is "ok", "warn" or "bad"; `fix` says what to do unless it is ok."""

    what: str
    value: str
    verdict: Literal["ok", "warn", "bad"]
    fix: str = ""


def check_python() -> Check:
    """Which Python this is; pip refuses one that is too old."""
    return Check("python", platform.python_version(), "ok")


def check_torch() -> Check:
    """A torch in the range we are tested with; its version is read without importing it."""
    version = installed("torch")
    if not version:
        return Check("torch", "not installed", "bad", "pip install 'torch>=2.8,<2.14'")
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
    if _TORCH[0] <= numbers < _TORCH[1]:
        return Check("torch", version, "ok")
    return Check("torch", version, "warn", "Tested with torch>=2.8,<2.14 only.")


def check_cpus() -> Check:
    """How many CPUs this process may use."""
    ours, there = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    value = f"{ours}" if ours == there else f"{ours} of {there}"
    if ours > 1:
        return Check("cpus", value, "ok")
    return Check("cpus", value, "warn", "With one CPU, more workers make a run safer but not faster.")


def check_memory() -> Check:
    """Memory for the arena and the workers."""
    free, why = available()
    value = f"{free / 2**30:.1f} GiB {why}"
    if free >= 2**30:
        return Check("memory", value, "ok")
    return Check("memory", value, "warn", "A worker with torch needs about 0.3 GiB; use fewer workers.")


def check_shm() -> Check:
    """/dev/shm, which we do not need, but data loaders do."""
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        return Check("/dev/shm", "missing", "warn", "Use num_workers=0 in your DataLoader; Holdfast itself needs none.")
    value = f"{free / 2**20:.0f} MiB free"
    if free >= 64 * 2**20:
        return Check("/dev/shm", value, "ok")
    return Check("/dev/shm", value, "warn", "A DataLoader with num_workers > 0 may need more.")


def check_kernel() -> Check:
    """The system calls a run stands on."""
    missing = [name for name, try_it in _CALLS.items() if not _works(try_it)]
    if not missing:
        return Check("kernel", f"{platform.release()}: {', '.join(_CALLS)}", "ok")
    return Check("kernel", f"{platform.release()}: no {', '.join(missing)}", "bad", "Use Linux 5.4 or newer.")


def check_disk() -> Check:
    """Room for runs in this directory."""
    try:
        free = shutil.disk_usage(".").free
    except OSError as error:
        return Check("disk", str(error.strerror), "bad", "Change to a directory that can be read.")
    value = f"{free / 2**30:.1f} GiB free in this directory"
    if not os.access(".", os.W_OK):
        return Check("disk", "this directory cannot be written", "warn", "Use --dir with a directory that can.")
    if free >= 100 * 2**20:
        return Check("disk", value, "ok")
    return Check("disk", value, "warn", "Free some space, or use --dir on another disk.")


def check_runs() -> Check:
    """Runs under runs/ whose launcher was killed."""
    records = sorted(Path("runs").glob("*/run.json"))
    orphans = [
        record.parent for record in records
        if not running(record.parent) and not (record.parent / "summary.json").exists() and read_json(record)
    ]
    going = sum(running(record.parent) for record in records)
    if not orphans:
        return Check("runs", f"{len(records)} under runs/, {going} going, none orphaned", "ok")
    names = ", ".join(map(str, orphans[:3])) + (", ..." if len(orphans) > 3 else "")
    fix = f"`holdfast status {orphans[0]}` sweeps up after it, as does the next `holdfast run`."
    return Check("runs", f"{len(orphans)} whose launcher was killed: {names}", "warn", fix)


def _memfd() -> None:
    os.close(os.memfd_create("holdfast-doctor", os.MFD_CLOEXEC))


def _eventfd() -> None:
    os.close(os.eventfd(0, os.EFD_CLOEXEC))


def _pidfd() -> None:
    os.close(os.pidfd_open(os.getpid()))


def _seqpacket() -> None:
    for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET):
        end.close()


_CALLS: dict[str, Callable[[], None]] = {
    "memfd": _memfd, "eventfd": _eventfd, "pidfd": _pidfd, "seqpacket": _seqpacket,
}
_CHECKS: tuple[Callable[[], Check], ...] = (
    check_python, check_torch, check_cpus, check_memory, check_shm, check_kernel, check_disk, check_runs,
)


def _works(try_it: Callable[[], None]) -> bool:
    try:
        try_it()
    except (OSError, AttributeError):
        return False
    return True


def parser() -> Parser:
    """What the command understands."""
    it = Parser("doctor", "Check this machine, or the network between two, and say what to do about what is missing.")
    it.add_argument("--json", action="store_true", help="a list of what, value, verdict, fix; or what was measured")
    it.add_argument(
        "--between", nargs="+", metavar=("A", "B"),
        help="measure rate and latency between two listeners (HOST:PORT each), or between here and one",
    )
    it.add_argument("--listen", metavar="ADDRESS[:PORT]", help="be measured: 0.0.0.0 or :: for all addresses")
    it.add_argument(
        "--token-file", metavar="FILE",
        help="the secret that all of them share: made by --listen, or the token or credentials of a run",
    )
    return it


def main(argv: Sequence[str]) -> int:
    """Print every check; 1 when one of them is bad."""
    options = parser().parse(argv)
    if options.between and options.listen:
        raise UsageError("--between measures and --listen is measured: start two commands.")
    if options.between or options.listen:
        from holdfast.cli import network_report  # it brings what a network needs, which the checks do not

        if options.listen:
            return network_report.listen(options.listen, options.token_file)
        return network_report.between(options.between, options.token_file, as_json=options.json)
    if options.token_file:
        raise UsageError("--token-file is of use with --between or --listen only.")
    checks = [check() for check in _CHECKS]
    print(json.dumps([check._asdict() for check in checks], indent=2) if options.json else _table(checks))
    return 1 if any(check.verdict == "bad" for check in checks) else 0


def _table(checks: Iterable[Check]) -> str:
    return "\n".join(
        f"{check.verdict:<5} {check.what:<9} {check.value}" + (f"\n{'':<16}{check.fix}" if check.fix else "")
        for check in checks
    )
