"""What a server says of itself, line by line of the protocol's tables; the same values as JSON and in messages."""

from __future__ import annotations

import json
from typing import Any

from holdfast.model.signature import TensorSpec
from holdfast.serve.protocol import metadata
from holdfast.serve.protocol.grpc_messages import from_view
from holdfast.serve.protocol.metadata import BatchStatistics, ModelIndex, ModelStatistics, StatisticDuration
from tests.unit.serve.protocol.arrays import signature

SIGNATURE = signature(x=("FP32", (-1, 1, 28, 28)), t=("BYTES", (-1,)), outputs=(TensorSpec("y", "FP32", (-1, 10)),))


def said(view: Any) -> Any:
    return json.loads(metadata.json_body(view))


def test_live_and_ready_have_both_keys() -> None:
    assert said(metadata.live(True, False)) == {"live": True, "ready": False}
    assert from_view("ServerLive", metadata.live(True, False)).live is True
    assert from_view("ServerReady", metadata.live(True, False)).ready is False


def test_server() -> None:
    extensions = ["binary_tensor_data", "model_configuration", "schedule_policy", "statistics"]
    view = metadata.server_metadata("holdfast", "1.0")
    assert said(view) == {"name": "holdfast", "version": "1.0", "extensions": extensions}
    assert list(from_view("ServerMetadata", view).extensions) == extensions
    assert "model_repository" in metadata.server_metadata("holdfast", "1.0", repository=True)["extensions"]


def test_model_ready() -> None:
    assert said(metadata.model_ready("m", True)) == {"name": "m", "ready": True}
    assert from_view("ModelReady", metadata.model_ready("m", True)).ready is True


def test_model() -> None:
    view = metadata.model_metadata("m", ["1", "2"], "pytorch", SIGNATURE)
    assert said(view) == {
        "name": "m", "versions": ["1", "2"], "platform": "pytorch",
        "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [-1, 1, 28, 28]},
            {"name": "t", "datatype": "BYTES", "shape": [-1]}
        ],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 10]}],
    }  # fmt: skip
    message = from_view("ModelMetadata", view)
    assert (message.platform, list(message.versions), list(message.inputs[0].shape)) == (
        "pytorch",
        ["1", "2"],
        [-1, 1, 28, 28],
    )


def test_configuration_has_the_shape_of_an_item() -> None:
    view = metadata.model_config("m", "pytorch", SIGNATURE, 64)
    assert said(view) == {
        "name": "m", "platform": "pytorch", "backend": "holdfast", "max_batch_size": 64,
        "input": [
            {"name": "x", "data_type": "TYPE_FP32", "dims": [1, 28, 28]},
            {"name": "t", "data_type": "TYPE_STRING", "dims": []}
        ],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [10]}],
    }  # fmt: skip
    assert from_view("ModelConfig", {"config": view}).config.input[1].data_type == 13
    alone = metadata.model_config("m", "pytorch", signature(x=("FP32", (2, 3)), batched=False), 64)
    assert (alone["max_batch_size"], alone["input"][0]["dims"]) == (0, [2, 3])


def test_statistics_have_the_names_of_triton() -> None:
    model = ModelStatistics(
        name="m", version="3", last_inference=5, inference_count=7, execution_count=2,
        success=StatisticDuration(7, 700), queue=StatisticDuration(7, 70),
        batches=(BatchStatistics(4, compute_infer=StatisticDuration(1, 9)),),
    )  # fmt: skip
    view = metadata.statistics([model])
    none = {"count": 0, "ns": 0}
    assert said(view) == {
        "model_stats": [{
            "name": "m", "version": "3", "last_inference": 5, "inference_count": 7, "execution_count": 2,
            "inference_stats": {
                "success": {"count": 7, "ns": 700}, "fail": none, "queue": {"count": 7, "ns": 70},
                "compute_input": none,
                "compute_infer": none, "compute_output": none, "cache_hit": none, "cache_miss": none,
            },
            "batch_stats": [{
                "batch_size": 4, "compute_input": none, "compute_infer": {"count": 1, "ns": 9}, "compute_output": none,
            }],
        }]
    }  # fmt: skip
    (told,) = from_view("ModelStatistics", view).model_stats
    assert (told.inference_stats.success.ns, told.batch_stats[0].compute_infer.ns) == (700, 9)


def test_repository() -> None:
    models = [ModelIndex("m", "3"), ModelIndex("n", "1", "UNAVAILABLE", "its weights are damaged")]
    view = metadata.repository_index(models)
    assert said(view)[1] == {"name": "n", "version": "1", "state": "UNAVAILABLE", "reason": "its weights are damaged"}
    assert [model["name"] for model in metadata.repository_index(models, ready=True)] == ["m"]
    assert from_view("RepositoryIndex", {"models": view}).models[1].state == "UNAVAILABLE"
