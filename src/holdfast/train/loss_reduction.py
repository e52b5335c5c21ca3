"""Loss reduction: whether a script's loss is the mean over its batch or the sum, and what becomes of lanes' gradients.

The gradient of a step is the mean of its lanes' gradients, weighted by samples, where the loss is a mean (`reduction =
"mean"`), and their sum where it is a sum ("sum"). With the other one it would be another gradient for each number of
lanes. So the loss is looked at: torch writes down what it was made by. A loss that is surely of the other kind is
refused; one of which that cannot be said (a function of the script's own, a division by a number of tokens) passes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor

from holdfast.errors import NotExact

__all__ = ["MEAN", "SUM", "LossCheck", "kind_of"]

MEAN, SUM = "mean", "sum"
_KINDS = {1: MEAN, 2: SUM}  # as torch's own loss functions number them
_DEEP = 64  #: nodes of the graph that are looked at: a sum of many terms is a long chain
#: What passes a scalar on as it is.
_SAME = ("Neg", "ToCopy", "Clone", "Alias", "View", "UnsafeView", "Squeeze", "Unsqueeze", "Reshape", "Expand")
#: Of what these make, no dimension is known to be the batch.
_OTHER = ("Mean", "Stack", "Cat", "Norm", "LinalgVectorNorm", "Logsumexp", "torch::autograd::AccumulateGrad")


class _Term(NamedTuple):
    """One of the terms that a loss is the sum of."""

    node: Any
    name: str  #: what the node undoes: "Sum" of SumBackward0
    scale: float | None  #: the number that it is multiplied by; None: one that was not a number


def kind_of(loss: Tensor, samples: int, of_step: int) -> tuple[str, str]:
    """(MEAN, SUM or "", what of the graph says so) of the loss of a unit with `samples`, in a step of `of_step`.

    >>> import torch
    >>> x = torch.ones(4, 3, requires_grad=True)
    >>> kind_of((x ** 2).sum(), 4, 16), kind_of((x ** 2).sum() / 4, 4, 16), kind_of(x.sum() / x.detach().std(), 4, 16)
    (('sum', 'SumBackward0'), ('mean', 'SumBackward0'), ('', ''))
    """
    kinds = [(_kind(term, samples, of_step), term.node.name()) for term in _terms(loss.grad_fn)]
    first = kinds[0] if kinds else ("", "")
    return first if first[0] and all(kind == first[0] for kind, _ in kinds) else ("", "")


def _terms(root: Any) -> Iterator[_Term]:
    todo: list[tuple[Any, float | None]] = [(root, 1.0)] if root is not None else []
    for _ in range(_DEEP):
        if not todo:
            return
        node, scale = todo.pop()
        name = _name(node)
        if name in ("Add", "Sub", *_SAME):
            todo += [(before, scale) for before, _ in node.next_functions if before is not None]
        elif name in ("Mul", "Div") and len(inner := [n for n, _ in node.next_functions if n is not None]) == 1:
            number = _number(node._saved_other)
            factor = None if scale is None or not number else scale * (number if name == "Mul" else 1.0 / number)
            todo.append((inner[0], factor))
        else:
            yield _Term(node, name, scale)
    if todo:
        yield _Term(root, "", None)  # more than is looked at


def _kind(term: _Term, samples: int, of_step: int) -> str:
    node, name, scale = term
    if scale is None:
        return ""
    scale = abs(scale)
    if name in ("Sum", "Mean"):
        if name == "Sum" and any(_name(before) in _OTHER for before, _ in node.next_functions if before is not None):
            return ""
        shape = node._saved_self_sym_sizes
        counted = math.prod(shape)
        if not shape or shape[0] % samples:  # its samples were added up before
            return ""
        kind = name.lower()
    else:
        kind = _KINDS.get(getattr(node, "_saved_reduction", 0), "")
        counted = node._saved_target.numel() if kind else 0
    if kind == MEAN:
        return SUM if samples > 1 and scale > 1.0 and _near(scale, samples, counted) else MEAN
    if kind == SUM and counted and scale != 1.0:
        if _near(scale, 1.0 / samples, 1.0 / counted):
            return MEAN
        return SUM if scale > 1.0 / samples or _near(scale, 1.0 / of_step) else ""  # else by tokens, say
    return kind


def _near(value: float, *others: float) -> bool:
    return any(math.isclose(value, other, rel_tol=1e-6) for other in others)


def _name(node: Any) -> str:
    """What a node of the graph undoes: "Sum" of SumBackward0."""
    return str(node.name()).partition("Backward")[0]


def _number(other: Any) -> float | None:
    if isinstance(other, Tensor):
        return float(other) if other.dim() == 0 else None
    return float(other) if isinstance(other, int | float) else None


class LossCheck:
    """Looks at the losses of one run's units."""

    def __init__(self, reduction: str, num_lanes: int, *, trusted: bool) -> None:
        """`trusted`: the script has said that its losses are means, whatever they look like."""
        self._reduction, self._looks = reduction, num_lanes > 1 and not (trusted and reduction == MEAN)

    def look(self, loss: Tensor, unit: tuple[int, int], samples: int, of_step: int) -> None:
        """`backward()` is called on this loss in a unit (step, lane). Raises NotExact."""
        if not self._looks or not samples or loss.numel() != 1:
            return
        kind, node = kind_of(loss, samples, of_step)
        if not kind or kind == self._reduction:
            return
        where = f"the loss of unit (step {unit[0]}, lane {unit[1]}) is a {kind} over its samples ({node})"
        if kind == SUM:
            raise NotExact(
                f"{where}, and the gradient of a step is the mean of its lanes' gradients",
                'Use hf.join(reduction="sum"), with which they are added up; or make the loss a mean. If it is one, '
                'say so: hf.join(reduction="mean").',
            )
        raise NotExact(
            f'{where}, and with reduction = "sum" the gradients of lanes are added up',
            "Leave `reduction` out of hf.join(), or make the loss a sum.",
        )
