"""What the servers of others are told, and the model that all of them serve."""

from __future__ import annotations

import argparse

from benchmarks.serving.networks import INPUTS, network

__all__ = ["INPUTS", "network", "options"]


def options() -> argparse.Namespace:
    """The command line that all of them have."""
    it = argparse.ArgumentParser()
    it.add_argument("--port", type=int, required=True)
    it.add_argument("--model", choices=sorted(INPUTS), required=True)
    it.add_argument("--batch", type=int, default=1, help="requests in a batch, at most; 1: no batching")
    it.add_argument("--wait", type=float, default=0.0, help="seconds for which the first of a batch waits for others")
    it.add_argument("--workers", type=int, default=1, help="processes that hold the model")
    return it.parse_args()
