"""Handlers that do to a server what a machine may do to it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from torch import Tensor


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
