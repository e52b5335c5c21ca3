"""Publishing: a new version of a model from the one before and a checkpoint's weights. No torch, no tracing.

    publish_weights(Path("models/lenet"), Path("runs/mine/checkpoints/step-000000000120"))
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.checkpoint.content import Tensor
from holdfast.checkpoint.disk import DISK, Disk
from holdfast.checkpoint.forms.export import weights_sha256
from holdfast.checkpoint.forms.weights import TensorKind, Weights, locate_weights, open_weights
from holdfast.checkpoint.reader import open_checkpoint
from holdfast.checkpoint.tensor_file import HEAD, Placed, header_size, placed
from holdfast.errors import DamagedModel, HoldfastError, NotExportable, OtherModel
from holdfast.model.library import Version, resolve
from holdfast.model.manifest import WEIGHTS
from holdfast.model.version_writer import Draft, write_version

__all__ = ["main", "publish_weights", "source_of"]


def publish_weights(
    previous: Path, weights: Path, *, source: dict[str, Any] | None = None, disk: Disk = DISK
) -> Path:
    """Write the next version beside `previous` (DIR/3, or DIR for its newest): its program, and other weights.

    `weights` is a run's directory, a checkpoint or a .safetensors file. Whatever else the version has is written anew
    and not linked, so a bad block harms one version. `source` adds to what is known of where they come from.

    Raises:
        NotExportable: a model of this kind has no weights that could be replaced.
        OtherModel: these weights are not of this model.
        CheckpointError, ModelError
    """
    before, _ = resolve(previous, disk=disk)
    manifest = before.manifest
    if WEIGHTS not in manifest.files:
        raise NotExportable(
            f"A model of the kind {manifest.kind}", f"{before.path} has no weights of its own to be replaced",
            "Export it again.",
        )  # fmt: skip
    found, _ = locate_weights(weights)
    files: dict[str, Any] = {
        name: before.read(name) for name in manifest.files if name != WEIGHTS
    }
    files[WEIGHTS] = _taken(before, open_weights(found))
    draft = Draft(
        name=manifest.name, kind=manifest.kind, signature=manifest.signature, files=files, classes=manifest.classes,
        source={**source_of(found), **(source or {})}, frameworks=manifest.frameworks, build=manifest.build,
        idempotent=manifest.idempotent, finite=manifest.finite,
    )  # fmt: skip
    return write_version(before.path.parent, draft, disk=disk).path


def source_of(weights: Path) -> dict[str, Any]:
    """What is known of weights: a checkpoint says all, a file its name."""
    if not weights.is_dir():
        return {"weights": weights.name}
    checkpoint = open_checkpoint(weights)
    facts, script = checkpoint.manifest.facts, checkpoint.manifest.script
    return {
        "checkpoint": weights.name, "run": facts.run, "step": facts.step, "epoch": facts.epoch,
        "samples": facts.samples, "weights_sha256": weights_sha256(checkpoint),
        "script": {"path": script.path, "sha256": script.sha256},
    }  # fmt: skip


def _taken(before: Version, weights: Weights) -> dict[str, Tensor]:
    """The weights by the names that they have in the model."""
    names, file = dict(before.manifest.build.get("names") or {}), before.read(WEIGHTS)
    taken: dict[str, Tensor] = {}
    for name, entry in _placed(before, file).items():
        theirs, kind = names.get(name, name), TensorKind(entry.dtype, entry.shape)
        if not theirs:  # it was not trained: as it was
            taken[name] = Tensor(entry.dtype, entry.shape, file[entry.begin : entry.begin + entry.size])
            continue
        if weights.kinds.get(theirs) != kind:
            here = weights.kinds.get(theirs)
            raise OtherModel(weights.path, f"{theirs} is {kind} in {before.path} and {here or 'not there'} here")
        taken[name] = Tensor(entry.dtype, entry.shape, weights.read(theirs))
    return taken


def _placed(before: Version, file: memoryview) -> dict[str, Placed]:
    try:
        size = header_size(bytes(file[:HEAD]), file.nbytes)
        return placed(bytes(file[HEAD : HEAD + size]), file.nbytes)
    except ValueError as error:
        raise DamagedModel(before.path, WEIGHTS, f"is no .safetensors file: {error}") from None


def main(argv: Sequence[str]) -> int:
    """`python -m holdfast.model.publishing DIR WEIGHTS`: for who has no time to hash all that in its own process."""
    try:
        print(publish_weights(Path(argv[0]), Path(argv[1])))
    except HoldfastError as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
