"""The likeliest classes of each row, and how likely they are, where a model's output is a score for each class."""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.model.manifest import ModelManifest

__all__ = ["are_probabilities", "likeliest", "scores_of"]

Array = numpy.ndarray[Any, Any]


def scores_of(manifest: ModelManifest) -> str:
    """The output that has a score for each class; empty: there is none."""
    spec, signature = manifest.signature.outputs[0], manifest.signature
    shape = spec.shape[1:] if signature.batched else spec.shape
    known = manifest.classes and spec.datatype in ("FP16", "FP32", "FP64") and shape == (len(manifest.classes),)
    return spec.name if known else ""


def are_probabilities(scores: Array) -> bool:
    """Are these probabilities already? It is asked once for a whole data set, of its first rows."""
    finite = scores[numpy.isfinite(scores).all(axis=1)].astype(float)
    return bool(len(finite) and (finite >= 0).all() and (abs(finite.sum(axis=1) - 1) < 1e-3).all())


def likeliest(scores: Array, top: int, *, given: bool) -> tuple[Array, Array]:
    """The numbers of the `top` likeliest classes of each row and their probabilities: the scores, or their softmax.

    Of a row with values that are not finite they are -1 and NaN.
    """
    values = scores.astype(numpy.float64)
    bad = ~numpy.isfinite(values).all(axis=1)
    values[bad] = 0.0
    if not given:
        values = numpy.exp(values - values.max(axis=1, keepdims=True))
        values /= values.sum(axis=1, keepdims=True)
    order = (-values).argsort(axis=1, kind="stable")[:, :top]
    likely = numpy.take_along_axis(values, order, axis=1)
    order[bad], likely[bad] = -1, numpy.nan
    return order, likely
