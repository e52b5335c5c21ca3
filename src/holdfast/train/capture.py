"""Capture: a run's script, followed to where it first calls the model, which is exported with the run's weights.

    python -m holdfast.train.capture FILE        the request, in JSON; the result is written to FILE.result

A run without `run.export` does not say how its model is built and what goes in: its script does. It runs here from its
top, alone, as under plain python, and ends at the first call of the model. What it prints goes to standard error.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from holdfast.checkpoint.forms.weights import open_weights
from holdfast.core.keys import STREAM_START, key
from holdfast.data.randomness import seed_everything
from holdfast.errors import HoldfastError, NotExportable, ScriptFailed, UsageError
from holdfast.model.calls import call_of
from holdfast.model.conversion import to_torch
from holdfast.model.example import decode_example
from holdfast.model.export import Exported, ExportOptions, export_module
from holdfast.train import run as runs
from holdfast.train.weights.exported_model import names_in_run, told
from holdfast.train.weights.loaded_weights import take_over

__all__ = ["CaptureRequest", "CaptureResult", "main"]


class CaptureRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to capture, and what to make of it."""

    script: str
    args: tuple[str, ...]
    seed: int
    weights: str  #: a checkpoint, or a .safetensors file
    to: str
    options: ExportOptions
    model: str = ""  #: which one, where several are prepared: its number or its class
    example: str = ""  #: a file; empty: what the script's first call has


class CaptureResult(msgspec.Struct, frozen=True):
    """What `holdfast export` tells."""

    path: str
    difference: float | None
    load_seconds: float
    one_seconds: float
    many_seconds: float
    line: str


class _Reached(BaseException):
    """The script is where it was to be; it goes no further."""


class _Capture:
    """Stops the script at the first call of the chosen model."""

    def __init__(self, chosen: str) -> None:
        self._chosen = chosen
        self._handles: list[Any] = []
        self.models: list[nn.Module] = []
        self.classes: tuple[str, ...] = ()  #: as its data set calls them
        self.model: nn.Module | None = None
        self.called: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self.error: HoldfastError | None = None

    def watch(self, run: runs.Run, models: Sequence[nn.Module]) -> None:
        """The models are prepared."""
        self.models = list(models)
        loaders = run._training.loaders if run._training is not None else []
        self.classes = next(filter(None, (batches.classes for batches in loaders)), ())
        try:
            self.model = _chosen(self.models, self._chosen)
        except UsageError as error:
            self.error = error
            raise _Reached from None
        self._handles.append(self.model.register_forward_pre_hook(self._call, with_kwargs=True))
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                self._handles.append(parameter.register_post_accumulate_grad_hook(self._trained))

    def _call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.called = _copied(args), _copied(kwargs)
        raise _Reached

    def _trained(self, _: torch.Tensor) -> None:
        """It has a gradient. After a whole step nobody needs to wait for a call of it any more."""
        run = runs.current()
        if run is None or run.step == 0:
            return
        self.error = NotExportable(
            type(self.model).__name__, "the script trains it without calling it, so what goes in is not known",
            "Let the script call the model itself (model(x)), or call run.export(model, example) in it.",
        )  # fmt: skip
        raise _Reached

    def let_go(self) -> None:
        """The model is an ordinary one again."""
        for handle in self._handles:
            handle.remove()


def main(file: Path) -> int:
    """Do what the file asks for; the exit code."""
    request = msgspec.json.decode(file.read_bytes(), type=CaptureRequest)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            exported = _export(request, _follow(request))
    except HoldfastError as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return error.exit_code
    result = CaptureResult(str(exported.version.path), *exported[1:], told(exported))
    file.with_name(file.name + ".result").write_bytes(msgspec.json.encode(result))
    return 0


def _follow(request: CaptureRequest) -> _Capture:
    """Run the script until the model is called. Raises ScriptFailed, UsageError, NotExportable."""
    capture = _Capture(request.model)
    runs.watch_models(capture.watch)
    sys.argv = [request.script, *request.args]
    sys.path.insert(0, str(Path(request.script).resolve().parent))
    seed_everything(key(request.seed, STREAM_START))
    try:
        runpy.run_path(request.script, run_name="__main__")
    except _Reached:
        pass
    except BaseException as error:  # also one that the script made of ours
        if capture.called is None and capture.error is None:
            if isinstance(error, HoldfastError):
                raise
            traceback.print_exc()
            raise ScriptFailed(
                f"{request.script} raised {type(error).__name__} before it called its model: {error}. Run it alone, "
                "with python, to see."
            ) from error
    if capture.error is not None:
        raise capture.error
    if capture.called is None:
        raise ScriptFailed(
            f"{request.script} came to its end without calling a model that it had handed to run.prepare(...). Call "
            "run.export(model, example) in it."
        )
    capture.let_go()
    return capture


def _export(request: CaptureRequest, capture: _Capture) -> Exported:
    """Put the run's weights into the script's model, and write it."""
    model, called = capture.model, capture.called
    assert model is not None
    assert called is not None
    torch.set_num_threads(1)
    weights = open_weights(Path(request.weights))
    loaded = take_over(capture.models, weights)
    names = names_in_run(capture.models, model)
    theirs = {names.get(name, name) for name in model.state_dict()}
    if apart := [*(name for name in (*loaded.missing, *loaded.differing) if name in theirs)]:
        raise NotExportable(
            type(model).__name__, f"{', '.join(apart[:5])} of it is not in {weights.path}, or is another one there",
            "Let the script build the model that the run has trained.",
        )  # fmt: skip
    args, kwargs = called
    if request.example:
        call, _ = call_of(model, args, kwargs)
        where = Path(request.example)
        try:
            example = decode_example(where.read_bytes(), where)
        except OSError as error:
            raise UsageError(f"{where} cannot be read ({error.strerror}).") from None
        if missing := [name for name in call.inputs if name not in example.arrays]:
            raise UsageError(f"{where} has no {', '.join(missing)}, which the script calls its model with.")
        tensors = {name: to_torch(array, example.datatypes[name], own=True) for name, array in example.arrays.items()}
        args = tuple(tensors.get(a.input, a.value) for a in call.arguments if not a.keyword)
        kwargs = {a.keyword: tensors.get(a.input, a.value) for a in call.arguments if a.keyword}
    model.cpu()
    options = msgspec.structs.replace(request.options, names=names, classes_of_data=capture.classes)
    return export_module(model, args, Path(request.to), options, kwargs)


def _chosen(models: Sequence[nn.Module], chosen: str) -> nn.Module:
    """The model that is meant. Raises UsageError."""
    if not chosen and len(models) == 1:
        return models[0]
    told = ", ".join(f"{at}: {type(model).__name__}" for at, model in enumerate(models))
    if not chosen:
        raise UsageError(f"The script prepares {len(models)} models ({told}). Say which one: --model NUMBER or NAME.")
    found = [model for at, model in enumerate(models) if chosen in (str(at), type(model).__name__)]
    if len(found) != 1:
        many = "several are called so" if found else "there is no such one"
        raise UsageError(f"--model {chosen}: {many}. The script prepares {told}. Say its number.")
    return found[0]


def _copied(value: Any) -> Any:
    """Arguments as they are now, on the CPU: the batch may lie in memory that is used again."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, dict):
        return {name: _copied(item) for name, item in value.items()}
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(map(_copied, value))
    return value


if __name__ == "__main__":
    code = main(Path(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the script's own threads and exit handlers are of a run that was not made
