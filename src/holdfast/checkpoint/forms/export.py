"""A model's state_dict out of a checkpoint, in forms that others read: safetensors, torch.save, torch's DCP.

Only the last two import torch, when they are asked for. A file appears under its name when it is complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.checkpoint import stream
from holdfast.checkpoint.content import Tensor
from holdfast.checkpoint.disk import DISK
from holdfast.checkpoint.dtypes import nbytes
from holdfast.checkpoint.reader import Checkpoint
from holdfast.errors import ResourceError, UsageError

if TYPE_CHECKING:
    import torch

__all__ = ["FORMATS", "export", "format_of", "state_dict", "torch_state_dict", "weights_sha256"]

FORMATS = ("safetensors", "pt", "dcp")
_ENDINGS = {".safetensors": "safetensors", ".pt": "pt", ".pth": "pt"}


def format_of(to: str) -> str:
    """The form that a name asks for. Raises UsageError where it asks for none.

    >>> format_of("a/model.safetensors"), format_of("model.pt"), format_of("model/")
    ('safetensors', 'pt', 'dcp')
    """
    kind = "dcp" if to.endswith("/") else _ENDINGS.get(Path(to).suffix)
    if kind is None:
        raise UsageError(
            f"{to}: in which form? Let the name end in .safetensors, .pt or / (torch's DCP), or say --format "
            f"{'|'.join(FORMATS)}."
        )
    return kind


def export(checkpoint: Checkpoint, to: Path, kind: str) -> int:
    """Write the model into a new file or folder; how many entries it has.

    Raises:
        UsageError: there is something already, or the checkpoint has no model.
        DamagedCheckpoint, UnreadableCheckpoint
        ResourceError: it could not be written.
    """
    if os.path.lexists(to):
        raise UsageError(f"{to} exists. Choose another name, or remove it.")
    if not checkpoint.manifest.state:
        raise UsageError(f"{checkpoint.path} holds no model's state_dict, so there is nothing to export.")
    try:
        with _new(to) as new:
            if kind == "safetensors":
                facts = {"format": "pt", "step": str(checkpoint.manifest.facts.step)}
                stream.write_tensors(DISK, new, state_dict(checkpoint), facts)
            elif kind == "pt":
                import torch

                torch.save(torch_state_dict(checkpoint), new)
            else:
                from torch.distributed.checkpoint.state_dict_saver import save

                with warnings.catch_warnings():  # that there is one process only, which is what was asked for
                    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
                    save(torch_state_dict(checkpoint), checkpoint_id=new, no_dist=True)
    except OSError as error:
        raise ResourceError(f"{to} could not be written: {error.strerror or error}.") from error
    return len(checkpoint.manifest.state)


def state_dict(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The model's entries, in their order. Raises DamagedCheckpoint, UnreadableCheckpoint."""
    sections = {name: checkpoint.read(name) for name in checkpoint.manifest.weights()}
    entries: dict[str, Tensor] = {}
    for entry in checkpoint.manifest.state:
        end = entry.begin + nbytes(entry.dtype, entry.shape)
        entries[entry.name] = Tensor(entry.dtype, entry.shape, sections[entry.tensor][entry.begin : end])
    return entries


def weights_sha256(checkpoint: Checkpoint) -> str:
    """What a run says of its weights when it ends, for the model in this checkpoint; empty where there is none."""
    digest = hashlib.sha256()
    for name, tensor in state_dict(checkpoint).items():
        digest.update(f"{name}\ntorch.{tensor.dtype}\n{tensor.shape}\n".encode())
        digest.update(tensor.data)
    return digest.hexdigest() if checkpoint.manifest.state else ""


def torch_state_dict(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """The same as tensors of torch. Entries that lie at the same place are the same tensor."""
    import torch

    made: dict[tuple[str, int, str, tuple[int, ...]], torch.Tensor] = {}
    for entry, given in zip(checkpoint.manifest.state, state_dict(checkpoint).values(), strict=True):
        dtype, place = getattr(torch, entry.dtype), (entry.tensor, entry.begin, entry.dtype, entry.shape)
        if place in made:
            continue
        if given.data:
            made[place] = torch.frombuffer(bytearray(given.data), dtype=torch.uint8).view(dtype).reshape(entry.shape)
        else:
            made[place] = torch.empty(entry.shape, dtype=dtype)
    return {
        entry.name: made[entry.tensor, entry.begin, entry.dtype, entry.shape] for entry in checkpoint.manifest.state
    }


@contextlib.contextmanager
def _new(to: Path) -> Iterator[Path]:
    """Another name beside it, which becomes its name when all is written."""
    to.parent.mkdir(parents=True, exist_ok=True)
    new = to.with_name(f".{to.name}.new-{secrets.token_hex(4)}")
    try:
        yield new
        os.rename(new, to)
    except BaseException:
        if new.is_dir():
            shutil.rmtree(new, ignore_errors=True)
        else:
            new.unlink(missing_ok=True)
        raise
