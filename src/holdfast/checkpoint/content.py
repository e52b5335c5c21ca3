"""What goes into a checkpoint, and what comes out: facts, script, configuration, and named sections of bytes. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

__all__ = ["Content", "RunFacts", "Script", "StateEntry", "Tensor"]


class Tensor(NamedTuple):
    """A section: a dense tensor in row-major order, its numbers little-endian."""

    dtype: str  #: as torch calls it: 'float32', 'bfloat16', 'uint8'
    shape: tuple[int, ...]
    data: memoryview | bytes


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run was, and what fixes its result."""

    run: str
    step: int
    version: int
    epoch: int
    samples: int
    loss: float
    sync: str
    lanes: int
    seed: int
    threads: int
    training: int = 1  #: which one of its script's


class Script(msgspec.Struct, frozen=True):
    """The script that was trained. It is not part of the checkpoint."""

    path: str
    args: tuple[str, ...]
    sha256: str


class StateEntry(msgspec.Struct, frozen=True):
    """One entry of the model's state_dict, and where its bytes lie."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    tensor: str  #: the section
    begin: int  #: bytes from its beginning


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """What goes into one checkpoint. `config` and `control` are what JSON can say; numbers may be NaN or infinite."""

    facts: RunFacts
    script: Script
    config: dict[str, Any]
    control: dict[str, Any]  #: what the coordinator must know again; opaque here
    state: list[StateEntry]  #: in the order of state_dict()
    tensors: dict[str, Tensor]

    def weights(self) -> list[str]:
        """The sections that the model itself lies in; all, where nothing is said of a model."""
        return sorted({entry.tensor for entry in self.state} or self.tensors)
