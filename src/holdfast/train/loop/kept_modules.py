"""Modules that a script has handed over and no optimizer trains: a teacher, a target network, a key encoder.

They count as kept (see `keeping`): each worker has its own, which the script may change in a turn by steps, outside of
units, as all workers' scripts do. As long as nothing was changed, all look at the first worker's values in the arena
(copied on write), and there is nothing to hand over to a worker that comes late.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from holdfast.errors import NotExact

__all__ = ["KeptModule", "KeptModules"]

_SAMPLE = 64  #: numbers of each tensor by which a write past torch's count (`.data`) is seen


class KeptModule:
    """One of them."""

    def __init__(self, name: str, module: nn.Module) -> None:
        """`name` goes before those of its parameters in sentences."""
        self._name, self._module = name, module
        self._at_first: dict[str, tuple[int, int, Tensor]] | None = None  # name -> version, address, sample
        self._versions: dict[str, int] = {}
        self._again: Callable[[], None] = lambda: None

    def tensors(self) -> dict[str, Tensor]:
        """Its parameters and buffers, as they are now."""
        return {name: t.detach() for name, t in (*self._module.named_parameters(), *self._module.named_buffers())}

    def nbytes(self) -> int:
        """How large its state is, once it was changed."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors().values())

    def settle(self, again: Callable[[], None]) -> None:
        """What it is now is what all workers begin with; `again` brings that back."""
        self._again = again
        self._at_first = {n: (t._version, t.data_ptr(), _sample(t).clone()) for n, t in self.tensors().items()}

    def state_dict(self) -> dict[str, Tensor]:
        """What it is made of; nothing, as long as that is what all have begun with."""
        tensors = self.tensors()
        if self._at_first is not None and tensors.keys() == self._at_first.keys():
            if not any(_moved(tensor, *self._at_first[name]) for name, tensor in tensors.items()):
                return {}
            self._at_first = None
        return tensors

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        """Become that."""
        if not state_dict and self.state_dict():  # by code of turns that were none
            self._again()
            self.settle(self._again)
        tensors = self.tensors()
        for name, value in state_dict.items():
            tensors[name].copy_(value)

    def note(self) -> None:
        """From here on no unit may change it."""
        self._versions = {name: tensor._version for name, tensor in self.tensors().items()}

    def check(self, where: str) -> None:
        """Refuse what was written to it since `note`."""
        for name, tensor in self.tensors().items():
            if tensor._version != self._versions.get(name):
                raise NotExact(
                    f"{self._name}{name} was written to before the end of {where}, and no optimizer was prepared for "
                    "the module it is of",
                    "Change such a module in the turn, after the inner loop; and call its eval() if it has BatchNorm, "
                    "whose statistics would follow one lane.",
                )


class KeptModules(list[KeptModule]):
    """All of a run."""

    def __init__(self, modules: Sequence[tuple[str, nn.Module]]) -> None:
        super().__init__(KeptModule(name, module) for name, module in modules)

    def settle(self, again: Callable[[], None]) -> None:
        """Training begins; `again` makes all of them what they are now."""
        for module in self:
            module.settle(again)
            module.note()

    def note(self) -> None:
        """Units begin."""
        for module in self:
            module.note()

    def check(self, where: str) -> None:
        """A unit ends."""
        for module in self:
            module.check(where)


def _sample(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1)[:_SAMPLE] if tensor.is_contiguous() else tensor.flatten()[:_SAMPLE]


def _moved(tensor: Tensor, version: int, address: int, sample: Tensor) -> bool:
    same = tensor._version == version and tensor.data_ptr() == address
    return not (same and torch.equal(_sample(tensor), sample))
