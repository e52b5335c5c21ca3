"""The kind `module`: a class that makes a torch module, its arguments, and the weights that are put into it.

For models that torch.export cannot trace. The code is the user's, and is run.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy
import torch
from torch import Tensor, nn

from holdfast.errors import DamagedModel, HoldfastError, NotLoaded
from holdfast.model.calls import Call, outputs_of
from holdfast.model.conversion import as_tensors, from_torch, to_torch
from holdfast.model.library import Version
from holdfast.model.manifest import NAME, WEIGHTS
from holdfast.model.user_code import class_of_version, traceback_line

__all__ = ["built", "load"]

Arrays = dict[str, numpy.ndarray[Any, Any]]


def built(factory: Any, arguments: Any) -> nn.Module:
    """The module, in eval mode. Raises TypeError where it is none; whatever the class raises."""
    module = factory(*arguments) if isinstance(arguments, list) else factory(**(arguments or {}))
    if not isinstance(module, nn.Module):
        raise TypeError(f"it made a {type(module).__name__}, which is no torch.nn.Module")
    return module.eval().requires_grad_(False)


def load(version: Version) -> Any:
    """A function of arrays; see `LoadedModel`."""
    manifest = version.manifest
    try:
        call = msgspec.convert(manifest.build.get("call"), Call)
    except msgspec.ValidationError as error:
        raise DamagedModel(version.path, NAME, f"does not say how it is called ({error})") from None
    factory = class_of_version(version)
    try:
        module = built(factory, manifest.build.get("arguments"))
        _put(module, as_tensors(version.read(WEIGHTS)))
    except HoldfastError:
        raise
    except Exception as error:
        fix = "The code has changed since it was exported, or needs something that is not here."
        raise NotLoaded(version.path, f"it cannot be built ({traceback_line(error)})", fix) from error
    inputs, outputs = manifest.signature.inputs, [spec.name for spec in manifest.signature.outputs]

    def compute(arrays: Arrays) -> Arrays:
        # Copies: a module may write into what it is given, and requests must not be written to.
        tensors = {spec.name: to_torch(arrays[spec.name], spec.datatype, own=True) for spec in inputs}
        with torch.inference_mode():
            answers = outputs_of(call.apply(module, tensors))
            return {name: from_torch(answers[name]) for name in outputs}

    return compute


def _put(module: nn.Module, weights: dict[str, Tensor]) -> None:
    """Make the module's parameters and buffers these; nothing may be left over."""
    own = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
    apart = sorted(own.keys() ^ weights.keys())
    if apart:
        raise ValueError(f"its weights are called otherwise: {', '.join(apart[:5])}")
    extra = {name: value for name, value in module.state_dict().items() if not isinstance(value, Tensor)}
    module.load_state_dict({**weights, **extra}, strict=True)
