"""Simple values around a loop: found in its frame, in those of its callers, in objects and in globals."""

from __future__ import annotations

import argparse
import sys
import types
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import nn

from holdfast.train.loop.variables.script_values import holder, values_around

global_step = 3


@dataclass
class State:
    best: float = 0.5


@dataclass(slots=True)
class Slotted:
    patience: int = 2


class Meter(Counter[str]):
    """A dict of the script's own class."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls, self.layer = 4, nn.Linear(1, 1)

    def fit(self) -> dict[str, Any]:
        return around()


class Trainer:
    def __init__(self) -> None:
        self.state, self.counters, self.best = State(), {"steps": 7, "table": {1: 2}}, numpy.float64(0.25)

    def train(self) -> dict[str, Any]:
        lr = 0.1
        return around() if lr else {}


def around() -> dict[str, Any]:
    """The values around who calls this."""
    return values_around(sys._getframe(1))


def test_the_loops_own_frame_and_its_callers() -> None:
    best, tensor = 0.5, torch.zeros(1)

    def train() -> dict[str, Any]:
        best, name = 1, "a"
        return around() if best and name and common else {}

    common, where = 1, "test_the_loops_own_frame_and_its_callers"
    found = train()
    assert found["common"] == 1 and f"common (in {where})" not in found, "one variable"
    assert found["best"] == 1 and found["name"] == "a" and found[f"best (in {where})"] == best
    assert found["global_step (in test_script_values.py)"] == 3
    assert all(type(value) in (bool, int, float, str, type(None)) for value in found.values())
    assert not any("pytest" in name for name in found) and tensor.numel()


def test_attributes_and_entries_one_and_two_levels_deep() -> None:
    found = Trainer().train()
    expected = {"self.state.best": 0.5, "self.counters['steps']": 7, "self.best": 0.25, "lr": 0.1}
    assert expected.items() <= found.items() and type(found["self.best"]) is float
    state, slotted, options = State(2.0), Slotted(), argparse.Namespace(lr=0.1)
    table, space, meter = {str(number): number for number in range(65)}, types.SimpleNamespace(n=1), Meter(a=1)
    found = around()
    assert found["state.best"] == 2.0 and found["slotted.patience"] == 2 and found["options.lr"] == 0.1
    assert found["space.n"] == 1 and not any(name.startswith("table") for name in found)
    assert state and slotted and options and table and space and meter


def test_an_object_is_told_once_by_the_innermost_name() -> None:
    state = State()

    def train(mine: State) -> dict[str, Any]:
        return around()

    assert [name for name in train(state) if name.endswith("best") or "best (" in name] == ["mine.best"]


def test_a_model_is_looked_at_only_where_the_loop_is_its_own() -> None:
    net, data = Net(), torch.utils.data.TensorDataset(torch.zeros(1))
    assert not any(name.startswith(("net", "data")) for name in around()) and data
    assert {"self.calls": 4, "self.training": True}.items() <= net.fit().items()


def test_globals_of_the_main_module_have_their_own_names() -> None:
    space: dict[str, Any] = {"__name__": "__main__", "around": around}
    main = "def main():\n    global_step, n = 6, 1\n    return around()"
    code = f"global_step = 5\n{main}\nfound = main()\nhere = around()"
    exec(compile(code, "/home/user/train.py", "exec"), space)
    assert space["found"]["global_step"] == 6 and space["found"]["global_step (global)"] == 5
    assert space["here"]["global_step"] == 5 and "global_step (global)" not in space["here"]


def test_who_holds_a_value() -> None:
    assert holder("counters['a b'] (in main)") == "counters (in main)" and holder("self.state.best") == "self.state"
    assert holder("self.best (in main)") == holder("best") == ""
