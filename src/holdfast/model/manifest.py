"""The manifest of one version of a model: what it is, what goes in and comes out, its files and their hashes. Pure.

    DIR/3/model.json             this
          weights.safetensors    kinds `program` and `module`
          program.json           kind `program`: what torch.export has traced, without weights
          constants.safetensors  its tensors that are no weights, if it has any
          example.json           a request, as the Open Inference Protocol has it

It is sealed JSON, as that of a checkpoint. Nothing may be read by it that does not lie in its own folder: the names of
files have no slash.
"""

from __future__ import annotations

import re
from typing import Any, Literal, get_args

import msgspec

from holdfast.checkpoint.seal import sealed, unsealed
from holdfast.errors import DamagedModel, NewerModel
from holdfast.model.signature import DATATYPES, Signature, TensorSpec

__all__ = [
    "CONSTANTS", "EXAMPLE", "FORMAT", "KINDS", "NAME", "PLATFORMS", "PROGRAM", "WEIGHTS", "Kind", "ModelFile",
    "ModelManifest", "decode", "encode", "model_name", "problem",
]  # fmt: skip

FORMAT = 1
NAME = "model.json"
WEIGHTS, PROGRAM, CONSTANTS, EXAMPLE = "weights.safetensors", "program.json", "constants.safetensors", "example.json"

Kind = Literal["program", "module", "python", "sklearn", "onnx"]
KINDS: tuple[Kind, ...] = get_args(Kind)
#: What clients are told that computes a model of a kind.
PLATFORMS: dict[Kind, str] = {
    "program": "pytorch_export", "module": "pytorch_module", "python": "python", "sklearn": "sklearn",
    "onnx": "onnxruntime",
}  # fmt: skip
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,127}")
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_TENSOR = re.compile(r"[^\x00-\x1f\x7f]{1,256}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class ModelFile(msgspec.Struct, frozen=True):
    """One file of a version."""

    sha256: str
    bytes: int


class ModelManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a version but the bytes of its files."""

    format: int = FORMAT
    name: str
    version: int
    kind: Kind
    platform: str
    signature: Signature
    classes: tuple[str, ...] = ()  #: what the last dimension of its output counts, where that is known
    files: dict[str, ModelFile]
    source: dict[str, Any] = {}  #: where it comes from: run, step, weights_sha256, script; whatever is known
    frameworks: dict[str, str] = {}  #: versions of what it was made with
    created: float  #: Unix time
    build: dict[str, Any] = {}  #: how it is put together again; each kind has its own entries
    idempotent: bool = True  #: may a request be computed twice?
    finite: bool = True  #: is an output that is NaN or infinite an error?

    @property
    def size(self) -> int:
        """Bytes of all its files but this one."""
        return sum(file.bytes for file in self.files.values())


def encode(manifest: ModelManifest) -> bytes:
    """The file. Raises TypeError, ValueError where a value is nothing that JSON can say."""
    return sealed(msgspec.to_builtins(manifest))


def decode(data: bytes, path: object) -> ModelManifest:
    """What `encode` wrote, of the version `path`.

    Raises:
        DamagedModel: a byte is another one, some are missing, or what it says cannot be.
        NewerModel: a later version of Holdfast has written it.
    """
    try:
        tree = unsealed(data)
        if (format := tree.get("format")) and isinstance(format, int) and format > FORMAT:
            raise NewerModel(path, format=format, known=FORMAT, version=str(_holdfast(tree)))
        manifest = msgspec.convert(tree, ModelManifest)
    except msgspec.ValidationError as error:
        raise DamagedModel(path, NAME, f"is none that Holdfast has written ({error})") from None
    except ValueError as error:
        raise DamagedModel(path, NAME, str(error)) from None
    if wrong := problem(manifest):
        raise DamagedModel(path, NAME, f"does not fit together: {wrong}")
    return manifest


def problem(manifest: ModelManifest) -> str:
    """What does not fit together; empty if all does. A manifest may come from anybody."""
    if not _MODEL.fullmatch(manifest.name):
        return f"{manifest.name!r} cannot be the name of a model"
    if manifest.version < 1:
        return f"it is version {manifest.version}"
    if manifest.platform != PLATFORMS[manifest.kind]:
        return f"a model of the kind {manifest.kind} has the platform {manifest.platform!r}"
    for name, file in manifest.files.items():
        if not _FILE.fullmatch(name) or ".." in name or name == NAME:
            return f"{name!r} cannot be the name of a file in it"
        if not _SHA256.fullmatch(file.sha256) or file.bytes < 0:
            return f"{name} is to have {file.bytes} bytes and the SHA-256 {file.sha256!r}"
    needed = {"program": (PROGRAM, WEIGHTS), "module": (WEIGHTS,)}.get(manifest.kind, ())
    for name in needed:
        if name not in manifest.files:
            return f"a model of the kind {manifest.kind} has no {name}"
    return _signature_problem(manifest.signature)


def model_name(text: str) -> str:
    """The name of a model that is nearest to a text, such as a file's name.

    >>> model_name("my run (3)"), model_name("...")
    ('my-run-3', 'model')
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:128] or "model"


def _signature_problem(signature: Signature) -> str:
    for what, specs in (("input", signature.inputs), ("output", signature.outputs)):
        if not specs:
            return f"it has no {what}"
        if len({spec.name for spec in specs}) < len(specs):
            return f"it has an {what} twice"
        for spec in specs:
            if wrong := _spec_problem(spec, signature.batched):
                return f"its {what} {spec.name!r} {wrong}"
    return ""


def _spec_problem(spec: TensorSpec, batched: bool) -> str:
    if not _TENSOR.fullmatch(spec.name):
        return "has no name that could be told"
    if spec.datatype not in DATATYPES:
        return f"is of the type {spec.datatype!r}, which there is not"
    if any(size < -1 for size in spec.shape):
        return f"has the shape {list(spec.shape)}"
    if batched and spec.shape[:1] != (-1,):
        return f"has the shape {list(spec.shape)}, whose first dimension does not count items"
    return ""


def _holdfast(tree: dict[str, Any]) -> object:
    frameworks = tree.get("frameworks")
    return frameworks.get("holdfast", "unknown") if isinstance(frameworks, dict) else "unknown"
