"""What a model gave for rows, as columns of the file that is written: which there are, and their values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy

from holdfast.model.manifest import ModelManifest
from holdfast.model.signature import TensorSpec, dtype_of
from holdfast.serve.predict.columns import item_shape
from holdfast.serve.predict.likely import are_probabilities, likeliest, scores_of
from holdfast.serve.predict.source import UnreadableRows
from holdfast.serve.protocol.requests import InferOutput
from holdfast.serve.protocol.tensors import unpack_bytes

__all__ = ["Column", "Outputs", "Piece", "arrays", "layout"]

Array = numpy.ndarray[Any, Any]


class Column(NamedTuple):
    """A column of what is written: its name, datatype, and the shape of one row's value."""

    name: str
    datatype: str
    shape: tuple[int, ...] = ()


class Piece(NamedTuple):
    """Rows that were computed together: `begin` is the first of them."""

    begin: int
    outputs: dict[str, Array]  #: by name; the first dimension counts rows


def layout(manifest: ModelManifest, top: int, *, numbered: bool) -> tuple[Column, ...]:
    """The columns: the row's number, the `top` likeliest classes and their probabilities, and every output."""
    made = [Column("row", "INT64")] if numbered else []
    if scores_of(manifest):
        for place in range(min(top, len(manifest.classes))):
            ending = f"_{place + 1}" if place else ""
            made += [Column(f"label{ending}", "BYTES"), Column(f"probability{ending}", "FP64")]
    taken = {column.name for column in made}
    for spec in manifest.signature.outputs:
        name = f"output_{spec.name}" if spec.name in taken else spec.name
        datatype = "FP32" if spec.datatype in ("FP16", "BF16") else spec.datatype
        made.append(Column(name, datatype, item_shape(spec, batched=manifest.signature.batched)))
    return tuple(made)


def arrays(specs: Sequence[TensorSpec], outputs: Sequence[InferOutput], *, batched: bool) -> dict[str, Array]:
    """An answer as arrays, the first dimension counting rows. Raises UnreadableRows: a text is none."""
    made: dict[str, Array] = {}
    for spec, output in zip(specs, outputs, strict=True):
        shape = output.shape if batched else (1, *output.shape)
        if spec.datatype == "BYTES":
            array = numpy.empty(math.prod(shape), object)
            try:
                array[:] = [text.decode() for text in unpack_bytes(output.data)]
            except UnicodeDecodeError:
                raise UnreadableRows(f"its output {spec.name} is no text in UTF-8") from None
        else:
            array = numpy.frombuffer(output.data, dtype_of(spec.datatype))
            if spec.datatype == "BF16":
                array = (array.astype("<u4") << 16).view("<f4")
            elif spec.datatype == "FP16":
                array = array.astype("<f4")
        made[spec.name] = array.reshape(shape)
    return made


class Outputs:
    """Makes columns of what blocks gave. `given`: whether a model's scores are probabilities; None: not known yet."""

    def __init__(self, manifest: ModelManifest, columns: Sequence[Column], top: int, given: bool | None) -> None:
        self._manifest, self._columns, self._top, self.given = manifest, columns, top, given
        self._scores = scores_of(manifest) if top else ""
        self._classes = numpy.array([*manifest.classes, None], object)  # -1 is no class

    def columns(self, pieces: Sequence[Piece]) -> Mapping[str, Array]:
        """The columns of a block, in their order."""
        joined = {
            spec.name: _joined([piece.outputs[spec.name] for piece in pieces])
            for spec in self._manifest.signature.outputs
        }
        made: dict[str, Array] = {}
        numbers = [numpy.arange(piece.begin, piece.begin + _rows(piece)) for piece in pieces]
        made["row"] = numpy.concatenate(numbers) if numbers else numpy.empty(0, int)
        if self._scores and pieces:
            scores = joined[self._scores]
            if self.given is None:
                self.given = are_probabilities(scores)
            order, likely = likeliest(scores, self._top, given=self.given)
            for place in range(order.shape[1]):
                ending = f"_{place + 1}" if place else ""
                made[f"label{ending}"] = self._classes[order[:, place]]
                made[f"probability{ending}"] = likely[:, place]
        own = [column.name for column in self._columns[-len(joined) :]]
        made |= zip(own, joined.values(), strict=True)
        none = numpy.empty(0, object)  # of a block of which no row is left
        return {column.name: made.get(column.name, none) for column in self._columns}


def _rows(piece: Piece) -> int:
    return len(next(iter(piece.outputs.values())))


def _joined(parts: Sequence[Array]) -> Array:
    """One array; of objects, where a row's shape varies."""
    if not parts:
        return numpy.empty(0, object)
    if len({part.shape[1:] for part in parts}) == 1:
        return parts[0] if len(parts) == 1 else numpy.concatenate(parts)
    rows = [row for part in parts for row in part]
    made = numpy.empty(len(rows), object)
    for at, row in enumerate(rows):
        made[at] = row
    return made
