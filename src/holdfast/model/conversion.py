"""Conversion: arrays of NumPy to tensors of torch and back, without a copy where that can be."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, cast

import numpy
import torch

from holdfast.checkpoint.content import Tensor as Stored
from holdfast.checkpoint.dtypes import DTYPES
from holdfast.checkpoint.tensor_file import HEAD, header_size, placed
from holdfast.model.signature import DATATYPES

__all__ = ["as_stored", "as_tensors", "datatype_of_tensor", "from_torch", "to_torch"]

Array = numpy.ndarray[Any, Any]

_DATATYPES = {
    torch.bool: "BOOL", torch.uint8: "UINT8", torch.uint16: "UINT16", torch.uint32: "UINT32", torch.uint64: "UINT64",
    torch.int8: "INT8", torch.int16: "INT16", torch.int32: "INT32", torch.int64: "INT64", torch.float16: "FP16",
    torch.bfloat16: "BF16", torch.float32: "FP32", torch.float64: "FP64",
}  # fmt: skip


def datatype_of_tensor(tensor: torch.Tensor) -> str:
    """What the protocol calls its numbers. Raises KeyError where it has no name for them.

    >>> datatype_of_tensor(torch.zeros(2, dtype=torch.bfloat16))
    'BF16'
    """
    return _DATATYPES[tensor.dtype]


def to_torch(array: Array, datatype: str, *, own: bool) -> torch.Tensor:
    """A tensor of these numbers; with `own` it has memory of its own, in which a model may write.

    Without, it may be a view of memory that must not be written to, such as that of a request.
    """
    if own or not array.flags.aligned or not array.flags.c_contiguous or array.dtype.byteorder == ">":
        array = numpy.array(array, dtype=DATATYPES[datatype], order="C", copy=True)
    if datatype == "BF16":
        return _from_numpy(array.view(numpy.int16)).view(torch.bfloat16)
    return _from_numpy(array)


def from_torch(tensor: torch.Tensor) -> Array:
    """An array of these numbers, which may share the tensor's memory; BF16 as its 16 bits."""
    plain = tensor.detach().cpu().contiguous()
    if plain.dtype == torch.bfloat16:
        return cast(Array, plain.view(torch.int16).numpy().view("<u2"))
    return cast(Array, plain.numpy())


def as_stored(tensors: Mapping[str, torch.Tensor]) -> dict[str, Stored]:
    """Tensors as a .safetensors file takes them. Raises KeyError with a dtype that has no place there."""
    stored = {}
    for name, tensor in tensors.items():
        plain, dtype = tensor.detach().cpu().contiguous(), str(tensor.dtype).removeprefix("torch.")
        if dtype not in DTYPES:
            raise KeyError(dtype)
        data = plain.reshape(-1).view(torch.uint8).numpy().data if plain.numel() else b""
        stored[name] = Stored(dtype, tuple(plain.shape), data)
    return stored


def as_tensors(file: memoryview) -> dict[str, torch.Tensor]:
    """The tensors of a .safetensors file that was read into memory; they lie in it. Raises ValueError."""
    size = header_size(bytes(file[:HEAD]), file.nbytes)
    tensors = {}
    for name, entry in placed(bytes(file[HEAD : HEAD + size]), file.nbytes).items():
        dtype = getattr(torch, entry.dtype)
        if not entry.size:
            tensors[name] = torch.empty(entry.shape, dtype=dtype)
            continue
        data = torch.frombuffer(file, dtype=torch.uint8, count=entry.size, offset=entry.begin)
        if entry.begin % dtype.itemsize:
            data = data.clone()
        tensors[name] = data.view(dtype).reshape(entry.shape)
    return tensors


def _from_numpy(array: Array) -> torch.Tensor:
    if array.flags.writeable:
        return torch.from_numpy(array)
    with warnings.catch_warnings():  # said once a process, of arrays nobody may write to: who would is given a copy
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
