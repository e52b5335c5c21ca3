"""BentoML: adaptive batching by a dispatcher that learns; it is asked with plain lists, since it has no v2 protocol.

    python -m benchmarks.peers.bento --port P --model NAME [--batch 100 --wait 1.0] [--workers N]

`--wait` is its `max_latency_ms`, in seconds: the latency to keep below, beyond which it refuses (503).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import bentoml
import numpy
import torch

from benchmarks.peers.serving import INPUTS, network, options

#: What the process that serves is told; BentoML starts it by itself, and imports this module there.
_NAME, _BATCH, _WAIT, _WORKERS = (os.environ.get(f"BENCH_{word}", "") for word in ("MODEL", "BATCH", "WAIT", "WORKERS"))
_LIMITS = {"max_batch_size": int(_BATCH or 1), "max_latency_ms": round(1000 * float(_WAIT or 1))}
_BATCHING = {"batchable": True, **_LIMITS} if int(_BATCH or 1) > 1 else {}


@bentoml.service(workers=int(_WORKERS or 1), traffic={"timeout": 30}, logging={"access": {"enabled": False}})
class Model:
    """One request is a batch of one."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.model, self.item = network(_NAME), INPUTS[_NAME]

    @bentoml.api(route="/infer", **_BATCHING)  # type: ignore[untyped-decorator]
    def infer(self, inputs: numpy.ndarray) -> numpy.ndarray:
        with torch.inference_mode():
            x = torch.from_numpy(inputs.astype("f4")).reshape(-1, *self.item)
            found: numpy.ndarray = self.model(x).numpy()
        return found


def main() -> None:
    told = options()
    os.environ |= {
        "BENCH_MODEL": told.model, "BENCH_BATCH": str(told.batch), "BENCH_WAIT": str(told.wait or 1.0),
        "BENCH_WORKERS": str(told.workers), "BENTOML_DO_NOT_TRACK": "1", "DO_NOT_TRACK": "True",
    }  # fmt: skip
    command = Path(sys.executable).parent / "bentoml"
    os.execv(command, [
        str(command), "serve", "benchmarks.peers.bento:Model", "--host", "127.0.0.1", "--port", str(told.port),
        "--working-dir", str(Path(__file__).resolve().parents[2]),
    ])  # fmt: skip


if __name__ == "__main__":
    main()
