"""Loading: a version of a model in memory, ready to answer. All that a replica needs.

    model = load(Path("models/lenet"))
    model.predict({"x": images})["output"]
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy

from holdfast.errors import UsageError
from holdfast.model.library import Version, resolve
from holdfast.model.manifest import Kind, ModelManifest

__all__ = ["LoadedModel", "load", "load_version"]

Arrays = dict[str, numpy.ndarray[Any, Any]]

_MODULES: dict[Kind, str] = {
    "program": "program", "module": "module_class", "python": "python_class", "sklearn": "sklearn_estimator",
    "onnx": "onnx_file",
}  # fmt: skip


class LoadedModel:
    """One version of a model; use `load`."""

    def __init__(self, manifest: ModelManifest, compute: Callable[[Arrays], Arrays]) -> None:
        self.manifest, self._compute = manifest, compute

    def predict(self, inputs: Arrays) -> Arrays:
        """What it answers to a whole batch. Arrays may be views of memory that must not be written to.

        Raises:
            UsageError: an input is missing, unknown, or of another type or shape than the signature has.
            Whatever the model's own code raises.
        """
        signature = self.manifest.signature
        if len(inputs) != len(signature.inputs):
            for name in inputs:
                if signature.input(name) is None:
                    there = ", ".join(spec.name for spec in signature.inputs)
                    raise UsageError(f"There is no input {name}; there is {there}.")
        sizes = set()
        for spec in signature.inputs:
            array = inputs.get(spec.name)
            if array is None:
                raise UsageError(f"Input {spec.name} is missing.")
            if not spec.fits(array.shape):
                shapes = f"{list(array.shape)}, and must be {list(spec.shape)}"
                raise UsageError(f"Input {spec.name} has the shape {shapes}.")
            sizes.add(array.shape[:1])
        if signature.batched and len(sizes) > 1:
            raise UsageError(f"The inputs have {', '.join(str(*size) for size in sorted(sizes))} items; let it be one.")
        answers = self._compute(inputs)
        for name, answer in answers.items():  # a view of what went in would change with it
            if any(numpy.may_share_memory(answer, array) for array in inputs.values()):
                answers[name] = answer.copy()
        return answers


def load(path: Path) -> LoadedModel:
    """Load DIR/3, or the newest version in DIR that is whole. What it is made of is proven by its hashes.

    Raises:
        NotAModel, DamagedModel, NewerModel, UnreadableModel: it cannot be used.
        NotLoaded: it is whole, and a library is missing, or its own code fails.
    """
    version, _ = resolve(Path(path), keep=True)
    return load_version(version)


def load_version(version: Version) -> LoadedModel:
    """Load a version; it is read by `Version.read`, so what is used is what was proven."""
    module = importlib.import_module(f"holdfast.model.kinds.{_MODULES[version.manifest.kind]}")
    return LoadedModel(version.manifest, module.load(version))
