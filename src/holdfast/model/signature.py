"""The signature of a model: what goes in, what comes out. Pure.

Types are called as the Open Inference Protocol calls them. A dimension of -1 may have any size. Where a model is
`batched`, the first dimension of every input and output counts items, and items of several requests may be computed
together.
"""

from __future__ import annotations

import msgspec
import numpy

__all__ = ["DATATYPES", "Signature", "TensorSpec", "datatype_of", "dtype_of"]

#: Datatype -> NumPy's name of it, little-endian. BF16 has none: it travels as its 16 bits. BYTES are objects.
DATATYPES: dict[str, str] = {
    "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "i1", "INT16": "<i2",
    "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "BF16": "<u2", "FP32": "<f4", "FP64": "<f8", "BYTES": "O",
}  # fmt: skip
_BY_DTYPE = {numpy.dtype(code): name for name, code in DATATYPES.items() if name != "BF16"}


def dtype_of(datatype: str) -> numpy.dtype[numpy.generic]:
    """What NumPy calls it. Raises KeyError where there is no such datatype.

    >>> dtype_of("FP32").itemsize
    4
    """
    return numpy.dtype(DATATYPES[datatype])


def datatype_of(dtype: numpy.dtype[numpy.generic]) -> str:
    """What the protocol calls an array's dtype; strings are BYTES. Raises KeyError where it has no name for it.

    >>> datatype_of(numpy.dtype("float64")), datatype_of(numpy.dtype("<U3"))
    ('FP64', 'BYTES')
    """
    return "BYTES" if dtype.kind in "SUO" else _BY_DTYPE[dtype.newbyteorder("<") if dtype.itemsize > 1 else dtype]


class TensorSpec(msgspec.Struct, frozen=True):
    """One input or output."""

    name: str
    datatype: str
    shape: tuple[int, ...]  #: with the dimension that counts items, if the model is batched
    #: What fills an item up in its variable dimensions, so that longer and shorter ones can be computed together.
    padding: float | None = None

    def fits(self, shape: tuple[int, ...]) -> bool:
        """May a tensor have this shape?

        >>> TensorSpec("x", "FP32", (-1, 28, 28)).fits((7, 28, 28))
        True
        """
        return len(shape) == len(self.shape) and all(
            want in (-1, size) for want, size in zip(self.shape, shape, strict=True)
        )

    def item(self) -> tuple[int, ...]:
        """The shape of one item of a batched model."""
        return self.shape[1:]


class Signature(msgspec.Struct, frozen=True):
    """All inputs and outputs, in the order in which the model takes and gives them."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batched: bool = True

    def input(self, name: str) -> TensorSpec | None:
        """The input of that name."""
        return next((spec for spec in self.inputs if spec.name == name), None)

    def output(self, name: str) -> TensorSpec | None:
        """The output of that name."""
        return next((spec for spec in self.outputs if spec.name == name), None)
