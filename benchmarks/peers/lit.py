"""LitServe: a batch is decoded, computed and encoded in a worker process, requests come to it through a queue.

    python -m benchmarks.peers.lit --port P --model NAME --batch 16 --wait 0.002 [--workers N] [--fast-queue]
"""

from __future__ import annotations

import sys

import litserve
import torch

from benchmarks.peers.serving import INPUTS, network, options


class Api(litserve.LitAPI):  # type: ignore[misc]
    """One request is one item."""

    def setup(self, device: str) -> None:
        torch.set_num_threads(1)
        self.model, self.item = network(self.name), INPUTS[self.name]

    # An annotation of the request would be taken for FastAPI's.
    def decode_request(self, request):  # type: ignore[no-untyped-def]
        return torch.tensor(request["inputs"][0]["data"]).reshape(self.item)

    def batch(self, inputs: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(inputs)

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            found: torch.Tensor = self.model(x if x.dim() > len(self.item) else x[None])
        return found

    def unbatch(self, output: torch.Tensor) -> list[torch.Tensor]:
        return list(output)

    def encode_response(self, output):  # type: ignore[no-untyped-def]
        data = output.reshape(-1).tolist()
        return {"outputs": [{"name": "y", "shape": [1, len(data)], "datatype": "FP32", "data": data}]}


def main() -> None:
    fast = "--fast-queue" in sys.argv
    sys.argv = [word for word in sys.argv if word != "--fast-queue"]
    told = options()
    api = Api(max_batch_size=told.batch, batch_timeout=told.wait, api_path=f"/v2/models/{told.model}/infer")
    api.name = told.model  # of the object: a worker process has the class as the module made it
    server = litserve.LitServer(
        api, accelerator="cpu", workers_per_device=told.workers, fast_queue=fast, restart_workers=True
    )
    server.run(host="127.0.0.1", port=told.port, log_level="error", generate_client_file=False, access_log=False)


if __name__ == "__main__":
    main()
