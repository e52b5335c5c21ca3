"""DCP: the tensors of a folder that `torch.distributed.checkpoint` has written. Torch only to read one.

Such a folder has a pickle, `.metadata`, which says which part of which file a piece of a tensor is. It is read without
running anything: the names that it may use are those of the classes it is made of, and each stands for a plain record
here. The pieces themselves are read by `torch.load(weights_only=True)`.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.checkpoint.dtypes import DTYPES, nbytes
from holdfast.errors import NoWeights, UnreadableCheckpoint

__all__ = ["INDEX", "DcpTensor", "is_dcp", "read", "tensors"]

#: The file that makes a folder one of DCP.
INDEX = ".metadata"
_METADATA, _FILES = "torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem"
_Key = tuple[str, tuple[int, ...]]  # a tensor, and where in it a piece begins
_Where = tuple[Path, int, int]
_LARGEST = 1 << 30  # bytes of an index: one of a thousand ranks has some megabytes


class Piece(NamedTuple):
    """A part of a tensor, and where it lies."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: Path
    begin: int
    length: int


class DcpTensor(NamedTuple):
    """A tensor and its pieces, which may have been written by several ranks."""

    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


def is_dcp(path: Path) -> bool:
    """Is it a folder that DCP has written?"""
    return (path / INDEX).is_file()


def tensors(folder: Path) -> dict[str, DcpTensor]:
    """The tensors of a model by their names: those under `model`, or where there is none, all.

    Raises NoWeights, UnreadableCheckpoint.
    """
    index = _index(folder)
    try:
        pieces = _pieces(folder, index.storage_data)
        every = {
            name: DcpTensor(one.properties.dtype, tuple(one.size), _of(name, one, pieces))
            for name, one in index.state_dict_metadata.items() if isinstance(one, _Tensor)
        }  # fmt: skip
        paths = getattr(index, "planner_data", None) or {}
        model = {".".join(map(str, paths[name][1:])): one for name, one in every.items() if _in_model(paths.get(name))}
    except (AttributeError, TypeError, KeyError, IndexError) as error:
        raise NoWeights(folder, f"its {INDEX} lacks something ({type(error).__name__}: {error})") from None
    found = model or every
    for name, one in found.items():
        if one.dtype not in DTYPES:
            raise NoWeights(folder, f"tensor {name!r} has numbers of a kind that is not known here: {one.dtype}")
    if not found:
        raise NoWeights(folder, "there is no tensor in it")
    return found


def read(folder: Path, name: str, tensor: DcpTensor) -> memoryview:
    """The bytes of a tensor, put together. Raises NoWeights, UnreadableCheckpoint."""
    import torch

    whole = torch.empty(tensor.shape, dtype=getattr(torch, tensor.dtype))
    for piece in tensor.pieces:
        try:
            with piece.file.open("rb") as file:
                file.seek(piece.begin)
                data = io.BytesIO(file.read(piece.length))
            part = torch.load(data, map_location="cpu", weights_only=True)
        except OSError as error:
            raise UnreadableCheckpoint(piece.file, error.strerror or str(error)) from None
        except Exception as error:  # of torch.load, which has many
            why = str(error).partition("\n")[0]
            raise NoWeights(folder, f"{piece.file.name} has no tensor where {name!r} should be ({why})") from None
        place = whole
        for dimension, (offset, size) in enumerate(zip(piece.offsets, piece.sizes, strict=True)):
            place = place.narrow(dimension, offset, size)
        if not isinstance(part, torch.Tensor) or part.shape != place.shape or part.dtype != whole.dtype:
            raise NoWeights(folder, f"{piece.file.name} has something else where {name!r} should be")
        place.copy_(part)
    return memoryview(whole.reshape(-1).view(torch.uint8).numpy().data).cast("B")


def _in_model(path: Any) -> bool:
    return bool(path) and len(path) > 1 and path[0] == "model"


def _of(name: str, tensor: Any, pieces: Mapping[_Key, _Where]) -> tuple[Piece, ...]:
    found = []
    for chunk in tensor.chunks:
        offsets, sizes = tuple(chunk.offsets), tuple(chunk.sizes)
        found.append(Piece(offsets, sizes, *pieces[name, offsets]))
    if sum(_count(piece.sizes) for piece in found) != _count(tuple(tensor.size)):
        raise KeyError(f"a piece of {name!r}")
    return tuple(found)


def _count(shape: tuple[int, ...]) -> int:
    return nbytes("uint8", shape)


def _pieces(folder: Path, storage: Mapping[Any, Any]) -> dict[_Key, _Where]:
    found: dict[_Key, _Where] = {}
    for key, place in storage.items():
        if getattr(place, "transform_descriptors", None):
            raise NoWeights(folder, f"{place.relative_path} was written with {place.transform_descriptors[0]!r}")
        if Path(place.relative_path).name != place.relative_path:
            raise NoWeights(folder, f"its {INDEX} names a file outside of it: {place.relative_path}")
        where = folder / place.relative_path, int(place.offset), int(place.length)
        found[key.fqn, tuple(getattr(key, "offset", None) or ())] = where
    return found


def _index(folder: Path) -> Any:
    path = folder / INDEX
    try:
        if path.stat().st_size > _LARGEST:
            raise NoWeights(folder, f"its {INDEX} has {path.stat().st_size} bytes")
        data = path.read_bytes()
    except OSError as error:
        raise UnreadableCheckpoint(path, error.strerror or str(error)) from None
    try:
        index = _Reader(io.BytesIO(data)).load()
    except NoWeights:
        raise
    except _Foreign as error:
        fix = "Such a file could run anything: write it anew with torch.distributed.checkpoint, and only tensors in it."
        raise NoWeights(folder, f"its {INDEX} names {error}, which no such file needs", fix) from None
    except Exception as error:  # whatever bytes that are no pickle do to it
        raise NoWeights(folder, f"its {INDEX} is not whole ({type(error).__name__}: {error})") from None
    if not isinstance(index, _Index):
        raise NoWeights(folder, f"its {INDEX} is something else")
    return index


class _Record:
    """A plain record in the place of an object that was pickled."""

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)


class _Index(_Record):
    pass


class _Tensor(_Record):
    properties: _Properties
    size: tuple[int, ...]


class _Properties(_Record):
    dtype: str

    def __setstate__(self, state: Any) -> None:
        self.dtype = state[0]


class _Foreign(Exception):
    """A name that no index needs."""


def _tuple(of: Any = ()) -> tuple[Any, ...]:
    return tuple(of)


def _joined(*parts: str) -> str:
    return "/".join(parts)


def _same(value: Any) -> Any:
    return value


_KNOWN: dict[tuple[str, str], Any] = {
    (_METADATA, "Metadata"): _Index,
    (_METADATA, "TensorStorageMetadata"): _Tensor,
    (_METADATA, "TensorProperties"): _Properties,
    **{(_METADATA, name): _Record for name in
       ("BytesStorageMetadata", "ChunkStorageMetadata", "MetadataIndex", "StorageMeta")},
    (_METADATA, "_MEM_FORMAT_ENCODING"): _same,
    (_FILES, "_StorageInfo"): _Record,
    ("torch", "Size"): _tuple,
    ("torch.serialization", "_get_layout"): _same,
    ("collections", "OrderedDict"): dict,
    **{(module, name): _joined for module in ("pathlib", "pathlib._local")
       for name in ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")},
}  # fmt: skip


class _Reader(pickle.Unpickler):
    """Builds plain records, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in DTYPES:
            return name
        try:
            return _KNOWN[module, name]
        except KeyError:
            raise _Foreign(f"{module}.{name}") from None
