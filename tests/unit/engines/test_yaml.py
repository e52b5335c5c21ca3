"""The YAML that we write is read as what it was."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engines.yaml import document

#: Texts that YAML reads as something else when they stand there plainly.
TRAPS = [
    "", "yes", "NO", "on", "y", "null", "~", "1", "0x1f", "1e3", ".5", "2026-01-31", "1:30", "-", "- a", "a: b", "a #b",
    "=", "<<", "*a", "&a", "!a", "%a", "@a", "`a", "|", ">", "?", "{", "[", "'", '"', "\\", " a", "a ", "a\tb", "None:",
]  # fmt: skip
BLOCKS = ["a\n", "# c\n", "yes\n", "---\n", "a\n  b\n\n\tc \n", "é: ü\n"]
#: Not blocks: they begin with a space, end otherwise than blocks do, or hold what cannot be printed.
QUOTED = ["\n", " a\n", "\ta\n", "a\n\n", "a\nb", "a\r\n", "a\x7f\n", "a\x85\n", "a\u2028b\n", "\ufeffa\n", "😀\n"]


def test_a_document() -> None:
    value = {
        "kind": "Job", "number": -2, "ok": True, "none": {}, "empty": [], "codes": [1, 2],
        "deep": {"text": "a\n\nb\n", "items": [{"name": "a b", "more": {"x": "y"}}, "yes", "l\nm\n"]},
    }  # fmt: skip
    assert document(value) == (
        'kind: Job\nnumber: -2\nok: true\nnone: {}\nempty: []\ncodes: [1, 2]\n'
        'deep:\n  text: |\n    a\n\n    b\n  items:\n    - name: "a b"\n      more:\n        x: "y"\n    - "yes"\n'
        "    - |\n      l\n      m\n"
    )


@pytest.mark.parametrize("text", [*TRAPS, *QUOTED])
def test_what_could_be_misread_is_quoted_in_plain_letters(text: str) -> None:
    written = document({"k": text})
    assert written.startswith('k: "')
    assert written.isascii()
    assert written.count("\n") == 1
    if max(text, default="") < "\U00010000":
        assert json.loads(written[3:]) == text
    else:
        assert written == 'k: "\\U0001f600\\n"\n'


@pytest.mark.parametrize("text", BLOCKS)
def test_what_can_be_printed_is_a_block(text: str) -> None:
    first, *lines = document({"k": text}).splitlines()
    assert first == "k: |"
    assert "".join(f"{line.removeprefix('  ')}\n" for line in lines) == text


def test_a_sequence_in_a_sequence_is_not_written() -> None:
    with pytest.raises(ValueError, match="a sequence directly in a sequence"):
        document({"k": [["a"]]})


TEXT = st.one_of(st.sampled_from([*TRAPS, *BLOCKS, *QUOTED]), st.text(max_size=20))
SCALAR = st.one_of(TEXT, st.integers(), st.booleans())


@given(
    st.dictionaries(
        TEXT,
        st.recursive(
            SCALAR,
            lambda inner: st.one_of(
                st.dictionaries(TEXT, inner, max_size=3),
                st.lists(st.one_of(SCALAR, st.dictionaries(TEXT, inner, max_size=3)), max_size=3),
            ),
            max_leaves=8,
        ),
        min_size=1, max_size=3,
    )
)  # fmt: skip
def test_another_reader_reads_the_same(value: dict[str, object]) -> None:
    reader = pytest.importorskip("yaml", reason="PyYAML is not installed")
    assert reader.safe_load(document(value)) == value  # type: ignore[arg-type]
