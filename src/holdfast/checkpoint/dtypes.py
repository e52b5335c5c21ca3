"""Types of numbers by torch's names: how many bytes one has, and what safetensors calls it.

What safetensors has no name for is written as plain bytes (U8); its manifest knows better. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["DTYPES", "Dtype", "nbytes"]


class Dtype(NamedTuple):
    """One type of numbers."""

    size: int  #: bytes
    code: str = ""  #: in a safetensors file; empty: there it is plain bytes


DTYPES = {
    "bool": Dtype(1, "BOOL"), "uint8": Dtype(1, "U8"), "int8": Dtype(1, "I8"), "uint16": Dtype(2, "U16"),
    "int16": Dtype(2, "I16"), "uint32": Dtype(4, "U32"), "int32": Dtype(4, "I32"), "uint64": Dtype(8, "U64"),
    "int64": Dtype(8, "I64"), "float16": Dtype(2, "F16"), "bfloat16": Dtype(2, "BF16"), "float32": Dtype(4, "F32"),
    "float64": Dtype(8, "F64"), "float8_e5m2": Dtype(1, "F8_E5M2"), "float8_e4m3fn": Dtype(1, "F8_E4M3"),
    "float8_e5m2fnuz": Dtype(1), "float8_e4m3fnuz": Dtype(1), "float8_e8m0fnu": Dtype(1), "complex32": Dtype(4),
    "complex64": Dtype(8), "complex128": Dtype(16),
}  # fmt: skip


def nbytes(dtype: str, shape: Sequence[int]) -> int:
    """The bytes of a tensor; -1: there is no such tensor.

    >>> nbytes("bfloat16", (3, 4)), nbytes("float32", ()), nbytes("float33", (1,)), nbytes("int8", (-1, 0))
    (24, 4, -1, -1)
    """
    if dtype not in DTYPES or min(shape, default=0) < 0:
        return -1
    return math.prod(shape) * DTYPES[dtype].size
