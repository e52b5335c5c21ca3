"""How what decides the bits of a result is set up."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import nn, optim

from holdfast.train.numerics import static_shapes
from tests.unit.train.problems import loader_of, loss_of, net, plain, points


@pytest.fixture
def config() -> Any:
    """The settings of `torch.compile`."""
    import torch._dynamo

    torch._dynamo.reset()
    return torch._dynamo.config


def compiled(model: nn.Module, graphs: list[Any]) -> Any:
    def note(graph: Any, inputs: Any) -> Any:
        graphs.append([one for one in inputs if isinstance(one, torch.SymInt)])
        return graph.forward

    return torch.compile(model, backend=note)


@pytest.mark.filterwarnings("ignore:.*could not be computed a second time")  # torch's compiler has threads
def test_a_loop_by_steps_compiles_for_each_shape_and_puts_that_back(join, config: Any) -> None:
    run, graphs = join(lanes=3), []
    model = net()
    called = compiled(model, graphs)
    model, optimizer, loader = run.prepare(model, optim.SGD(model.parameters(), lr=0.1), loader_of(points(17 + 7), 17))
    for step in run.steps(loader):  # units of 6, 6, 5, and of 3, 2, 2
        for batch in step:
            loss_of(called, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        assert not config.automatic_dynamic_shapes and config.recompile_limit == 64
    assert len(graphs) == 4 and not any(graphs), "four shapes, and none of them is a variable"
    run.close()
    assert config.automatic_dynamic_shapes and config.recompile_limit == 8


def test_the_plain_loop_leaves_it_to_the_script(join, config: Any) -> None:
    run, graphs = join(), []
    model = net()
    called = compiled(model, graphs)
    model, optimizer, loader = run.prepare(model, optim.SGD(model.parameters(), lr=0.1), loader_of(points(17 + 7), 17))
    plain(called, optimizer, loader)
    assert config.automatic_dynamic_shapes and len(graphs) == 2 and graphs[1], "as without Holdfast"


def test_who_does_not_compile_does_not_load_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    assert static_shapes() is None and "torch._dynamo" not in sys.modules
