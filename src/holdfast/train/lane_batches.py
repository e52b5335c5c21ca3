"""Lane batches: whether each lane's share of a batch is enough for what the model does with it.

BatchNorm cannot be trained with one value per channel, and torch says so in the step where it happens: with data whose
last batch leaves a lane with one sample, at the end of an epoch. So it is looked for when the loader is handed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import nn

from holdfast.data.batches import Batches
from holdfast.errors import ConfigError

__all__ = ["check_batches"]


def check_batches(models: Sequence[nn.Module], batches: Batches) -> None:
    """Refuse a loader of which some lane gets one sample at a time, where the model normalises over samples."""
    if (name := _normed(models)) is None:
        return
    for step in sorted({0, batches.steps - 1}):
        counts = batches.counts(step)
        if 1 not in counts:
            continue
        size, lanes = sum(counts), len(counts)
        least = f"the last batch has {size}" if step else f"a batch has {size}"
        fewer = max((n for n in range(1, lanes) if size // n > 1), default=0)
        others = f", or hf.join(lanes={fewer}) (this changes the result)" if fewer else ""
        fix = f"Use drop_last=True, another batch size{others}." if step else f"Use a larger batch{others}."
        raise ConfigError(
            "batch_size", batches.batch,
            f"{least} samples for {lanes} lanes, so lane {counts.index(1)} gets one, and {name} is a BatchNorm1d, "
            "which needs two to be trained", source="the DataLoader", fix=fix,
        )  # fmt: skip


def _normed(models: Iterable[nn.Module]) -> str | None:
    """The first BatchNorm in training that has nothing but samples to normalise over, as far as a module can tell.

    Behind a convolution there are positions as well.
    """
    modules = [(name, module) for model in models for name, module in model.named_modules()]
    wide = {m.out_channels for _, m in modules if isinstance(m, nn.Conv1d | nn.ConvTranspose1d)}
    flat = (n for n, m in modules if isinstance(m, nn.BatchNorm1d) and m.training and m.num_features not in wide)
    return next(flat, None)
