"""Progress as text: one line for a view. Pure formatting; `screen` writes it."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from holdfast.observe.meter import RunView

__all__ = ["line", "short_number", "short_time", "sparkline"]

_BARS = "▁▂▃▄▅▆▇█"
_MOST_WAITS = 8


def line(view: RunView, width: int = 0) -> str:
    """The progress line; where only `width` columns are there, the lesser things are left out.

    >>> line(RunView(step=300, total_steps=938, epoch=0, epochs=3, losses=(2.3, 0.9, 0.31),
    ...           samples_per_second=2100, waits={0: 0.03, 1: 0.04}, eta=21))
    'step 300/938  epoch 1/3  loss 0.31 █▃▁  2.1k samples/s  wait w0 3% w1 4%  eta 0:21'
    """
    text = _line(view, bars=True, most_waits=_MOST_WAITS)
    if width and len(text) > width:
        text = _line(view, bars=False, most_waits=_MOST_WAITS)
    if width and len(text) > width:
        text = _line(view, bars=False, most_waits=1)
    return text[:width] if width else text


def _line(view: RunView, *, bars: bool, most_waits: int) -> str:
    parts = [f"training {view.training}"] if view.training > 1 else []
    parts.append(f"step {view.step}" + (f"/{view.total_steps}" if view.total_steps else ""))
    if view.epochs:
        parts.append(f"epoch {min(view.epoch + 1, view.epochs)}/{view.epochs}")
    if view.loss is not None:
        parts.append(f"loss {view.loss:.3g} {sparkline(view.losses) if bars else ''}".rstrip())
    if view.samples_per_second:
        parts.append(f"{short_number(view.samples_per_second)} samples/s")
    if waits := {worker: share for worker, share in view.waits.items() if worker not in view.idle}:
        worst = sorted(waits.items(), key=lambda item: -item[1])[:most_waits]
        rest = len(waits) - len(worst)
        parts.append(
            "wait " + " ".join(f"w{worker} {share:.0%}" for worker, share in sorted(worst))
            + (f" and {rest} less" if rest and most_waits > 1 else "")
        )
    if view.eta is not None:
        parts.append(f"eta {short_time(view.eta)}")
    return "  ".join(parts)


def sparkline(values: Sequence[float]) -> str:
    """The values as bars, the lowest lowest.

    >>> sparkline([3, 2, 1, 1])
    '█▅▁▁'
    """
    good = [value for value in values if isfinite(value)]
    if len(good) < 2:
        return ""
    low, high = min(good), max(good)
    if high == low:
        return _BARS[3] * len(good)
    return "".join(_BARS[round((value - low) / (high - low) * (len(_BARS) - 1))] for value in good)


def short_number(value: float) -> str:
    """A number in few characters.

    >>> short_number(7.25), short_number(830), short_number(2140), short_number(31_500), short_number(2.5e6)
    ('7.2', '830', '2.1k', '32k', '2.5M')
    """
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            scaled = value / limit
            return f"{scaled:.1f}{unit}" if scaled < 10 else f"{scaled:.0f}{unit}"
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"


def short_time(seconds: float) -> str:
    """A time as a clock shows it.

    >>> short_time(21), short_time(75.4), short_time(7322)
    ('0:21', '1:15', '2:02:02')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
