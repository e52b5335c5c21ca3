"""What is served: the same weights behind every server.

* `lenet`: 784 numbers in, 10 out.
* `noop`: 16 numbers, given back.
* `versioned`: an MLP of 20 million parameters (80 MB) whose every layer says which version it is of: all ten outputs
  are the version three times over, and if its layers were of different versions, they would not be.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from benchmarks.workloads import model_of

__all__ = ["INPUTS", "answers", "network", "versioned"]

#: The shape of one item.
INPUTS = {"lenet": (1, 28, 28), "noop": (16,), "versioned": (1, 28, 28)}


def network(name: str, version: int = 1) -> nn.Module:
    """Ready to be asked, with the same random weights each time."""
    torch.manual_seed(0)
    if name == "noop":
        return nn.Identity().eval()
    if name == "versioned":
        return versioned(version)
    return model_of(name).eval()


def versioned(version: int) -> nn.Module:
    """Neighbouring versions make sums that are no multiple of three, if they are mixed."""
    model = model_of("mlp").eval()
    assert isinstance(model, nn.Sequential)
    with torch.no_grad():
        for layer in model:
            if isinstance(layer, nn.Linear):
                layer.weight.fill_(0.0 if layer.in_features == 784 else 1 / layer.in_features)
                layer.bias.fill_(float(version))
    return model


def answers(name: str, inputs: Sequence[Sequence[float]]) -> list[list[float]]:
    """What the network gives for each input, one by one."""
    model = network(name)
    with torch.inference_mode():
        found = [model(torch.tensor(values).reshape(1, *INPUTS[name])) for values in inputs]
    return [output.reshape(-1).tolist() for output in found]
