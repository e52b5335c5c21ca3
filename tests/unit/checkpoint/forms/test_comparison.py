"""How two checkpoints differ."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
import torch

from holdfast.checkpoint.content import Content, Script, StateEntry, Tensor
from holdfast.checkpoint.dtypes import DTYPES
from holdfast.checkpoint.forms.comparison import Comparison, EntryDifference, compare
from holdfast.checkpoint.reader import Checkpoint, open_checkpoint
from holdfast.checkpoint.writer import write
from tests.unit.checkpoint.contents import content
from tests.unit.checkpoint.memory_disk import MemoryDisk


def saved(given: Content) -> Checkpoint:
    disk = MemoryDisk()
    return open_checkpoint(write(Path("/checkpoints"), given, keep=1, disk=disk).path, disk=disk)


def model(**entries: torch.Tensor) -> Checkpoint:
    state, tensors = [], {}
    for name, tensor in entries.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        state.append(StateEntry(name, dtype, tuple(tensor.shape), name, 0))
        tensors[name] = Tensor(dtype, tuple(tensor.shape), tensor.flatten().view(torch.uint8).numpy().tobytes())
    return saved(msgspec.structs.replace(content(1), state=state, tensors=tensors))


def test_the_same() -> None:
    assert compare(saved(content(1)), saved(content(1))) == Comparison(3, [], [], [], [])


def test_all_that_can_differ() -> None:
    first = content(1)
    second = msgspec.structs.replace(
        content(2), script=Script("train.py", ("--lr", "0.2"), "cd" * 32),
        config={"lanes": 4, "crew": {"settle": 2.0}, "seed": 1},
    )  # fmt: skip
    it = compare(saved(first), saved(second))
    assert it.entries == 3
    assert [(entry.name, entry.what, entry.numbers) for entry in it.model] == [
        ("fc.weight", "", 4), ("fc.bias", "", 2), ("norm.count", "", 1),
    ]  # fmt: skip
    assert it.model[2].largest == 1.0
    assert it.largest == it.model[0].largest == pytest.approx(1.64334, abs=1e-5)
    assert it.sections == ["state/exp_avg/float32"]
    assert it.script == [("args", ("--lr", "0.1"), ("--lr", "0.2")), ("sha256", "ab" * 32, "cd" * 32)]
    assert it.config == [("crew.settle", 1.0, 2.0), ("seed", None, 1)]


def test_another_model() -> None:
    it = compare(
        model(a=torch.zeros(2), b=torch.zeros(2), c=torch.zeros(2)),
        model(b=torch.zeros(3), c=torch.zeros(2, dtype=torch.int64), d=torch.zeros(1)),
    )
    assert it.model == [
        EntryDifference("a", "only in the first"), EntryDifference("b", "shape [2] and [3]"),
        EntryDifference("c", "float32 and int64"), EntryDifference("d", "only in the second"),
    ]  # fmt: skip
    assert it.largest is None and it.sections == []


@pytest.mark.parametrize("name", [name for name in DTYPES if name not in ("bool", "complex32", "float8_e8m0fnu")])
def test_every_type_of_numbers(name: str) -> None:
    dtype = getattr(torch, name)
    first, second = torch.tensor([0, 1, 2, 0]).to(dtype), torch.tensor([0, 1, 0, 1]).to(dtype)
    (entry,) = compare(model(x=first), model(x=second)).model
    assert entry == EntryDifference("x", "", 2, None if name.startswith("float8") else 2.0)


def test_a_number_that_is_none_is_as_far_as_can_be() -> None:
    (entry,) = compare(model(x=torch.tensor([math.nan, 1.0])), model(x=torch.tensor([2.0, 1.0]))).model
    assert entry == EntryDifference("x", "", 1, math.inf)
    assert compare(model(x=torch.tensor([math.nan])), model(x=torch.tensor([math.nan]))).model == []
