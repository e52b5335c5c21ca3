"""Folders that torch.distributed.checkpoint has written: what is read of them, and that nothing in them is run."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex
from torch.distributed.checkpoint.state_dict_saver import save

from holdfast.checkpoint.forms import dcp
from holdfast.checkpoint.forms.weights import TensorKind, locate_weights, open_weights
from holdfast.errors import NoWeights

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def saved(folder: Path, state: dict[str, Any]) -> Path:
    save(state, checkpoint_id=folder, no_dist=True)
    return folder


def changed(folder: Path, change: Any) -> None:
    """Write its index anew, with a change."""
    index = folder / dcp.INDEX
    found = pickle.loads(index.read_bytes())
    index.write_bytes(pickle.dumps(change(found)))


def test_a_model_beside_its_optimizer(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).to(torch.bfloat16)
    state = {"model": model.state_dict(), "optimizer": {"lr": 0.1, "momentum": torch.ones(2)}, "epoch": 3}
    path = saved(tmp_path / "with a späce", state)
    assert locate_weights(path) == (path, [])
    weights = open_weights(path)
    assert weights.kinds == {
        name: TensorKind(str(one.dtype).removeprefix("torch."), tuple(one.shape))
        for name, one in state["model"].items()
    }  # fmt: skip
    for name, one in state["model"].items():
        assert bytes(weights.read(name)) == bytes(one.reshape(-1).view(torch.uint8).numpy()), name


def test_a_state_dict_by_itself(tmp_path: Path) -> None:
    weights = open_weights(saved(tmp_path / "flat", {"fc.weight": torch.tensor([[1.0, 2.0]]), "n": torch.tensor(5)}))
    assert weights.kinds == {"fc.weight": TensorKind("float32", (1, 2)), "n": TensorKind("int64", ())}
    assert struct.unpack("<2f", weights.read("fc.weight")) == (1, 2) and struct.unpack("<q", weights.read("n")) == (5,)


def test_a_tensor_that_several_ranks_have_written(tmp_path: Path) -> None:
    """Each rank writes its rows: the same files, and another index."""
    path = saved(tmp_path / "two", {"top": torch.tensor([[1.0, 2.0]]), "low": torch.tensor([[3.0, 4.0], [5.0, 6.0]])})

    def joined(index: Metadata) -> Metadata:
        top, low = index.state_dict_metadata.pop("top"), index.state_dict_metadata.pop("low")
        low.chunks = [ChunkStorageMetadata(torch.Size([0, 0]), top.size),
                      ChunkStorageMetadata(torch.Size([1, 0]), low.size)]  # fmt: skip
        low.size = torch.Size([3, 2])
        index.state_dict_metadata["w"] = low
        index.planner_data = None
        index.storage_data = {
            MetadataIndex("w", torch.Size([row, 0])): place
            for name, row in (("top", 0), ("low", 1))
            for key, place in index.storage_data.items() if key.fqn == name
        }  # fmt: skip
        return index

    changed(path, joined)
    weights = open_weights(path)
    assert weights.kinds == {"w": TensorKind("float32", (3, 2))}
    assert struct.unpack("<6f", weights.read("w")) == (1, 2, 3, 4, 5, 6)


def test_nothing_in_it_is_run(tmp_path: Path) -> None:
    class Bad:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "was run"),)

    path = saved(tmp_path / "bad", {"w": torch.ones(2)})

    def with_it(index: Metadata) -> Metadata:
        index.planner_data = Bad()
        return index

    changed(path, with_it)
    with pytest.raises(NoWeights, match=r"its \.metadata names posix\.mkdir, which no such file needs\. Such a file"):
        open_weights(path)
    assert not (tmp_path / "was run").exists()


def _outside(index: Metadata) -> Metadata:
    for place in index.storage_data.values():
        place.relative_path = "../elsewhere"
    return index


def _with_less(index: Metadata) -> Metadata:
    index.state_dict_metadata["w"].chunks = []
    return index


def _compressed(index: Metadata) -> Metadata:
    for place in index.storage_data.values():
        place.transform_descriptors = ["zstd"]
    return index


def _empty(index: Metadata) -> Metadata:
    index.state_dict_metadata.clear()
    return index


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_outside, r"names a file outside of it: \.\./elsewhere"),
        (_with_less, r"lacks something \(KeyError: \"a piece of 'w'\"\)"),
        (_compressed, r"__0_0\.distcp was written with 'zstd'"),
        (_empty, "there is no tensor in it"),
        (lambda index: [1, 2], "is something else"),
    ],
)
def test_an_index_that_does_not_fit(tmp_path: Path, change: Any, told: str) -> None:
    path = saved(tmp_path / "one", {"w": torch.ones(2)})
    changed(path, change)
    with pytest.raises(NoWeights, match=told):
        open_weights(path)


def test_an_index_that_is_cut_off(tmp_path: Path) -> None:
    path = saved(tmp_path / "one", {"w": torch.ones(2)})
    data = (path / dcp.INDEX).read_bytes()
    (path / dcp.INDEX).write_bytes(data[: len(data) // 2])
    with pytest.raises(NoWeights, match=r"its \.metadata is not whole"):
        open_weights(path)


def test_files_that_are_gone_or_something_else(tmp_path: Path) -> None:
    path = saved(tmp_path / "one", {"w": torch.ones(2)})
    file = path / "__0_0.distcp"
    data = file.read_bytes()
    weights = open_weights(path)
    file.write_bytes(data[:50] + bytes(len(data) - 50))
    with pytest.raises(NoWeights, match=r"__0_0\.distcp has no tensor where 'w' should be"):
        weights.read("w")
    file.unlink()
    with pytest.raises(Exception, match="cannot be read"):
        weights.read("w")
