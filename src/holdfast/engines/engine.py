"""Engines by name. The extension point itself is `coordinator.ports.Engine`: five methods.

An engine is chosen from an explicit table, never by import side effect. To add one, write a class
that passes `tests/contract/test_engine_contract.py` and give it a line here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from holdfast.config.worker import WorkerSpec
from holdfast.coordinator.ports import Engine
from holdfast.engines.nursery import DEFAULT_ENTRY
from holdfast.errors import ConfigError

__all__ = ["Engine", "open_engine"]


def _local(spec: WorkerSpec, logs: Path, entry: str) -> Engine:
    from holdfast.engines.local import LocalEngine

    return LocalEngine(spec, logs=logs, entry=entry)


_ENGINES: dict[str, Callable[[WorkerSpec, Path, str], Engine]] = {"local": _local}


def open_engine(name: str, spec: WorkerSpec, *, logs: Path, entry: str = DEFAULT_ENTRY) -> Engine:
    """The engine of this name; every worker is started like `spec`, with its own number and row.

    `entry` names what a worker process runs, as `module:function`.
    """
    if name not in _ENGINES:
        raise ConfigError("on", name, f"there is {', '.join(_ENGINES)}", source="--on")
    return _ENGINES[name](spec, logs, entry)
