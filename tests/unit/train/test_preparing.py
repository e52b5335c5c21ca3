"""What `join` and `prepare` refuse, and what is put back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn, optim

import holdfast as hf
from holdfast.errors import ConfigError, UsageError
from tests.unit.train.problems import loader_of, net, points, train


def prepared(run: hf.Run) -> tuple[nn.Module, optim.Optimizer, Any]:
    model = net()
    return run.prepare(model, optim.SGD(model.parameters(), lr=0.05), loader_of(points()))


def test_prepare_twice(join) -> None:
    run = join()
    prepared(run)
    with pytest.raises(UsageError, match=r"run.prepare\(...\) was called twice. Hand everything over in one call"):
        prepared(run)


def test_prepare_again_after_a_refusal(join) -> None:
    run, model = join(lanes=8), net()
    with pytest.raises(ConfigError, match="batch_size = 4: smaller than lanes = 8"):
        run.prepare(model, optim.SGD(model.parameters(), lr=0.05), loader_of(points(), 4))
    model, optimizer, loader = prepared(run)
    train(run, model, optimizer, loader, epochs=1)
    assert run.step == len(loader)


def test_prepare_nothing_known(join) -> None:
    with pytest.raises(UsageError, match=r"run\.prepare got a int. It takes models, optimizers, DataLoaders and"):
        join().prepare(net(), 5)


def test_join_twice(join) -> None:
    join()
    with pytest.raises(UsageError, match=r"hf.join\(\) was called twice in one process. Keep the run it returned"):
        join()


@pytest.mark.parametrize(("option", "value", "least"), [("lanes", 0, 1), ("seed", -1, 0), ("threads", "2", 1)])
def test_join_with_what_cannot_be(join, option: str, value: Any, least: int) -> None:
    text = rf"{option} = {value}: must be a whole number of at least {least} \(set by hf.join\)"
    with pytest.raises(ConfigError, match=text):
        join(**{option: value})


def test_nothing_prepared(join) -> None:
    with pytest.raises(UsageError, match=r"Nothing is prepared yet. Call run.prepare\(model, optimizer, loader\)"):
        next(join().epochs(1))


def test_backward_is_put_back(join) -> None:
    original = torch.Tensor.backward
    run = join()
    prepared(run)
    assert torch.Tensor.backward is not original
    run.close()
    assert torch.Tensor.backward is original
