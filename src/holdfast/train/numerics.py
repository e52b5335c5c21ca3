"""What decides the bits of a result besides the script: the numerics class, and how it is set up.

Identity of results is promised within one class: same torch build, instruction set, threads and
library pins. `numerics()` names them; `golden()` computes a small fixed unit, so that a difference
nobody thought of shows as well. Both travel with Ready, and a worker that differs is refused.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import sys
from collections.abc import Callable

import numpy
import torch

__all__ = ["golden", "keep_freed_memory", "numerics", "static_shapes"]

_SHAPES = 64  #: of which `torch.compile` makes one graph each; beyond it would compute without compiling
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def numerics() -> dict[str, str]:
    """The items that must be equal on all workers."""
    return {
        "torch": str(torch.__version__),
        "device": "cpu",
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "machine": platform.machine(),
        "threads": str(torch.get_num_threads()),
        "mkldnn": str(torch.backends.mkldnn.is_available()),
        "numpy": str(numpy.__version__),
    }


def golden() -> str:
    """The hash of a fixed small computation with the operations that differ between machines.

    It leaves the random state as it was.
    """
    source = torch.Generator().manual_seed(20_011)
    image = torch.randn(4, 3, 12, 12, generator=source, requires_grad=True)
    kernel = torch.randn(5, 3, 3, 3, generator=source, requires_grad=True)
    weight = torch.randn(180, 33, generator=source, requires_grad=True)
    hidden = torch.nn.functional.avg_pool2d(torch.nn.functional.conv2d(image, kernel).relu(), 2)[..., :6, :6]
    scores = torch.nn.functional.gelu(hidden.flatten(1)[:, :125] @ weight[:125])
    loss = torch.nn.functional.cross_entropy(torch.nn.functional.layer_norm(scores, (33,)), torch.arange(4))
    loss.backward()
    digest = hashlib.sha256(loss.detach().numpy().tobytes())
    for tensor in (image, kernel, weight):
        assert tensor.grad is not None
        digest.update(tensor.grad.numpy().tobytes())
    return digest.hexdigest()[:16]


def static_shapes() -> Callable[[], None] | None:
    """Have `torch.compile` make a graph for each shape. Returns what puts its settings back; None: it is not loaded.

    Once it has seen two, it makes one graph for all, which has other bits than that of one shape: so a unit's would
    hang on which units this worker has had before. Loading it takes two seconds, so that is left to torch.
    """
    if "torch._dynamo" not in sys.modules:
        return None
    config = sys.modules["torch._dynamo"].config
    before = config.automatic_dynamic_shapes, config.recompile_limit
    config.automatic_dynamic_shapes, config.recompile_limit = False, max(_SHAPES, before[1])

    def undo() -> None:
        config.automatic_dynamic_shapes, config.recompile_limit = before

    return undo


def keep_freed_memory() -> None:
    """Let malloc keep large freed blocks instead of giving their pages back.

    A large gradient is allocated anew in every backward pass. By default glibc maps and unmaps it each
    time, and the page faults cost as much as the arithmetic (measured: 46 -> 21 ms for forward and
    backward of a 4096 x 4096 layer at batch 16). Harmless where the C library is another one.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # not glibc: nothing to tune
    mallopt(_M_MMAP_THRESHOLD, 1 << 30)
    mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
