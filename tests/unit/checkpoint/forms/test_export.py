"""The model in forms that others read."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec
import pytest
import safetensors.torch
import torch

from holdfast.checkpoint.content import StateEntry, Tensor
from holdfast.checkpoint.dtypes import DTYPES
from holdfast.checkpoint.forms.export import export, format_of, weights_sha256
from holdfast.checkpoint.reader import Checkpoint, open_checkpoint
from holdfast.checkpoint.writer import write
from holdfast.errors import DamagedCheckpoint, ResourceError, UsageError
from tests.unit.checkpoint.contents import content


def model() -> dict[str, torch.Tensor]:
    """One entry of each type, which lie in bytes one after another, at odd places too."""
    entries = {
        f"a.{name}": torch.arange(6).remainder(2).to(getattr(torch, name)).reshape(2, 3)
        for name, dtype in DTYPES.items() if dtype.code
    }  # fmt: skip
    return entries | {"complex": torch.tensor([1 + 2j]), "one": torch.tensor(2.5), "none": torch.empty(0, 3)}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    state, data = [], b"\x07"
    for name, tensor in model().items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        state.append(StateEntry(name, dtype, tuple(tensor.shape), "buffers", len(data)))
        data += tensor.flatten().view(torch.uint8).numpy().tobytes()
    state.append(msgspec.structs.replace(state[0], name="tied"))
    given = msgspec.structs.replace(
        content(3), state=state, tensors={"buffers": Tensor("uint8", (len(data),), data)}
    )
    return open_checkpoint(write(tmp_path / "checkpoints", given, keep=1).path)


def the_same(read: dict[str, torch.Tensor]) -> None:
    expected = model() | {"tied": next(iter(model().values()))}
    assert list(read) == list(expected)
    for name, tensor in expected.items():
        assert read[name].dtype == tensor.dtype and read[name].shape == tensor.shape
        assert bytes(read[name].flatten().view(torch.uint8)) == bytes(tensor.flatten().view(torch.uint8))


def test_torch_load(checkpoint: Checkpoint, tmp_path: Path) -> None:
    assert export(checkpoint, tmp_path / "new" / "model.pt", "pt") == len(model()) + 1
    read = torch.load(tmp_path / "new" / "model.pt", weights_only=True)
    the_same(read)
    first = next(iter(model()))
    assert read["tied"].data_ptr() == read[first].data_ptr()
    assert os.listdir(tmp_path / "new") == ["model.pt"]


def test_safetensors(checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = tmp_path / "a model.safetensors"
    export(checkpoint, path, "safetensors")
    read = safetensors.torch.load_file(path)
    read["complex"] = read["complex"].view(torch.complex64)  # safetensors has no such type: its bytes are there
    order = [entry.name for entry in checkpoint.manifest.state]
    the_same({name: read[name] for name in order})
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt", "step": "3"}


def test_dcp(checkpoint: Checkpoint, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    export(checkpoint, tmp_path / "dcp", "dcp")
    assert not recwarn.list
    read = {name: torch.zeros_like(tensor) for name, tensor in model().items()}
    read["tied"] = torch.zeros_like(next(iter(model().values())))
    load(read, storage_reader=FileSystemReader(tmp_path / "dcp"), no_dist=True)
    the_same(read)


def test_what_is_there_stays_and_what_failed_leaves_nothing(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "model.pt"
    target.write_text("mine")
    with pytest.raises(UsageError, match=r"model\.pt exists\. Choose another name, or remove it\."):
        export(checkpoint, target, "pt")
    assert target.read_text() == "mine"
    target.unlink()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        with pytest.raises(ResourceError, match=r"model\.pt could not be written: No space left on device\."):
            export(checkpoint, target, "pt")
    with open(checkpoint.path / "state.safetensors", "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"?")
    for kind in ("pt", "safetensors", "dcp"):
        with pytest.raises(DamagedCheckpoint):
            export(checkpoint, target, kind)
    assert os.listdir(tmp_path) == ["checkpoints"]


def test_without_a_model_there_is_nothing_to_export(tmp_path: Path) -> None:
    path = write(tmp_path, msgspec.structs.replace(content(1), state=[]), keep=1).path
    with pytest.raises(UsageError, match=r"holds no model's state_dict, so there is nothing to export\."):
        export(open_checkpoint(path), tmp_path / "x.pt", "pt")


def test_the_form_follows_from_the_name() -> None:
    assert [format_of(name) for name in ("x.safetensors", "a/x.pt", "x.pth", "x/", "x.pt/")] == [
        "safetensors", "pt", "pt", "dcp", "dcp",
    ]  # fmt: skip
    with pytest.raises(UsageError) as error:
        format_of("model.bin")
    assert str(error.value) == (
        "model.bin: in which form? Let the name end in .safetensors, .pt or / (torch's DCP), or say --format "
        "safetensors|pt|dcp."
    )


def test_the_hash_of_the_weights_is_the_one_that_a_run_tells(checkpoint: Checkpoint) -> None:
    digest = hashlib.sha256()
    for name, tensor in (model() | {"tied": next(iter(model().values()))}).items():
        digest.update(f"{name}\n{tensor.dtype}\n{tuple(tensor.shape)}\n".encode())
        digest.update(bytes(tensor.flatten().view(torch.uint8)))
    assert weights_sha256(checkpoint) == digest.hexdigest()
