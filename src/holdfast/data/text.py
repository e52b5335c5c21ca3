"""Text as a data set of characters: an alphabet, and windows of fixed length over the text.

The sample with id `i` is the window that starts at character `i * stride`; its target is the same window
one character further on.

    >>> letters = Alphabet.of("to be or not to be")
    >>> letters.decode(letters.encode("not to be"))
    'not to be'
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Alphabet", "TextWindows"]


@dataclass(frozen=True)
class Alphabet:
    """The characters of a text, sorted; a character's id is its place."""

    characters: str
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ids", {character: n for n, character in enumerate(self.characters)})

    @classmethod
    def of(cls, text: str) -> Alphabet:
        """The smallest alphabet that can spell this text."""
        return cls("".join(sorted(set(text))))

    def __len__(self) -> int:
        return len(self.characters)

    def encode(self, text: str) -> NDArray[np.int64]:
        """The ids of the text's characters."""
        try:
            return np.fromiter((self._ids[character] for character in text), np.int64, count=len(text))
        except KeyError as unknown:
            raise UsageError(
                f"The character {unknown.args[0]!r} is not in the alphabet of {len(self)} characters. "
                f"Make the alphabet from all the text that will be used."
            ) from None

    def decode(self, ids: Iterable[int]) -> str:
        """The text these ids spell."""
        return "".join(self.characters[n] for n in ids)


class TextWindows:
    """Windows of `block_size` characters over encoded text, as a map-style data set.

        x, y = TextWindows(letters.encode(text), block_size=64)[1000]     # int64, 64 characters each

    Args:
        ids: the encoded text, at least `block_size + 1` characters.
        block_size: characters in a window.
        stride: characters between the starts of two windows; 1 gives every window there is.
    """

    def __init__(self, ids: NDArray[np.int64], *, block_size: int, stride: int = 1) -> None:
        if block_size < 1 or stride < 1:
            raise UsageError(f"block_size = {block_size}, stride = {stride}: both must be 1 or more.")
        if len(ids) <= block_size:
            raise UsageError(
                f"A text of {len(ids)} characters has no window of {block_size} and the character after it. "
                f"Use more text or a block_size of at most {len(ids) - 1}."
            )
        self.ids = np.ascontiguousarray(ids, np.int64)
        self.block_size, self.stride = block_size, stride
        self._tensor: Tensor | None = None

    def __len__(self) -> int:
        return (len(self.ids) - self.block_size - 1) // self.stride + 1

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        start = (index % len(self)) * self.stride
        text = self._as_tensor()
        return text[start : start + self.block_size], text[start + 1 : start + 1 + self.block_size]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """Many windows (what torch's fetcher calls if it is there)."""
        return [self[index] for index in indices]

    def __getstate__(self) -> dict[str, Any]:
        # A loader's worker process gets the array; it makes its own tensor over it.
        return self.__dict__ | {"_tensor": None}

    def _as_tensor(self) -> Tensor:
        if self._tensor is None:
            import torch

            self._tensor = torch.from_numpy(self.ids)
        return self._tensor
