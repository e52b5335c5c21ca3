"""Weights: the tensors of a model by their names, out of a run, a checkpoint, a .safetensors file or a folder of DCP.

    weights = open_weights(locate_weights(Path("runs/mine")))
    for name, kind in weights.kinds.items():
        weights.read(name)

What a checkpoint has is proven by its hashes when it is read, what a file has by the bounds that its header gives.
Pickles are not read: that would run whatever is in them. Torch is needed for DCP alone (`dcp`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from holdfast.checkpoint import stream
from holdfast.checkpoint.disk import DISK
from holdfast.checkpoint.dtypes import nbytes
from holdfast.checkpoint.forms import dcp
from holdfast.checkpoint.location import locate
from holdfast.checkpoint.reader import Checkpoint, open_checkpoint
from holdfast.checkpoint.tensor_file import HEAD, Placed, header_size, placed
from holdfast.errors import NoWeights, UnreadableCheckpoint

__all__ = ["FINAL", "TensorKind", "Weights", "locate_weights", "open_weights"]

#: What a run that has ended leaves in its directory.
FINAL = "model.safetensors"
_ZIP, _PICKLE = b"PK\x03\x04", b"\x80"  # what torch.save has written, since 1.6 and before


class TensorKind(NamedTuple):
    """What a tensor is like."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


class Weights:
    """Those of one place; use `open_weights`. Holds no file open."""

    def __init__(self, path: Path, kinds: Mapping[str, TensorKind], read: Callable[[str], memoryview]) -> None:
        self.path, self.kinds = path, kinds
        #: The bytes of a tensor. Raises DamagedCheckpoint, UnreadableCheckpoint, NoWeights.
        self.read = read


def locate_weights(path: Path) -> tuple[Path, list[str]]:
    """The file or checkpoint that a path means, and a sentence for each newer checkpoint that is not whole.

    Raises NoWeights, NotACheckpoint, UnreadableCheckpoint, CheckpointError.
    """
    if not path.exists():
        raise NoWeights(path, "there is nothing")
    if not path.is_dir():
        return path, []
    if (path / FINAL).is_file():
        return path / FINAL, []
    if dcp.is_dcp(path):
        return path, []
    checkpoint, passed_over = locate(path).newest()
    return checkpoint.path, passed_over


def open_weights(path: Path) -> Weights:
    """The weights of a checkpoint, of a .safetensors file, or of a folder of DCP.

    Raises:
        NoWeights: there is nothing, or something else; the file is not whole; the checkpoint has no model.
        NotACheckpoint, DamagedCheckpoint, NewerCheckpoint, UnreadableCheckpoint
    """
    if dcp.is_dcp(path):
        return _of_dcp(path)
    return _of_checkpoint(open_checkpoint(path)) if path.is_dir() else _of_file(path)


def _of_checkpoint(checkpoint: Checkpoint) -> Weights:
    entries = {entry.name: entry for entry in checkpoint.manifest.state}
    if not entries:
        raise NoWeights(checkpoint.path, "this checkpoint has no model")
    sections: dict[str, memoryview] = {}

    def read(name: str) -> memoryview:
        entry = entries[name]
        if entry.tensor not in sections:
            sections[entry.tensor] = checkpoint.read(entry.tensor)
        return sections[entry.tensor][entry.begin : entry.begin + nbytes(entry.dtype, entry.shape)]

    return Weights(checkpoint.path, {name: TensorKind(one.dtype, one.shape) for name, one in entries.items()}, read)


def _of_dcp(path: Path) -> Weights:
    tensors = dcp.tensors(path)
    kinds = {name: TensorKind(one.dtype, one.shape) for name, one in tensors.items()}
    return Weights(path, kinds, lambda name: dcp.read(path, name, tensors[name]))


def _of_file(path: Path) -> Weights:
    if path.exists() and not path.is_file():
        raise NoWeights(path, "it is no ordinary file")
    try:
        tensors = _tensors(path)
    except ValueError as error:
        raise _no_weights(path, str(error)) from None
    except FileNotFoundError:
        raise NoWeights(path, "there is nothing") from None
    except OSError as error:
        raise UnreadableCheckpoint(path, error.strerror or str(error)) from None

    def read(name: str) -> memoryview:
        into = memoryview(bytearray(tensors[name].size))
        try:
            stream.read_into(DISK, path, tensors[name].begin, into)
        except EOFError as error:
            raise NoWeights(path, f"it was cut off while it was read: tensor {name!r} {error}") from None
        except OSError as error:
            raise UnreadableCheckpoint(path, error.strerror or str(error)) from None
        return into

    return Weights(path, {name: TensorKind(one.dtype, one.shape) for name, one in tensors.items()}, read)


def _tensors(path: Path) -> dict[str, Placed]:
    """Raises OSError; ValueError where the file is none of that format, or not whole."""
    size = DISK.size(path)
    head = memoryview(bytearray(min(HEAD, size)))
    stream.read_into(DISK, path, 0, head)
    header = memoryview(bytearray(header_size(bytes(head), size)))
    try:
        stream.read_into(DISK, path, HEAD, header)
    except EOFError as error:
        raise ValueError(f"its header {error}") from None
    return placed(bytes(header), size)


def _no_weights(path: Path, why: str) -> NoWeights:
    """Say what a file is that is no safetensors."""
    head = memoryview(bytearray(min(len(_ZIP), DISK.size(path))))
    stream.read_into(DISK, path, 0, head)
    if bytes(head) == _ZIP or (bytes(head[:1]) == _PICKLE and path.suffix != ".safetensors"):
        return NoWeights(
            path, "it is a pickle, as torch.save writes it, and to read one is to run what is in it",
            "Convert it once, if you trust it: `state = torch.load(FILE, weights_only=True)`, then "
            "`safetensors.torch.save_file(state, 'model.safetensors')` (pip install safetensors), and give that file.",
        )  # fmt: skip
    return NoWeights(path, f"it is no .safetensors file, or not whole: {why}")
