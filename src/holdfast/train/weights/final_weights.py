"""Weights as a file that any tool reads: the one that a run ends with, and those that a script saves."""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from holdfast.checkpoint.content import Tensor
from holdfast.checkpoint.disk import DISK
from holdfast.checkpoint.forms.weights import FINAL
from holdfast.checkpoint.stream import write_tensors
from holdfast.dataplane.memory.space import dtype_name
from holdfast.errors import ResourceError
from holdfast.train.weights.loaded_weights import named_tensors

__all__ = ["save_weights", "write_final"]


def write_final(directory: Path, models: Sequence[nn.Module]) -> None:
    """Write `model.safetensors` of a run that has ended.

    A disk that does not take it is said, and the run ends well all the same: its last checkpoint is there.
    """
    try:
        _write(directory / FINAL, models)
    except OSError as error:
        warnings.warn(f"{directory / FINAL} could not be written ({error.strerror}).", stacklevel=2)


def save_weights(file: Path, models: Sequence[nn.Module]) -> None:
    """Write a file, in the place of an older one of that name. Raises ResourceError."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _write(file, models)
    except OSError as error:
        raise ResourceError(
            f"{file} could not be written: {error.strerror or error}. Make room there, or look at its permissions; a "
            "file that was there is as it was."
        ) from None


def _write(file: Path, models: Sequence[nn.Module]) -> None:
    """Write all parameters and persistent buffers, by the names of their state_dict; whole, or not at all."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in named_tensors(models):
        plain = tensor.detach().cpu().contiguous()
        data = plain.reshape(-1).view(torch.uint8).numpy().data if plain.numel() else b""
        tensors[name] = Tensor(dtype_name(plain.dtype), tuple(plain.shape), data)
    for left in file.parent.glob(f".{glob.escape(file.name)}.new-*"):  # by a writer that was killed
        with contextlib.suppress(OSError):
            os.unlink(left)
    new = file.with_name(f".{file.name}.new-{secrets.token_hex(4)}")
    try:
        write_tensors(DISK, new, tensors, {"format": "pt"})
        os.replace(new, file)
        DISK.sync_folder(file.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise
