"""What a server says of itself and its models, as plain values: `json_body` makes a body of them, gRPC its messages.

Names are those of the protocol, and Triton's where it goes beyond it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.model.signature import Signature, TensorSpec

__all__ = [
    "EXTENSIONS", "REPOSITORY", "BatchStatistics", "ModelIndex", "ModelStatistics", "StatisticDuration", "json_body",
    "live", "model_config", "model_metadata", "model_ready", "repository_index", "server_metadata", "statistics",
]  # fmt: skip

View = dict[str, Any]

#: What goes beyond the protocol, as Triton calls it.
EXTENSIONS = ("binary_tensor_data", "model_configuration", "schedule_policy", "statistics")
#: Only with the control plane, which is off by default.
REPOSITORY = "model_repository"


def json_body(view: object) -> bytes:
    """A body of JSON.

    >>> json_body(live(True, False))
    b'{"live":true,"ready":false}'
    """
    return msgspec.json.encode(view)


def live(live: bool, ready: bool) -> View:
    """Is it up, and is it ready? Both questions are answered with both keys: clients differ in which one they read."""
    return {"live": live, "ready": ready}


def server_metadata(name: str, version: str, *, repository: bool = False) -> View:
    """The server."""
    return {"name": name, "version": version, "extensions": sorted([*EXTENSIONS, *[REPOSITORY] * repository])}


def model_ready(name: str, ready: bool) -> View:
    """Is a model ready?"""
    return {"name": name, "ready": ready}


def model_metadata(name: str, versions: Sequence[str], platform: str, signature: Signature) -> View:
    """What goes into a model and comes out of it."""
    return {
        "name": name, "versions": list(versions), "platform": platform,
        "inputs": [_tensor(spec) for spec in signature.inputs],
        "outputs": [_tensor(spec) for spec in signature.outputs],
    }  # fmt: skip


def _tensor(spec: TensorSpec) -> View:
    return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}


def model_config(name: str, platform: str, signature: Signature, max_batch_size: int) -> View:
    """A model as Triton's configuration has it: where it is batched, dimensions are those of one item.

    Args:
        max_batch_size: most items of a batch; it counts only for a batched model.
    """
    batched = signature.batched
    return {
        "name": name, "platform": platform, "backend": "holdfast", "max_batch_size": max_batch_size if batched else 0,
        "input": [_config(spec, batched) for spec in signature.inputs],
        "output": [_config(spec, batched) for spec in signature.outputs],
    }  # fmt: skip


def _config(spec: TensorSpec, batched: bool) -> View:
    datatype = "STRING" if spec.datatype == "BYTES" else spec.datatype
    return {
        "name": spec.name, "data_type": f"TYPE_{datatype}", "dims": list(spec.item() if batched else spec.shape)
    }  # fmt: skip


class StatisticDuration(msgspec.Struct, frozen=True):
    """How often something was done, and how long all of it took."""

    count: int = 0
    ns: int = 0


class BatchStatistics(msgspec.Struct, frozen=True):
    """All batches of one size."""

    batch_size: int
    compute_input: StatisticDuration = StatisticDuration()
    compute_infer: StatisticDuration = StatisticDuration()
    compute_output: StatisticDuration = StatisticDuration()


class ModelStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a model since it was loaded."""

    name: str
    version: str
    last_inference: int = 0  #: milliseconds since the epoch
    inference_count: int = 0  #: items
    execution_count: int = 0  #: batches
    success: StatisticDuration = StatisticDuration()
    fail: StatisticDuration = StatisticDuration()
    queue: StatisticDuration = StatisticDuration()
    compute_input: StatisticDuration = StatisticDuration()
    compute_infer: StatisticDuration = StatisticDuration()
    compute_output: StatisticDuration = StatisticDuration()
    batches: tuple[BatchStatistics, ...] = ()


#: Of all of a model's requests together. Answers are not cached, so those two stay at nothing.
_INFER_STATS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
_CACHE = {"cache_hit": {"count": 0, "ns": 0}, "cache_miss": {"count": 0, "ns": 0}}


def statistics(models: Sequence[ModelStatistics]) -> View:
    """The statistics of models, as Triton nests them."""
    told = []
    for model in models:
        view = msgspec.to_builtins(model)
        inference = {name: view.pop(name) for name in _INFER_STATS} | _CACHE
        batches = view.pop("batches")
        told.append({**view, "inference_stats": inference, "batch_stats": batches})
    return {"model_stats": told}


class ModelIndex(msgspec.Struct, frozen=True):
    """One version of a model in the repository."""

    name: str
    version: str = ""
    state: str = "READY"  #: READY, LOADING, UNLOADING or UNAVAILABLE
    reason: str = ""


def repository_index(models: Sequence[ModelIndex], *, ready: bool = False) -> list[View]:
    """All models, or only those that are ready."""
    return [msgspec.to_builtins(model) for model in models if not ready or model.state == "READY"]
