"""Weights out of runs, checkpoints and files: what a path means, and what is refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from holdfast.checkpoint import stream
from holdfast.checkpoint.content import Tensor
from holdfast.checkpoint.disk import DISK
from holdfast.checkpoint.forms.weights import FINAL, TensorKind, locate_weights, open_weights
from holdfast.checkpoint.reader import open_checkpoint
from holdfast.checkpoint.writer import write
from holdfast.errors import DamagedCheckpoint, NotACheckpoint, NoWeights
from tests.unit.checkpoint.contents import content


def a_file(path: Path) -> Path:
    numbers = struct.pack("<4f", 1, 2, 3, 4)
    tensors = {"fc.weight": Tensor("float32", (2, 2), numbers), "n": Tensor("int64", (), bytes(8))}
    stream.write_tensors(DISK, path, tensors)
    return path


def test_a_file(tmp_path: Path) -> None:
    weights = open_weights(a_file(tmp_path / "with a späce.safetensors"))
    assert weights.kinds == {"n": TensorKind("int64", ()), "fc.weight": TensorKind("float32", (2, 2))}
    assert struct.unpack("<4f", weights.read("fc.weight")) == (1, 2, 3, 4)


def test_a_checkpoint(tmp_path: Path) -> None:
    saved, given = write(tmp_path, content(), keep=1), content()
    weights = open_weights(saved.path)
    assert {name: str(kind) for name, kind in weights.kinds.items()} == {
        "fc.weight": "float32 [2, 2]", "fc.bias": "float32 [2]", "norm.count": "int64 []",
    }  # fmt: skip
    assert bytes(weights.read("fc.bias")) == bytes(given.tensors["parameters/float32"].data)[16:]
    assert int.from_bytes(weights.read("norm.count"), "little") == 120


def test_a_checkpoint_with_another_byte(tmp_path: Path) -> None:
    saved = write(tmp_path, content(), keep=1)
    record = open_checkpoint(saved.path).manifest.tensors["parameters/float32"]
    data = bytearray((saved.path / record.file).read_bytes())
    data[record.begin] ^= 1
    (saved.path / record.file).write_bytes(data)
    weights = open_weights(saved.path)
    with pytest.raises(DamagedCheckpoint, match="has other bytes than were written"):
        weights.read("fc.weight")
    with pytest.raises(Exception, match="is whole"):
        locate_weights(tmp_path)


def test_what_a_path_means(tmp_path: Path) -> None:
    """A run that has ended: what it ended with; one that has not: its newest checkpoint."""
    root = tmp_path / "run" / "checkpoints"
    root.parent.mkdir()
    older, newer = (write(root, content(step), keep=3).path for step in (1, 2))
    assert locate_weights(root.parent) == locate_weights(root) == (newer, [])
    assert locate_weights(older) == (older, [])
    (newer / "manifest.json").write_text("{")
    path, passed_over = locate_weights(root.parent)
    assert path == older and len(passed_over) == 1 and "is damaged" in passed_over[0]
    final = a_file(root.parent / FINAL)
    assert locate_weights(root.parent) == locate_weights(final) == (final, [])


def test_what_is_no_place_of_weights(tmp_path: Path) -> None:
    with pytest.raises(NoWeights) as error:
        locate_weights(tmp_path / "nowhere")
    assert str(error.value) == (
        f"No weights can be taken from {tmp_path / 'nowhere'}: there is nothing. Give a run's directory, a checkpoint, "
        "a folder of DCP, or a .safetensors file that is whole."
    )
    with pytest.raises(NotACheckpoint, match=r"it has no manifest\.json"):
        locate_weights(tmp_path)
    with pytest.raises(NoWeights, match="it is no ordinary file"):
        open_weights(Path("/dev/null"))


def test_files_that_are_cut_off_or_something_else(tmp_path: Path) -> None:
    file = a_file(tmp_path / "f.safetensors")
    whole = file.read_bytes()
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        with pytest.raises(NoWeights, match=r"it is no \.safetensors file, or not whole"):
            open_weights(file)
    file.write_bytes(whole)
    weights = open_weights(file)
    file.write_bytes(whole[:-1])
    with pytest.raises(NoWeights, match=r"it was cut off while it was read: tensor 'fc.weight' ends 1 bytes too early"):
        weights.read("fc.weight")
    text = json.dumps({"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]},
                       "b": {"dtype": "U8", "shape": [2], "data_offsets": [1, 3]}}).encode()  # fmt: skip
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(3))
    with pytest.raises(NoWeights, match=r"tensor 'b' begins at byte .*, and lies over the one before it"):
        open_weights(file)


@pytest.mark.parametrize("old", [False, True])
def test_a_pickle_is_not_read(tmp_path: Path, old: bool) -> None:
    import torch

    file = tmp_path / "model.pt"
    torch.save({"w": torch.ones(2)}, file, _use_new_zipfile_serialization=not old)
    with pytest.raises(NoWeights) as error:
        open_weights(file)
    assert str(error.value) == (
        f"No weights can be taken from {file}: it is a pickle, as torch.save writes it, and to read one is to run what "
        "is in it. Convert it once, if you trust it: `state = torch.load(FILE, weights_only=True)`, then "
        "`safetensors.torch.save_file(state, 'model.safetensors')` (pip install safetensors), and give that file."
    )
