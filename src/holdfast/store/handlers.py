"""Handlers: what a server does with what was pushed.

    def handler(key: str, stored: Tensor, pushed: Tensor) -> None:
        stored -= 0.1 * pushed

A handler changes `stored` in place. Both tensors have the same shape: that of the key, or, where rows were pushed,
that of those rows (each of them once). It runs in the server's process, one call at a time, in order of arrival. What
it changes is published when it returns; if it raises, nothing is.

A handler marked `@elementwise` says that it treats every element alike, whatever its place: then it is called with
flat pieces of a value, while the rest of it is still being written, which is much faster for large ones.

One marked `@elementwise_into` writes the new elements elsewhere, which saves a copy of all of them:

    def handler(key: str, stored: Tensor, pushed: Tensor, new: Tensor) -> None:
        torch.sub(stored, pushed, alpha=0.1, out=new)

Its `stored` is the published version itself, and can only be read.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from holdfast.errors import UsageError

__all__ = ["Handler", "add", "elementwise", "elementwise_into", "is_elementwise", "is_into", "load", "name_of"]

#: (key, stored, pushed), and `new` where it was marked so.
Handler = Callable[..., None]
_Function = TypeVar("_Function", bound=Handler)


def elementwise(handler: _Function) -> _Function:
    """Mark a handler that may be called with pieces of a value."""
    handler.__dict__["elementwise"] = True
    return handler


def elementwise_into(handler: _Function) -> _Function:
    """Mark a handler that may be called with pieces of a value, and writes what they become into a fourth tensor."""
    handler.__dict__["into"] = True
    return elementwise(handler)


def is_into(handler: Handler) -> bool:
    """Does it take the fourth tensor?"""
    return bool(getattr(handler, "into", False))


def is_elementwise(handler: Handler) -> bool:
    """Was it marked?"""
    return bool(getattr(handler, "elementwise", False))


@elementwise_into
def add(key: str, stored: Tensor, pushed: Tensor, new: Tensor) -> None:
    """What servers do unless told otherwise."""
    torch.add(stored, pushed, out=new)


def name_of(handler: Handler | str) -> str:
    """The name by which another process finds a function: nothing is pickled. Raises UsageError."""
    if isinstance(handler, str):
        name = handler
    else:
        module, function = getattr(handler, "__module__", ""), getattr(handler, "__qualname__", "")
        if module == "__main__":
            module = getattr(sys.modules[module], "__file__", None) or ""
        name = f"{module}:{function}"
    module, _, function = name.rpartition(":")
    if not module or not function.isidentifier():
        raise UsageError(
            f"The handler {name!r} cannot be found by its name in a server's process: write a function at the top "
            "level of a module, and give it, or its name as 'module:function' or 'path/to/file.py:function'."
        )
    return name


def load(name: str) -> Handler:
    """The function with this name. Raises UsageError."""
    module, _, function = name.rpartition(":")
    try:
        home = _from_file(Path(module)) if module.endswith(".py") else importlib.import_module(module)
        found: Handler = getattr(home, function)
    except (ImportError, AttributeError, OSError) as error:
        raise UsageError(
            f"The handler {name!r} could not be loaded: {type(error).__name__}: {error}. Give 'module:function' or "
            "'path/to/file.py:function'."
        ) from error
    return found


def _from_file(path: Path) -> object:
    """A script is loaded under a name of its own, so its `if __name__ == "__main__"` part does not run."""
    spec = importlib.util.spec_from_file_location(f"holdfast_handler_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"no module can be made of {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
