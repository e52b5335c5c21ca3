"""The kind `sklearn`: an estimator of scikit-learn, as skops writes it, without a pickle that would be run.

What skops reads is a schema in JSON and arrays of NumPy; it makes objects of types that it knows to be harmless, and of
those named here: classes of scikit-learn that hold numbers. A file with any other type is refused, by name. Trees and
neighbours are searched by compiled code that believes their numbers: a file from a stranger may still crash a process.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy

from holdfast.errors import DamagedModel, HoldfastError, NotExportable, NotLoaded, UsageError
from holdfast.model.answers import as_arrays, as_bytes, as_datatype, shapes_of
from holdfast.model.example import Example, encode_example, of_size
from holdfast.model.library import Version
from holdfast.model.manifest import EXAMPLE
from holdfast.model.observation import observe
from holdfast.model.user_code import traceback_line
from holdfast.model.version_writer import Draft, frameworks

__all__ = ["ESTIMATOR", "draft", "load"]

Arrays = dict[str, numpy.ndarray[Any, Any]]
ESTIMATOR = "estimator.skops"
_EXTRA = "pip install 'holdfast[sklearn]'."
_TRUSTED = frozenset({
    "numpy.dtype", "sklearn._loss.loss.HalfTweedieLossIdentity", "sklearn.calibration._CalibratedClassifier",
    "sklearn.calibration._SigmoidCalibration", "sklearn.cluster._bisect_k_means._BisectingTree",
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
    "sklearn.feature_selection._univariate_selection.f_classif",
    "sklearn.gaussian_process._gpc._BinaryGaussianProcessClassifierLaplace",
    "sklearn.gaussian_process.kernels.ConstantKernel", "sklearn.gaussian_process.kernels.Product",
    "sklearn.gaussian_process.kernels.RBF", "sklearn.gaussian_process.kernels.Sum",
    "sklearn.gaussian_process.kernels.WhiteKernel", "sklearn.metrics._dist_metrics.EuclideanDistance64",
    "sklearn.neighbors._ball_tree.BallTree", "sklearn.neighbors._kd_tree.KDTree",
    "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
    "sklearn.neural_network._stochastic_optimizers.SGDOptimizer", "sklearn.tree._tree.Tree",
})  # fmt: skip


def draft(data: bytes, where: object, name: str, example: Example | None) -> tuple[Draft, Example]:
    """The version of an estimator that skops has written, and an example. Raises NotExportable, UsageError."""
    try:
        estimator = _read(data)
    except HoldfastError:
        raise
    except ImportError as error:
        raise NotExportable(str(where), f"{error.name} is not installed", _EXTRA) from None
    except Exception as error:
        raise NotExportable(
            str(where), f"skops cannot read it ({traceback_line(error)})",
            "Write the estimator with skops.io.dump(estimator, 'FILE.skops').",
        ) from None  # fmt: skip
    if example is None:
        features = getattr(estimator, "n_features_in_", None)
        if features is None:
            raise UsageError(f"{where} does not say how many features it takes. Add --example FILE.json.")
        example = Example({"input": numpy.zeros((1, int(features)))}, {"input": "FP64"})
    if len(example.arrays) != 1:
        raise UsageError(f"An estimator takes one input, and the example has {', '.join(example.arrays)}.")
    try:
        signature = observe(str(where), lambda given: shapes_of(_answers(estimator, given.arrays)), example, {})
    except HoldfastError:
        raise
    except Exception as error:
        raise NotExportable(str(where), f"it raised {traceback_line(error)}", "Give it an --example.") from error
    files = {ESTIMATOR: data, EXAMPLE: encode_example(of_size(example, 1))}
    classes = getattr(estimator, "classes_", None)
    return Draft(
        name=name, kind="sklearn", signature=signature, files=files, frameworks=frameworks("scikit-learn", "skops"),
        classes=tuple(map(str, classes.tolist())) if isinstance(classes, numpy.ndarray) and classes.ndim == 1 else (),
    ), example  # fmt: skip


def load(version: Version) -> Any:
    """A function of arrays; see `LoadedModel`."""
    data = bytes(version.read(ESTIMATOR))
    try:
        estimator = _read(data)
    except ImportError as error:
        raise NotLoaded(version.path, f"{error.name} is not installed", _EXTRA) from None
    except NotExportable as error:
        raise DamagedModel(version.path, ESTIMATOR, error.why.removeprefix("it ")) from None
    except Exception as error:
        made = version.manifest.frameworks.get("scikit-learn", "unknown")
        fix = f"Use scikit-learn {made}, or export it again."
        raise NotLoaded(version.path, f"skops cannot read it ({traceback_line(error)})", fix) from error
    outputs = version.manifest.signature.outputs

    def compute(arrays: Arrays) -> Arrays:
        answers = _answers(estimator, arrays)
        return {spec.name: as_datatype(answers[spec.name], spec.datatype) for spec in outputs}

    return compute


def _read(data: bytes) -> Any:
    """The estimator. Raises NotExportable where it has types that nobody vouches for."""
    importlib.import_module("sklearn")
    skops = importlib.import_module("skops.io")
    asked = skops.get_untrusted_types(data=data)
    if odd := sorted(set(asked) - _TRUSTED):
        raise NotExportable(
            "The estimator", f"it has types that are neither scikit-learn's nor NumPy's: {', '.join(odd)}",
            "Leave them out, or serve a Python class around it.",
        )  # fmt: skip
    return skops.loads(data, trusted=list(asked))


def _answers(estimator: Any, arrays: Arrays) -> Arrays:
    (given,) = arrays.values()
    if given.dtype.kind == "O":  # texts, as what counts words takes them
        texts = [item.decode() if isinstance(item, bytes) else item for item in given.reshape(-1).tolist()]
        given = numpy.array(texts, dtype=object).reshape(given.shape)
    if not hasattr(estimator, "predict"):
        return as_arrays({"output": _dense(estimator.transform(given))})
    label = numpy.asarray(estimator.predict(given))
    answers = {"label": as_bytes(label) if label.dtype.kind in "SUO" else label}
    if hasattr(estimator, "predict_proba"):
        answers["probability"] = numpy.asarray(estimator.predict_proba(given))
    return as_arrays(answers)


def _dense(value: Any) -> Any:
    return value.toarray() if hasattr(value, "toarray") else value
