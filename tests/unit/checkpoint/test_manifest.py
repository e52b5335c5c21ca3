"""The manifest: it says the same after a round trip, and nothing else."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.content import StateEntry
from holdfast.checkpoint.manifest import CheckpointManifest, FileRecord, TensorRecord, decode, encode, problem
from holdfast.errors import DamagedCheckpoint, NewerCheckpoint
from tests.unit.checkpoint.contents import content

GIVEN = content(7)
MANIFEST = CheckpointManifest(
    holdfast="0.1.0", created=1795095871.25, number=3, facts=GIVEN.facts, script=GIVEN.script, config=GIVEN.config,
    control=GIVEN.control, files=[FileRecord("state.safetensors", 64, "ab" * 32)],
    tensors={"parameters/float32": TensorRecord("state.safetensors", "float32", (6,), 40, 24, "cd" * 32)},
    state=GIVEN.state[:2],
)  # fmt: skip


def changed(**fields: Any) -> CheckpointManifest:
    return msgspec.structs.replace(MANIFEST, **fields)


def sealed(text: str) -> bytes:
    """Any text with a right hash, as a stranger could make it."""
    body = text.encode().removesuffix(b"\n}") + b',\n  "sha256": "'
    return body + hashlib.sha256(body).hexdigest().encode() + b'"\n}\n'


def test_round_trip() -> None:
    data = encode(MANIFEST)
    assert decode(data, "c") == MANIFEST
    assert json.loads(data)["format"] == 1
    assert decode(data, "c").size == 64


def test_a_loss_that_is_no_number_survives_and_the_file_is_json_all_the_same() -> None:
    for loss in (math.nan, math.inf, -math.inf):
        facts = msgspec.structs.replace(GIVEN.facts, loss=loss)
        data = encode(changed(facts=facts))
        json.loads(data, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
        assert repr(decode(data, "c").facts.loss) == repr(loss)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda items: st.lists(items, max_size=3) | st.dictionaries(st.text() | st.just("$float"), items, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), VALUES, max_size=3))
def test_any_value_survives(control: dict[str, Any]) -> None:
    assert decode(encode(changed(control=control)), "c").control == control


def test_texts_that_are_no_unicode_survive() -> None:
    odd = b"caf\xe9 \xff.py".decode(errors="surrogateescape")
    assert decode(encode(changed(control={odd: odd})), "c").control == {odd: odd}


@pytest.mark.parametrize(
    ("value", "told"),
    [({"x": {1, 2}}, "A set cannot be kept in the manifest of a checkpoint"),
     ({"x": [b"1"]}, "A bytes cannot be kept in the manifest of a checkpoint"),
     ({"x": {3: "y"}}, "3 is the name of a value in a checkpoint, and no text")],
)  # fmt: skip
def test_what_json_cannot_say_is_refused(value: dict[str, Any], told: str) -> None:
    with pytest.raises(TypeError, match=told):
        encode(changed(control=value))


def test_any_other_byte_is_noticed() -> None:
    data = encode(MANIFEST)
    for at in range(len(data)):
        for flip in (0x01, 0x20):
            with pytest.raises(DamagedCheckpoint):
                decode(data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :], "c")
    for end in range(len(data)):
        with pytest.raises(DamagedCheckpoint):
            decode(data[:end], "c")
    with pytest.raises(DamagedCheckpoint):
        decode(data + b"\n", "c")


def test_the_sentences() -> None:
    data = encode(MANIFEST)
    with pytest.raises(DamagedCheckpoint, match=r"manifest\.json is cut off after 9 bytes, or something else\. Use"):
        decode(data[:9], "c")
    with pytest.raises(DamagedCheckpoint, match=r"manifest\.json has other bytes than were written\. Use"):
        decode(data.replace(b"train.py", b"trail.py"), "c")
    with pytest.raises(DamagedCheckpoint, match=r"manifest\.json is none that Holdfast has written \('format'\)\. Use"):
        decode(sealed('{\n  "x": 1\n}'), "c")
    with pytest.raises(NewerCheckpoint, match=r"has format 2, and this version of Holdfast reads formats up to 1\. It"):
        decode(sealed('{\n  "holdfast": "9.0", "format": 2\n}'), "c")


@pytest.mark.parametrize("text", ["[\n}", "{\n}", '{\n  "format": "1"\n}', '{\n  "format": 1\n}', "\xff\n}"])
def test_a_strangers_manifest_is_refused(text: str) -> None:
    with pytest.raises(DamagedCheckpoint):
        decode(sealed(text), "c")


FILE, TENSOR = MANIFEST.files[0], MANIFEST.tensors["parameters/float32"]


def tensor(**fields: Any) -> CheckpointManifest:
    return changed(tensors={"parameters/float32": msgspec.structs.replace(TENSOR, **fields)})


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (changed(files=[FILE, FileRecord("../secret", 1, "")]), "'../secret' cannot be the name of a file in it"),
        (changed(files=[FILE, FileRecord(".lock", 1, "")]), "'.lock' cannot be the name of a file in it"),
        (changed(files=[FILE, FileRecord("manifest.json", 1, "")]), "'manifest.json' cannot be the name of a file in"),
        (changed(files=[FILE, FILE]), "a file is in it twice"),
        (tensor(shape=(7,)), "tensor 'parameters/float32' of float32 and shape [7] has 24 bytes"),
        (tensor(dtype="float33"), "tensor 'parameters/float32' of float33 and shape [6] has 24 bytes"),
        (tensor(file="b"), "tensor 'parameters/float32' is in 'b', which is no file of it"),
        (tensor(begin=41), "tensor 'parameters/float32' ends at byte 65 of state.safetensors, which ends before"),
        (tensor(begin=-1), "tensor 'parameters/float32' ends at byte 23 of state.safetensors, which ends before"),
        (changed(state=[StateEntry("w", "float32", (6,), "parameters/float32", 4)]),
         "'w' of the model is not where it shall be, in tensor 'parameters/float32'"),
        (changed(state=[StateEntry("w", "float32", (6,), "b", 0)]),
         "'w' of the model is not where it shall be, in tensor 'b'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_refused(wrong: CheckpointManifest, told: str) -> None:
    assert problem(MANIFEST) == ""
    assert problem(wrong).startswith(told)
    with pytest.raises(DamagedCheckpoint, match="does not fit together: "):
        decode(encode(wrong), "c")
