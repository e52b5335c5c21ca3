"""Ray Serve: a deployment behind its HTTP proxy, with `@serve.batch` or without.

    python -m benchmarks.peers.rayserve --port P --model NAME [--batch 16 --wait 0.002] [--workers N]

What its documentation says for throughput is set in the environment by who starts it (RAY_SERVE_THROUGHPUT_OPTIMIZED).
"""

from __future__ import annotations

import signal
import tempfile
from typing import Any

import ray
import torch
from ray import serve
from starlette.requests import Request

from benchmarks.peers.serving import INPUTS, network, options


def _tensor(body: dict[str, Any], item: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor(body["inputs"][0]["data"]).reshape(item)


def _answer(data: list[float]) -> dict[str, Any]:
    return {"outputs": [{"name": "y", "shape": [1, len(data)], "datatype": "FP32", "data": data}]}


class Single:
    """Without batching."""

    def __init__(self, name: str, batch: int, wait: float) -> None:
        torch.set_num_threads(1)
        self.model, self.item = network(name), INPUTS[name]

    async def __call__(self, request: Request) -> dict[str, Any]:
        x = _tensor(await request.json(), self.item)
        with torch.inference_mode():
            return _answer(self.model(x[None]).reshape(-1).tolist())


class Batched:
    """With it."""

    def __init__(self, name: str, batch: int, wait: float) -> None:
        torch.set_num_threads(1)
        self.model, self.item = network(name), INPUTS[name]
        self.predict.set_max_batch_size(batch)
        self.predict.set_batch_wait_timeout_s(wait)

    @serve.batch(  # type: ignore[untyped-decorator]
        max_batch_size=16, batch_wait_timeout_s=0.002
    )
    async def predict(self, inputs: list[torch.Tensor]) -> list[list[float]]:
        with torch.inference_mode():
            found: list[list[float]] = self.model(torch.stack(inputs)).tolist()
        return found

    async def __call__(self, request: Request) -> dict[str, Any]:
        return _answer(await self.predict(_tensor(await request.json(), self.item)))


def main() -> None:
    told = options()
    kind = Batched if told.batch > 1 else Single
    with tempfile.TemporaryDirectory(prefix="r-", dir="/tmp", ignore_cleanup_errors=True) as temp:
        ray.init(
            num_cpus=2 + told.workers, include_dashboard=False, log_to_driver=False, logging_level="error",
            object_store_memory=100_000_000, _temp_dir=temp,
        )  # fmt: skip
        serve.start(http_options={"host": "127.0.0.1", "port": told.port}, logging_config={"enable_access_log": False})
        deployment = serve.deployment(kind, num_replicas=told.workers, max_ongoing_requests=1024)
        serve.run(deployment.bind(told.model, told.batch, told.wait))
        signal.sigwait([signal.SIGTERM, signal.SIGINT])
        ray.shutdown()


if __name__ == "__main__":
    main()
