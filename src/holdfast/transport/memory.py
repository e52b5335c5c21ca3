"""The memory that the processes of one host share: one descriptor without a name.

It has no name in any file system, so nothing can be left over: the last process that holds it takes
it along. Before it is made, there must be room for it, because the kernel gives the pages only when
they are touched, and then kills somebody.
"""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.errors import ResourceError

__all__ = ["available", "reserve", "reserve_checked"]

_V2 = Path("/sys/fs/cgroup")
_V1 = Path("/sys/fs/cgroup/memory")


def available() -> tuple[int, str]:
    """How many bytes this process could still use, and what sets that limit."""
    limits = [(_meminfo("MemAvailable"), "free on this machine")]
    for limit, used in _cgroups():
        limits.append((max(0, limit - used), "left in this process's memory cgroup"))
    return min(limits)


def reserve_checked(size: int, free: int, reason: str) -> None:
    """Refuse `size` bytes where only `free` are there; pure, so that its text can be tested."""
    if size > free:
        raise ResourceError(
            f"The run needs {_mib(size)} of shared memory for parameters, gradients and optimizer state, "
            f"but only {_mib(free)} are {reason}. Use fewer lanes (each open lane holds one gradient), "
            f"a smaller model or an optimizer with less state, or free some memory."
        )


def reserve(size: int) -> int:
    """A descriptor of `size` bytes of zeroed memory, close-on-exec. The caller closes it."""
    reserve_checked(size, *available())
    fd = os.memfd_create("holdfast", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, size)
    except OSError as error:
        os.close(fd)
        raise ResourceError(f"The system refused {_mib(size)} of shared memory: {error.strerror}.") from error
    return fd


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"


def _meminfo(field: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return 2**62


def _cgroups() -> list[tuple[int, int]]:
    """(limit, used) of every memory cgroup that holds us, outer ones included."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, names = _V2, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            root, names = _V1, ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        here = Path(path.lstrip("/"))
        for place in (here, *here.parents):
            pair = tuple(_number(root / place / name) for name in names)
            if pair[0] is not None and pair[1] is not None:
                found.append((pair[0], pair[1]))
    return found


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # "max", or not mounted here
        return None
