"""The kind `python`: a class in a file of the user's, with `setup(self, directory)` and `predict(self, **inputs)`.

    class Model:
        inputs = [{"name": "text", "datatype": "BYTES", "shape": [-1]}]      # or from an example
        outputs = [{"name": "length", "datatype": "INT64", "shape": [-1]}]
        batched = True

        def setup(self, directory):         # optional; `directory` has the files that were given with it
            ...

        def predict(self, text):            # arrays of NumPy in, a dict of arrays (or one array) out
            return {"length": [len(one) for one in text]}

Its file is copied into the version, and run where it is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy

from holdfast.errors import HoldfastError, NotExportable, NotLoaded, UsageError
from holdfast.model.answers import as_arrays, as_datatype, shapes_of
from holdfast.model.example import Example, encode_example, of_size
from holdfast.model.library import Version
from holdfast.model.manifest import EXAMPLE
from holdfast.model.observation import observe
from holdfast.model.signature import Signature, TensorSpec, dtype_of
from holdfast.model.user_code import ClassName, class_in_file, class_of_version, traceback_line
from holdfast.model.version_writer import Draft, frameworks

__all__ = ["draft", "load", "sample"]

Arrays = dict[str, numpy.ndarray[Any, Any]]


def draft(
    where: ClassName, name: str, example: Example | None, *, variable: Mapping[str, tuple[int, ...]],
    extra: Sequence[Path] = (),
) -> tuple[Draft, Example]:  # fmt: skip
    """The version of such a class, and an example of what goes in.

    Raises NotExportable, UsageError.
    """
    if where.file is None:
        raise UsageError(f"{where}: a Python class to serve stands in a file. Write path/to/file.py:Class.")
    try:
        files: dict[str, Any] = {file.name: file.read_bytes() for file in (where.file, *extra)}
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read ({error.strerror}).") from None
    if len(files) <= len(extra):
        raise UsageError("Two of the files have one name, and lie in one folder in a version. Rename one.")
    try:
        made = class_in_file(files[where.file.name], where.name, where.file.resolve())()
        if not callable(getattr(made, "predict", None)):
            raise UsageError(f"{where} has no method predict(self, **inputs).")
        signature = _declared(made, where)
        if example is None:
            if signature is None:
                raise UsageError(
                    f"{where} does not say what goes in. Give the class `inputs` and `outputs` (each a list of name, "
                    "datatype and shape), or an --example FILE.json."
                )
            example = sample(signature)
        if signature is None:
            if callable(getattr(made, "setup", None)):
                made.setup(where.file.resolve().parent)
            signature = observe(
                str(where), lambda given: shapes_of(as_arrays(made.predict(**given.arrays))), example, variable,
                batched=bool(getattr(made, "batched", True)),
            )  # fmt: skip
    except HoldfastError:
        raise
    except Exception as error:
        raise NotExportable(str(where), f"it raised {traceback_line(error)}", "Look at its code.") from error
    files[EXAMPLE] = encode_example(of_size(example, 1 if signature.batched else -1))
    return Draft(
        name=name, kind="python", signature=signature, files=files, classes=tuple(getattr(made, "classes", ())),
        build={"class": where.name, "file": where.file.name}, frameworks=frameworks(),
        idempotent=bool(getattr(made, "idempotent", True)), finite=bool(getattr(made, "finite", True)),
    ), example  # fmt: skip


def load(version: Version) -> Any:
    """A function of arrays; see `LoadedModel`. The object is made and set up when it returns."""
    factory = class_of_version(version)
    version.verify()  # whatever else it opens in its folder
    try:
        made = factory()
        if callable(getattr(made, "setup", None)):
            made.setup(version.path)
    except Exception as error:
        fix = "Look at its code; what it reads has to be in its folder, or on this machine."
        raise NotLoaded(version.path, f"its class raised {traceback_line(error)}", fix) from error
    outputs = version.manifest.signature.outputs
    names = [spec.name for spec in outputs]

    def compute(arrays: Arrays) -> Arrays:
        answers = as_arrays(made.predict(**arrays), names)
        return {spec.name: as_datatype(answers[spec.name], spec.datatype) for spec in outputs}

    return compute


def sample(signature: Signature, *, rows: int = 1) -> Example:
    """Zeros, or empty texts, that fit a signature; variable dimensions are 1."""
    arrays: Arrays = {}
    for spec in signature.inputs:
        first = (rows,) if signature.batched else ()
        shape = (*first, *(max(size, 1) if size else 0 for size in spec.shape[len(first) :]))
        arrays[spec.name] = numpy.full(shape, b"" if spec.datatype == "BYTES" else 0, dtype_of(spec.datatype))
    return Example(arrays, {spec.name: spec.datatype for spec in signature.inputs})


def _declared(made: Any, where: ClassName) -> Signature | None:
    """What the class says of itself."""
    told = {what: getattr(made, what, None) for what in ("inputs", "outputs")}
    if any(value is None for value in told.values()):
        return None
    try:
        inputs, outputs = (msgspec.convert(told[what], tuple[TensorSpec, ...]) for what in ("inputs", "outputs"))
    except msgspec.ValidationError as error:
        raise UsageError(
            f"{where} says something else than its inputs and outputs ({error}). Write each as a list of dicts with "
            "name, datatype and shape."
        ) from None
    return Signature(inputs, outputs, bool(getattr(made, "batched", True)))
