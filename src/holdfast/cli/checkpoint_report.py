"""What `holdfast checkpoint` prints: tables for people, trees for JSON. Pure but for sizes of files."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.checkpoint.dtypes import nbytes
from holdfast.checkpoint.forms.comparison import Comparison, flattened
from holdfast.checkpoint.reader import Checkpoint, Found
from holdfast.errors import brief

__all__ = [
    "compared", "differences", "listed", "page", "plain", "short_age", "short_size", "shown", "table", "verified",
    "weight",
]  # fmt: skip

_TOLD = 10  #: names of entries that differ


def short_size(size: int) -> str:
    """Bytes in few characters.

    >>> short_size(831), short_size(240_000_000), short_size(3 * 2**40)
    ('831 B', '228.9 MiB', '3.0 TiB')
    """
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"


def short_age(seconds: float) -> str:
    """How long ago, roughly.

    >>> short_age(4.2), short_age(130), short_age(7300), short_age(400_000), short_age(-5)
    ('4 s', '2 min', '2 h', '4 d', '0 s')
    """
    for limit, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * limit or (limit == 60 and seconds >= limit):
            return f"{seconds / limit:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def plain(value: Any) -> Any:
    """What strict JSON can say: a number that is none becomes null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def weight(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    return sum(each.stat().st_size for each in (path.rglob("*") if path.is_dir() else [path]) if each.is_file())


def listed(item: Found) -> dict[str, Any]:
    """One line of the list."""
    tree: dict[str, Any] = {"path": str(item.path), "step": item.step, "usable": item.manifest is not None}
    if item.manifest is None:
        return tree | {"error": item.why}
    facts = item.manifest.facts
    return tree | {
        "epoch": facts.epoch, "samples": facts.samples, "loss": facts.loss, "created": item.manifest.created,
        "bytes": item.manifest.size, "error": "",
    }  # fmt: skip


def table(root: Path, items: Sequence[Found], now: float) -> str:
    """The list for people."""
    if not items:
        return f"There is no checkpoint in {root} yet."
    size = short_size(sum(item.manifest.size for item in items if item.manifest is not None))
    lines = [f"{root}: {len(items)} checkpoint{'s' * (len(items) > 1)}, {size}"]
    lines.append(f"  {'step':>9} {'epoch':>6} {'age':>7} {'size':>10} {'loss':>9}  state")
    for item in items:
        if item.manifest is None:
            assert item.error is not None
            lines.append(f"  {item.step:>9} {'-':>6} {'-':>7} {'-':>10} {'-':>9}  {brief(item.error)}")
            continue
        facts, age = item.manifest.facts, short_age(now - item.manifest.created)
        lines.append(
            f"  {facts.step:>9} {facts.epoch:>6} {age:>7} {short_size(item.manifest.size):>10} {facts.loss:>9.4g}  "
            f"verified when written: {item.path.name}"
        )
    return "\n".join(lines)


def verified(item: Found, told: dict[str, Any], seconds: float) -> str:
    """One line of `verify`."""
    if not told["whole"]:
        return str(told["error"])
    size = short_size(item.manifest.size) if item.manifest is not None else ""
    weights = [f"  weights_sha256 {told['weights_sha256']}"] if told["weights_sha256"] else []
    return "\n".join([f"{item.path}: whole, {size} in {seconds:.2f} s", *weights, *told["notes"]])


def shown(checkpoint: Checkpoint) -> dict[str, Any]:
    """All about one, but for what only the coordinator understands."""
    tree: dict[str, Any] = msgspec.to_builtins(checkpoint.manifest)
    del tree["control"]
    return {"path": str(checkpoint.path), "bytes": checkpoint.manifest.size} | tree


def page(checkpoint: Checkpoint, now: float) -> str:
    """The same for people."""
    manifest = checkpoint.manifest
    facts, script = manifest.facts, manifest.script
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest.created))
    lines = [
        f"{checkpoint.path}",
        f"  written   {when} ({short_age(now - manifest.created)} ago) by Holdfast {manifest.holdfast}, "
        f"{short_size(manifest.size)}",
        f"  run       {facts.run}",
        f"  position  step {facts.step}, version {facts.version}, epoch {facts.epoch}, {facts.samples} samples, "
        f"loss {facts.loss:.4g}",
        f"  fixed by  sync {facts.sync}, lanes {facts.lanes}, seed {facts.seed}, threads {facts.threads}",
        f"  script    {' '.join([script.path, *script.args])} (sha256 {script.sha256[:16]})",
        "configuration",
        *(f"  {name} = {value!r}" for name, value in flattened(manifest.config).items()),
        f"model: {len(manifest.state)} entries",
        *_rows([(entry.name, entry.dtype, entry.shape, nbytes(entry.dtype, entry.shape)) for entry in manifest.state]),
        f"tensors: {len(manifest.tensors)}",
        *_rows([(name, tensor.dtype, tensor.shape, tensor.size) for name, tensor in manifest.tensors.items()]),
    ]
    return "\n".join(lines)


def _rows(rows: Sequence[tuple[str, str, tuple[int, ...], int]]) -> list[str]:
    wide = max((len(name) for name, _, _, _ in rows), default=0)
    return [
        f"  {name:<{wide}}  {dtype:<8}  {'x'.join(map(str, shape)) or 'one':<12} {short_size(size):>10}"
        for name, dtype, shape, size in rows
    ]


def compared(first: Checkpoint, second: Checkpoint, it: Comparison) -> dict[str, Any]:
    """Differences for JSON."""
    changes = {
        what: [{"name": name, "first": one, "second": other} for name, one, other in changed]
        for what, changed in (("script", it.script), ("config", it.config))
    }
    return {
        "first": str(first.path), "second": str(second.path), "entries": it.entries, "differing": len(it.model),
        "largest": it.largest, "model": [entry._asdict() for entry in it.model], "sections": it.sections, **changes,
    }  # fmt: skip


def differences(first: Checkpoint, second: Checkpoint, it: Comparison) -> str:
    """Differences for people."""
    lines = [f"{path} at step {step}" for path, step in
             ((each.path, each.manifest.facts.step) for each in (first, second))]  # fmt: skip
    if not it.model:
        lines.append(f"model: all {it.entries} entries are the same")
    else:
        most = "" if it.largest is None else f", the largest difference is {it.largest:.6g}"
        lines.append(f"model: {len(it.model)} of {it.entries} entries differ{most}")
        for entry in it.model[:_TOLD]:
            by = "" if entry.largest is None else f", by at most {entry.largest:.6g}"
            numbers = f"{entry.numbers} number{'s' * (entry.numbers != 1)}{by}"
            lines.append(f"  {entry.name}: {entry.what or numbers}")
        if len(it.model) > _TOLD:
            lines.append(f"  ... and {len(it.model) - _TOLD} more")
    if it.sections:
        lines.append(f"other tensors that differ: {', '.join(it.sections)}")
    for what, changed in (("script", it.script), ("configuration", it.config)):
        lines.append(f"{what}: {'differs' if changed else 'the same'}")
        lines += [f"  {name}: {one!r} and {other!r}" for name, one, other in changed]
    return "\n".join(lines)
