"""A user's code: a class named as `package.module:Class`, or as `path/to/file.py:Class`, imported or out of a file."""

from __future__ import annotations

import hashlib
import importlib
import sys
import types
from pathlib import Path
from typing import Any

from holdfast.errors import NotLoaded, UsageError
from holdfast.model.library import Version

__all__ = ["ClassName", "class_in_file", "class_of_version", "imported_class", "parse_class", "traceback_line"]


class ClassName:
    """Where a class is: in a `file`, or in a module that can be imported."""

    def __init__(self, module: str, name: str) -> None:
        self.name = name
        self.file = Path(module) if module.endswith(".py") else None
        self.module = "" if self.file else module

    def __str__(self) -> str:
        return f"{self.file or self.module}:{self.name}"


def parse_class(text: str) -> ClassName:
    """Read such a name. Raises UsageError.

    >>> str(parse_class("nets/lenet.py:LeNet")), parse_class("torchvision.models:resnet18").module
    ('nets/lenet.py:LeNet', 'torchvision.models')
    """
    module, _, name = text.rpartition(":")
    if not module or not name.isidentifier():
        raise UsageError(f"{text}: it says no class. Write package.module:Class, or path/to/file.py:Class.")
    return ClassName(module, name)


def class_in_file(source: bytes, name: str, where: object) -> Any:
    """The class of that name in a file with this text, which is run. Raises UsageError; whatever the file raises."""
    key = f"_holdfast_model_{hashlib.sha256(source).hexdigest()[:16]}"
    module = sys.modules.get(key)
    if module is None:
        module = types.ModuleType(key)
        module.__file__ = str(where)
        sys.modules[key] = module  # dataclasses and typing look a class's module up there
        try:
            exec(compile(source, str(where), "exec"), module.__dict__)
        except BaseException:
            del sys.modules[key]
            raise
    found = getattr(module, name, None)
    if not callable(found):
        raise UsageError(f"{where} has no class {name}.")
    return found


def imported_class(name: ClassName) -> Any:
    """The class in a module that can be imported. Raises UsageError; whatever importing it raises."""
    found = getattr(importlib.import_module(name.module), name.name, None)
    if not callable(found):
        raise UsageError(f"{name.module} has no class {name.name}.")
    return found


def class_of_version(version: Version) -> Any:
    """The class that a version's `build` names: out of a file of it, or imported. Raises NotLoaded, DamagedModel."""
    build = version.manifest.build
    file, name = str(build.get("file", "")), str(build.get("class", ""))
    try:
        if file:
            return class_in_file(bytes(version.read(file)), name, version.path / file)
        return imported_class(parse_class(name))
    except UsageError as error:
        raise NotLoaded(version.path, str(error).rstrip("."), "Export it again.") from None
    except Exception as error:
        fix = "Install what it needs; of a file only that file itself is part of the version, and its --with FILEs."
        raise NotLoaded(version.path, f"{name} cannot be imported: {traceback_line(error)}", fix) from error


def traceback_line(error: BaseException) -> str:
    """Its last line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
