"""MLServer: a custom runtime, with adaptive batching or without, in the server itself or in worker processes.

    python -m benchmarks.peers.mls --port P --model NAME [--batch 16 --wait 0.002] [--workers N]

`--workers 0` computes in the server's own process.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from pathlib import Path

import torch
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse

from benchmarks.peers.serving import INPUTS, network, options


class Runtime(MLModel):  # type: ignore[misc]
    """Numbers in, numbers out."""

    async def load(self) -> bool:
        torch.set_num_threads(1)
        self.model, self.item = network(self.name), INPUTS[self.name]
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        x = NumpyCodec.decode_input(payload.inputs[0])
        with torch.inference_mode():
            found = self.model(torch.from_numpy(x.astype("f4")).reshape(-1, *self.item)).numpy()
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("y", found)])


def _free() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def main() -> None:
    told = options()
    where = Path(tempfile.mkdtemp(prefix="mls-", dir=os.environ.get("TMPDIR", "/tmp")))
    settings = {
        "debug": False, "host": "127.0.0.1", "http_port": told.port, "grpc_port": _free(), "metrics_port": _free(),
        "parallel_workers": told.workers, "use_structured_logging": False, "metrics_endpoint": None,
        "environments_dir": str(where / "environments"), "metrics_dir": str(where), "gzip_enabled": False,
    }  # fmt: skip
    model = {"name": told.model, "implementation": "benchmarks.peers.mls.Runtime"}
    if told.batch > 1:
        model |= {"max_batch_size": told.batch, "max_batch_time": told.wait}
    (where / "settings.json").write_text(json.dumps(settings))
    (where / "model-settings.json").write_text(json.dumps(model))
    command = Path(sys.executable).parent / "mlserver"
    os.execv(command, [str(command), "start", str(where)])


if __name__ == "__main__":
    main()
