"""Small contents for checkpoints."""

from __future__ import annotations

import random
import struct

from holdfast.checkpoint.content import Content, RunFacts, Script, StateEntry, Tensor


def content(step: int = 120, *, weights: int | None = None, loss: float = 0.25) -> Content:
    """A model of two entries and a buffer, with an optimizer's state. `weights` seeds its numbers."""
    chance = random.Random(step if weights is None else weights)
    numbers = struct.pack("<6f", *(chance.uniform(-1, 1) for _ in range(6)))
    moments = struct.pack("<6f", *(chance.uniform(-1, 1) for _ in range(6)))
    return Content(
        facts=RunFacts(
            run="runs/mine", step=step, version=step, epoch=step // 100, samples=64 * step, loss=loss, sync="exact",
            lanes=4, seed=0, threads=1,
        ),
        script=Script("train.py", ("--lr", "0.1"), "ab" * 32),
        config={"lanes": 4, "crew": {"settle": 1.0}},
        control={"position": [1, 2], "best": float("-inf")},
        state=[
            StateEntry("fc.weight", "float32", (2, 2), "parameters/float32", 0),
            StateEntry("fc.bias", "float32", (2,), "parameters/float32", 16),
            StateEntry("norm.count", "int64", (), "buffers", 2),
        ],
        tensors={
            "settings": Tensor("uint8", (3,), b"\x01\x02\x03"),
            "parameters/float32": Tensor("float32", (6,), numbers),
            "state/exp_avg/float32": Tensor("float32", (2, 3), memoryview(moments)),
            "buffers": Tensor("uint8", (10,), b"\0\0" + step.to_bytes(8, "little")),
            "half": Tensor("bfloat16", (2, 1), b"\x80\x3f\x00\x40"),
            "none": Tensor("float64", (0, 4), b""),
        },
    )  # fmt: skip
