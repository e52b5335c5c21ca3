"""The weights that a run ends with, as a file that any tool reads: `model.safetensors` in its directory."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from holdfast.checkpoint.content import Tensor
from holdfast.checkpoint.disk import DISK
from holdfast.checkpoint.stream import write_tensors
from holdfast.dataplane.memory.space import dtype_name

__all__ = ["FINAL", "write_final"]

FINAL = "model.safetensors"


def write_final(directory: Path, models: Sequence[nn.Module]) -> None:
    """Write all parameters and persistent buffers, by the names of their state_dict; whole, or not at all.

    A disk that does not take it is said, and the run ends well all the same: its last checkpoint is there.
    """
    tensors: dict[str, Tensor] = {}
    for index, model in enumerate(models):
        prefix = f"{index}." if len(models) > 1 else ""
        for name, tensor in model.state_dict().items():
            if isinstance(tensor, torch.Tensor):
                plain = tensor.detach().cpu().contiguous()
                data = plain.reshape(-1).view(torch.uint8).numpy().data if plain.numel() else b""
                tensors[prefix + name] = Tensor(dtype_name(plain.dtype), tuple(plain.shape), data)
    new = directory / f"{FINAL}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new)
    try:
        write_tensors(DISK, new, tensors, {"format": "pt"})
        os.replace(new, directory / FINAL)
        DISK.sync_folder(directory)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(new)
        warnings.warn(f"{directory / FINAL} could not be written ({error.strerror}).", stacklevel=2)
