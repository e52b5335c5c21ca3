"""Durations stand in `config.limits` and nowhere else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import msgspec

import holdfast
from holdfast.config.limits import FIXED

SOURCES = Path(holdfast.__file__).parent
#: Numbers with a point that are no durations: they are part of a result or of a measurement.
NUMBERS = {
    "config/worker_spec.py: OUTER", "core/routes.py: EQUAL", "core/sync/staleness.py: COMPENSATION",
    "core/sync/staleness.py: _STEEP", "core/transfers.py: _FAST", "dataplane/reduce/partial_step.py: _LR",
    "dataplane/reduce/partial_step.py: _NEAR", "model/export.py: _TOLERANCE", "serve/dispatch/cost.py: _FORGET",
    "serve/dispatch/cost.py: _OUTLIER", "serve/dispatch/cost.py: _SPREAD",
    "serve/dispatch/dispatcher.py: _LEAST_SHARE", "serve/models/model_service.py: _GROWN",
    "serve/models/statistics.py: BUCKETS", "serve/predict/job.py: _FOR_EVER",
}  # fmt: skip
#: Calls whose number is a time.
WAITS = {"sleep", "wait", "wait_for", "settimeout", "join", "timeout"}


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SOURCES.rglob("*.py")):
        name = str(path.relative_to(SOURCES))
        if not name.startswith("testing/") and name != "config/limits.py":
            yield name, ast.parse(path.read_text())


def is_time(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value > 0


def test_no_module_has_a_duration_of_its_own() -> None:
    found = {
        f"{name}: {target.id}"
        for name, module in modules()
        for node in module.body if isinstance(node, ast.Assign)
        for target in ast.walk(node.targets[0]) if isinstance(target, ast.Name)
        if any(isinstance(part, ast.Constant) and type(part.value) is float for part in ast.walk(node.value))
    }  # fmt: skip
    assert found == NUMBERS


def test_no_call_waits_for_a_number_of_its_own() -> None:
    found = []
    for name, module in modules():
        for node in ast.walk(module):
            if isinstance(node, ast.Call):
                called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                named = [word.value for word in node.keywords if word.arg == "timeout"]
                if any(map(is_time, named)) or (called in WAITS and any(map(is_time, node.args))):
                    found.append(f"{name}:{node.lineno}: {ast.unparse(node)}")
    assert found == []


def test_every_limit_is_more_than_nothing() -> None:
    limits = [(section, *item) for section, struct in FIXED.items() for item in msgspec.structs.asdict(struct).items()]
    assert len(limits) > 90 and [limit for limit in limits if not limit[2] > 0] == []
