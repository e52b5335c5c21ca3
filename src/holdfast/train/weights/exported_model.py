"""Exported models: a prepared one as the script has it, as the next version of a model on disk."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from holdfast.errors import UsageError
from holdfast.model.export import Exported, ExportOptions, export_module
from holdfast.model.manifest import model_name
from holdfast.train.weights.loaded_weights import named_tensors

__all__ = ["FOLDER", "export_model", "names_in_run", "place_of", "told"]

#: In a run's directory.
FOLDER = "model"


def place_of(to: str | os.PathLike[str] | None, directory: Path | None) -> Path:
    """Where versions of a model go. Raises UsageError where nobody has said it."""
    if to is not None:
        return Path(to)
    if directory is None or not directory.is_dir():
        raise UsageError(
            "run.export: this process has no directory of a run (under plain python there is none, and on another "
            "machine it is not here). Say where the model is to go: run.export(model, example, to='models/NAME')."
        )
    return directory / FOLDER


def export_model(
    prepared: Sequence[nn.Module], model: nn.Module, example: Any, folder: Path, said: Mapping[str, Any]
) -> None:
    """Write it, and say on the screen what it has become. Raises UsageError, ModelError."""
    args, kwargs = (example, {}) if isinstance(example, (tuple, list)) else ((example,), {})
    if isinstance(example, Mapping):
        args, kwargs = (), dict(example)
    plain = folder.parent if folder.name == FOLDER else folder  # the run's name says more than `model`
    given = {**said, "name": said["name"] or model_name(plain.resolve().name)}
    options = ExportOptions(**given, names=names_in_run(prepared, model))
    exported = export_module(model, args, folder, options, kwargs)
    print(f"holdfast: {told(exported)}", file=sys.stderr, flush=True)


def names_in_run(prepared: Sequence[nn.Module], model: nn.Module) -> dict[str, str]:
    """What a module's weights are called in the run's checkpoints, where that is another name; "": not there."""
    theirs = {id(tensor): name for name, tensor in reversed(list(named_tensors(prepared)))}
    own = model.state_dict(keep_vars=True)
    names = {name: theirs.get(id(value), "") for name, value in own.items() if isinstance(value, Tensor)}
    whole = dict(named_tensors(prepared))
    return {name: one for name, one in names.items() if whole.get(name) is not own[name] and one != name}


def told(exported: Exported) -> str:
    """One line: where it is, how large, how fast, and how near to the model that it was made from."""
    manifest = exported.version.manifest
    many = f", {exported.many_seconds * 1e3:.3g} ms for 32" if exported.many_seconds else ""
    worst = exported.difference
    same = "" if worst is None else f"it answers as before (largest difference {worst:.7f}); "
    return (
        f"model: {exported.version.path}, {manifest.kind}, {manifest.size / 1e6:.3g} MB; {same}"
        f"{exported.one_seconds * 1e3:.3g} ms for one{many}, on one thread"
    )
