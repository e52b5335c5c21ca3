"""The kind `onnx`: a file of ONNX, computed by onnxruntime."""

from __future__ import annotations

import importlib
from typing import Any

import numpy

from holdfast.errors import NotExportable, NotLoaded
from holdfast.model.example import Example, encode_example, of_size
from holdfast.model.kinds.python_class import sample
from holdfast.model.library import Version
from holdfast.model.manifest import EXAMPLE
from holdfast.model.observation import observe
from holdfast.model.signature import Signature, TensorSpec
from holdfast.model.user_code import traceback_line
from holdfast.model.version_writer import Draft, frameworks

__all__ = ["FILE", "draft", "load"]

Arrays = dict[str, numpy.ndarray[Any, Any]]
FILE = "model.onnx"
_EXTRA = "pip install 'holdfast[onnx]'."
_DATATYPES = {
    "tensor(bool)": "BOOL", "tensor(uint8)": "UINT8", "tensor(uint16)": "UINT16", "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64", "tensor(int8)": "INT8", "tensor(int16)": "INT16", "tensor(int32)": "INT32",
    "tensor(int64)": "INT64", "tensor(float16)": "FP16", "tensor(float)": "FP32", "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
}  # fmt: skip


def draft(data: bytes, where: object, name: str, example: Example | None) -> tuple[Draft, Example]:
    """The version of such a file, and an example of what goes in. Raises NotExportable."""
    try:
        session = _session(data)
    except ImportError as error:
        raise NotExportable(str(where), f"{error.name} is not installed", _EXTRA) from None
    except Exception as error:
        raise NotExportable(
            str(where), f"onnxruntime cannot read it ({traceback_line(error)})",
            "Give a .onnx file that is whole; one whose weights lie in other files has to be saved as one file.",
        ) from None  # fmt: skip
    inputs, outputs = (_specs(where, items) for items in (session.get_inputs(), session.get_outputs()))
    batched = all(spec.shape[:1] == (-1,) for spec in (*inputs, *outputs))
    signature = Signature(inputs, outputs, batched)
    if example is None:
        example = sample(signature)
    else:  # outputs that do not say their shapes show them
        variable = {
            spec.name: tuple(at for at, size in enumerate(spec.shape) if size == -1 and (at or not batched))
            for spec in inputs
        }
        seen = observe(str(where), lambda given: _shapes(session, outputs, given), example, variable, batched=batched)
        signature = Signature(inputs, seen.outputs, batched)
    files = {FILE: data, EXAMPLE: encode_example(of_size(example, 1 if batched else -1))}
    return Draft(
        name=name, kind="onnx", signature=signature, files=files, frameworks=frameworks("onnxruntime")
    ), example


def load(version: Version) -> Any:
    """A function of arrays; see `LoadedModel`. One thread computes, as with torch in a replica."""
    data = bytes(version.read(FILE))
    try:
        session = _session(data)
    except ImportError as error:
        raise NotLoaded(version.path, f"{error.name} is not installed", _EXTRA) from None
    except Exception as error:
        fix = f"Use onnxruntime {version.manifest.frameworks.get('onnxruntime', 'unknown')}."
        raise NotLoaded(version.path, f"onnxruntime cannot read it ({traceback_line(error)})", fix) from error
    signature = version.manifest.signature

    def compute(arrays: Arrays) -> Arrays:
        return _computed(session, signature.outputs, arrays)

    return compute


def _session(data: bytes) -> Any:
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors are raised; warnings of the optimiser are for whoever made the file
    return runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def _computed(session: Any, outputs: tuple[TensorSpec, ...], arrays: Arrays) -> Arrays:
    given = {
        name: numpy.array([item.decode() for item in array.reshape(-1)], dtype=object).reshape(array.shape)
        if array.dtype.kind == "O" else array
        for name, array in arrays.items()
    }  # fmt: skip
    answers: Arrays = {}
    for spec, value in zip(outputs, session.run([spec.name for spec in outputs], given), strict=True):
        if spec.datatype == "BYTES":
            texts = numpy.empty(value.shape, dtype=object)
            texts.reshape(-1)[:] = [str(item).encode() for item in value.reshape(-1)]
            value = texts
        answers[spec.name] = value
    return answers


def _shapes(session: Any, outputs: tuple[TensorSpec, ...], given: Example) -> dict[str, tuple[str, tuple[int, ...]]]:
    answers = _computed(session, outputs, given.arrays)
    return {spec.name: (spec.datatype, answers[spec.name].shape) for spec in outputs}


def _specs(where: object, items: Any) -> tuple[TensorSpec, ...]:
    specs = []
    for item in items:
        if item.type not in _DATATYPES:
            raise NotExportable(
                str(where), f"{item.name} is a {item.type}, and requests have tensors of numbers or texts",
                "Cut it out of the graph, or serve a Python class around it.",
            )  # fmt: skip
        shape = tuple(size if isinstance(size, int) and size >= 0 else -1 for size in item.shape)
        specs.append(TensorSpec(item.name, _DATATYPES[item.type], shape))
    return tuple(specs)
