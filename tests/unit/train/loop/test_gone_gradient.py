"""A gradient that is gone may be handled in every way, and gets into no other one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from holdfast.errors import NotKept
from holdfast.train.loop.gone_gradient import GoneGradient, check_none_is_gone, show_as_gone

NAMES = ("weight", "bias")


def gone() -> tuple[list[nn.Parameter], list[Tensor]]:
    """Parameters whose next gradient is here, and the one before, which is gone."""
    parameters = [nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(2))]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    show_as_gone(parameters, NAMES, 7)
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    return parameters, before


def test_it_may_be_edited_clipped_and_read() -> None:
    parameters, before = gone()
    for parameter, gradient in zip(parameters, before, strict=True):
        parameter.grad = gradient
    norm = nn.utils.clip_grad_norm_(parameters, 0.5)
    nn.utils.clip_grad_value_(parameters, 0.1)
    parameters[0].grad += torch.rand(2, 2)
    parameters[0].grad.data.mul_(0.5)
    total = torch.zeros(())
    total += norm
    assert isinstance(total, GoneGradient), "what it was written to is as little worth"
    assert float(norm) > 0.0 and "2.4" in repr(norm)


def test_what_comes_of_it_is_found_in_a_gradient() -> None:
    parameters, before = gone()
    check_none_is_gone(parameters, NAMES, 7)
    aside = [gradient.clone() for gradient in before]
    parameters[1].grad = parameters[1].grad - aside[1] * aside[1].norm()
    with pytest.raises(NotKept, match=r"came late to step 7 needs, for the gradient of bias, the gradient of an"):
        check_none_is_gone(parameters, NAMES, 7)


WAYS: dict[str, Callable[[list[nn.Parameter], list[Tensor]], object]] = {
    "an operator": lambda now, aside: now[0].grad.__iadd__(aside[0]),
    "a method": lambda now, aside: now[0].grad.copy_(aside[0]),
    "out": lambda now, aside: torch.add(aside[0], 1.0, out=now[0].grad),
    "several at once": lambda now, aside: torch._foreach_add_([p.grad for p in now], aside),
}


@pytest.mark.parametrize("way", WAYS)
def test_it_is_not_written_into_a_gradient(way: str) -> None:
    parameters, before = gone()
    aside = [gradient.clone() for gradient in before]
    with pytest.raises(NotKept, match=r"gone: what one phase takes over from another has to be kept for it"):
        WAYS[way](parameters, aside)
