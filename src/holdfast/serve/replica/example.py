"""Batches to try a version on before it answers: of its example, or of zeros where it has none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy

from holdfast.model.manifest import ModelManifest
from holdfast.model.signature import DATATYPES, TensorSpec

__all__ = ["batches_of"]

Array = numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.generic]]
EXAMPLE = "example.json"
_VARIABLE = 8  # what a variable dimension is tried with


def batches_of(manifest: ModelManifest, directory: Path, most: int) -> Iterator[tuple[int, dict[str, Array]]]:
    """Batches of 1, 2, 4, ... items, up to so many; one where the model takes no batches."""
    signature = manifest.signature
    example = _example(manifest, directory)
    if not signature.batched:
        yield 1, example
        return
    items = 1
    while items <= min(most, 16):
        # The same item over and over: any number of them can be made of an example of one.
        yield items, {name: numpy.repeat(array[:1], items, axis=0) for name, array in example.items()}
        items *= 2


def _example(manifest: ModelManifest, directory: Path) -> dict[str, Array]:
    if EXAMPLE not in manifest.files:
        return {spec.name: _zeros(spec) for spec in manifest.signature.inputs}
    request = json.loads((directory / EXAMPLE).read_text())
    given = {tensor["name"]: tensor for tensor in request["inputs"]}
    return {spec.name: _array(spec, given[spec.name]) for spec in manifest.signature.inputs}


def _array(spec: TensorSpec, tensor: dict[str, Any]) -> Array:
    if spec.datatype == "BYTES":
        made = numpy.array([str(text).encode() for text in tensor["data"]], object)
    else:
        made = numpy.array(tensor["data"], DATATYPES[spec.datatype])
    return made.reshape(tensor["shape"])


def _zeros(spec: TensorSpec) -> Array:
    shape = tuple(size if size >= 0 else _VARIABLE for size in spec.shape)
    if spec.datatype == "BYTES":
        return numpy.full(shape, b"", object)
    return numpy.zeros(shape, DATATYPES[spec.datatype])
