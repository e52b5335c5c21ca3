"""The manifest: what it says survives, and what cannot be is refused, whoever has written it."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from holdfast.checkpoint.seal import sealed, unsealed
from holdfast.errors import DamagedModel, NewerModel
from holdfast.model.manifest import ModelFile, ModelManifest, decode, encode, model_name, problem
from holdfast.model.signature import Signature, TensorSpec

FILE = ModelFile("0" * 64, 3)
SIGNATURE = Signature((TensorSpec("x", "FP32", (-1, 2)),), (TensorSpec("y", "FP32", (-1,)),))


def manifest(**more: Any) -> ModelManifest:
    said: dict[str, Any] = {
        "name": "tiny", "version": 3, "kind": "program", "platform": "pytorch_export", "signature": SIGNATURE,
        "files": {"program.json": FILE, "weights.safetensors": FILE}, "created": 1.5, "classes": ("cat", "dog"),
        "source": {"step": 7}, "build": {"names": {"a": "0.a"}}, "frameworks": {"torch": "2.13.0"}, **more,
    }  # fmt: skip
    return ModelManifest(**said)


def hostile(**more: Any) -> bytes:
    """Sealed well, and wrong."""
    return sealed({**msgspec.to_builtins(manifest()), **more})


def test_what_is_written_is_read() -> None:
    assert decode(encode(manifest()), "m/3") == manifest()
    assert manifest().size == 6
    assert (manifest().idempotent, manifest().finite) == (True, True)


def test_every_byte_counts() -> None:
    data, chance = encode(manifest()), random.Random(1)
    for at in [*range(0, len(data), 7), len(data) - 1]:
        other = bytearray(data)
        other[at] ^= 1 << chance.randrange(8)
        with pytest.raises(DamagedModel, match=r"model\.json"):
            decode(bytes(other), "m/3")
    for end in (0, 1, 60, len(data) - 1):
        with pytest.raises(DamagedModel, match=rf"model\.json is cut off after {end} bytes"):
            decode(data[:end], "m/3")


@pytest.mark.parametrize(
    "name",
    ["../weights", "/etc/passwd", "a/b", "..", ".a", "", "a..b", "model.json", "a\0", "a\n", "a b", "é", "x" * 129],
)  # fmt: skip
def test_names_that_no_file_of_it_may_have(name: str) -> None:
    files = {**msgspec.to_builtins(manifest())["files"], name: {"sha256": "0" * 64, "bytes": 1}}
    with pytest.raises(DamagedModel) as told:
        decode(hostile(files=files), "m/3")
    assert f"{name!r} cannot be the name of a file in it" in str(told.value)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"name": "../x"}, "'../x' cannot be the name of a model"),
        ({"name": ""}, "cannot be the name of a model"),
        ({"version": 0}, "it is version 0"),
        ({"version": "3"}, r"Expected `int`, got `str` - at `\$\.version`"),
        ({"kind": "pickle"}, "Invalid enum value 'pickle'"),
        ({"platform": "onnxruntime"}, "a model of the kind program has the platform 'onnxruntime'"),
        ({"files": []}, "Expected `object`, got `array`"),
        ({"files": {}}, r"a model of the kind program has no program\.json"),
        ({"files": {"program.json": {"sha256": "0" * 64, "bytes": 1}}}, r"has no weights\.safetensors"),
        ({"files": {"program.json": {"sha256": "xyz", "bytes": 1}}}, "the SHA-256 'xyz'"),
        ({"files": {"program.json": {"sha256": "0" * 64, "bytes": -1}}}, "is to have -1 bytes"),
        ({"classes": "ab"}, "Expected `array`, got `str`"),
        ({"signature": {"inputs": [], "outputs": []}}, "it has no input"),
        ({"format": 0.5}, "Expected `int`"),
        ({"created": None}, "Expected `float`, got `null`"),
        ({"build": 3}, "Expected `object`, got `int`"),
    ],
)
def test_what_cannot_be(more: Any, told: str) -> None:
    with pytest.raises(DamagedModel, match=told):
        decode(hostile(**more), "m/3")


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (TensorSpec("x", "FP32", (2, 2)), r"has the shape \[2, 2\], whose first dimension does not count items"),
        (TensorSpec("x", "FP32", ()), "whose first dimension does not count items"),
        (TensorSpec("x", "FP33", (-1,)), "is of the type 'FP33', which there is not"),
        (TensorSpec("x", "FP32", (-1, -2)), r"has the shape \[-1, -2\]"),
        (TensorSpec("", "FP32", (-1,)), "has no name that could be told"),
        (TensorSpec("a\nb", "FP32", (-1,)), "has no name that could be told"),
    ],
)
def test_signatures_that_cannot_be(spec: TensorSpec, told: str) -> None:
    with pytest.raises(DamagedModel, match=told):
        decode(encode(manifest(signature=Signature((spec,), SIGNATURE.outputs))), "m/3")


def test_names_twice() -> None:
    assert problem(manifest(signature=Signature(SIGNATURE.inputs * 2, SIGNATURE.outputs))) == "it has an input twice"
    alone = Signature((TensorSpec("x", "FP32", (2,)),), (TensorSpec("y", "FP32", ()),), batched=False)
    assert problem(manifest(signature=alone)) == ""


def test_a_later_format_is_told_by_the_version_that_wrote_it() -> None:
    with pytest.raises(NewerModel) as told:
        decode(hostile(format=9, kind="something", frameworks={"holdfast": "4.2"}), "m/3")
    assert (told.value.format, told.value.version) == (9, "4.2")
    with pytest.raises(NewerModel, match="Holdfast unknown"):
        decode(hostile(format=9, frameworks=[]), "m/3")


def test_json_that_is_too_deep() -> None:
    deep = b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    seal = sealed({"a": 0})
    with pytest.raises(ValueError):
        unsealed(deep)
    assert unsealed(seal) == {"a": 0, "sha256": unsealed(seal)["sha256"]}


def test_names_of_models() -> None:
    names = {"a b": "a-b", "épée": "p-e", "-.x": "x", "": "model", "x" * 200: "x" * 128}
    assert {text: model_name(text) for text in names} == names
