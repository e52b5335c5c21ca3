"""Holdfast: machines come and go; the result does not change.

    import holdfast as hf

    run = hf.join()
    model, optimizer, loader = run.prepare(model, optimizer, loader)

Importing this package imports no torch; its parts are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast import errors

if TYPE_CHECKING:
    from holdfast.data.sources import dataset
    from holdfast.train.fit import fit
    from holdfast.train.loop.steps import Step
    from holdfast.train.run import Run, join

__version__ = "0.1.0"

__all__ = ["Run", "Step", "__version__", "dataset", "errors", "fit", "join"]

_PARTS = {
    "Run": "holdfast.train.run",
    "Step": "holdfast.train.loop.steps",
    "dataset": "holdfast.data.sources",
    "fit": "holdfast.train.fit",
    "join": "holdfast.train.run",
}


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return getattr(import_module(_PARTS[name]), name)
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
