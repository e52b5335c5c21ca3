"""Handlers that do to a server what a machine may do to it."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import torch
from torch import Tensor

if extra := int(os.environ.get("STORE_EXTRA", "0")):  # bytes of address space beyond what this process has now
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + extra
    resource.setrlimit(resource.RLIMIT_AS, (size, size))


def torn(key: str, stored: Tensor, pushed: Tensor) -> None:
    """Adds; the first time (there is a file that says so) the server is killed when half of it is written."""
    once = Path(os.environ["STORE_ONCE"])
    half = len(stored) // 2
    stored[:half] += pushed[:half]
    if once.exists():
        once.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    stored[half:] += pushed[half:]


def deadly(key: str, stored: Tensor, pushed: Tensor) -> None:
    """Kills its server whenever it is called."""
    os.kill(os.getpid(), signal.SIGKILL)


def greedy(key: str, stored: Tensor, pushed: Tensor) -> None:
    """Adds, with a copy as large as what was pushed."""
    stored += torch.clone(pushed) if pushed[0] < 2 else torch.zeros(10**9) + pushed


def vandal(key: str, stored: Tensor, pushed: Tensor, new: Tensor) -> None:
    """Writes to what is published."""
    stored += pushed


vandal.elementwise = vandal.into = True  # type: ignore[attr-defined]
