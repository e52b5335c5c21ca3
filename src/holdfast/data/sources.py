"""The data sets that have a name.

A source is a function `load(split, root) -> Dataset`. The registry is the dict `SOURCES`, and there is
no other way in: to add one, put it there.

    >>> len(dataset("digits", "train")), len(dataset("digits", "test"))
    (1437, 360)
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import TypeAlias

from holdfast.data import digits, fashion_mnist
from holdfast.data.dataset import Dataset, check_split
from holdfast.errors import UsageError

__all__ = ["SOURCES", "Source", "dataset"]

Source: TypeAlias = Callable[[str, Path | None], Dataset]

SOURCES: dict[str, Source] = {"digits": digits.load, "fashion-mnist": fashion_mnist.load}


def dataset(name: str, split: str = "train", root: str | PathLike[str] | None = None) -> Dataset:
    """The data set of this name.

    Args:
        name: one of `SOURCES`.
        split: "train" or "test".
        root: a directory that holds the files; without it, each source knows where to look.

    Raises:
        UsageError: unknown name or split, or the files are nowhere to be had.
        ResourceError: a download could not be stored.
    """
    if name not in SOURCES:
        near = difflib.get_close_matches(name.lower().replace("_", "-"), SOURCES, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"There is no data set {name!r}.{hint} Known are: {', '.join(sorted(SOURCES))}.")
    check_split(name, split)
    return SOURCES[name](split, Path(root).expanduser() if root is not None else None)
