"""The safetensors format: what we write is what its own library reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.checkpoint import stream
from holdfast.checkpoint.content import Tensor
from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.dtypes import DTYPES, nbytes
from holdfast.checkpoint.tensor_file import header_size, layout, placed


def test_every_dtype_of_torch_is_known() -> None:
    import torch

    for name, dtype in DTYPES.items():
        assert getattr(torch, name).itemsize == dtype.size
    assert nbytes("float32", (2, 0)) == 0
    assert nbytes("float32", ()) == 4
    assert nbytes("int128", (1,)) == nbytes("int8", (-1,)) == nbytes("int8", (-1, 0)) == -1


def test_larger_numbers_come_first_so_that_all_are_aligned() -> None:
    made = layout({"flags": ("bool", (3,)), "w": ("float32", (2, 2)), "b": ("float32", (1,)), "n": ("int64", ())})
    assert list(made.begins) == ["n", "w", "b", "flags"]
    assert [begin - len(made.header) for begin in made.begins.values()] == [0, 8, 24, 28]
    assert len(made.header) % 8 == 0 and made.size == len(made.header) + 31


def test_what_the_format_has_no_name_for_is_plain_bytes() -> None:
    made = layout({"z": ("complex64", (2, 3))}, {"format": "pt"})
    tree = json.loads(made.header[8:])
    assert tree == {
        "__metadata__": {"format": "pt"}, "z": {"dtype": "U8", "shape": [48], "data_offsets": [0, 48]},
    }  # fmt: skip


def test_the_library_reads_what_is_written(tmp_path: Path) -> None:
    import safetensors.torch
    import torch

    numbers = torch.arange(24)
    tensors = {
        name: (numbers % 2 if name == "bool" else numbers).to(getattr(torch, name)).reshape(2, 3, 4)
        for name, dtype in DTYPES.items() if dtype.code
    }
    tensors |= {"one": torch.tensor(1.5), "nöne": torch.empty(0, 4), "bytes": torch.empty(3, 0, dtype=torch.uint8)}
    given = {
        name: Tensor(
            str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape),
            tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes(),
        )
        for name, tensor in tensors.items()
    }  # fmt: skip
    path = tmp_path / "with a späce.safetensors"
    record, records = stream.write_tensors(Disk(), path, given, {"step": "3"})
    read = safetensors.torch.load_file(path)
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype and read[name].shape == tensor.shape
        assert bytes(read[name].flatten().view(torch.uint8).numpy()) == given[name].data
    assert stream.hash_file(Disk(), path) == (record.size, record.sha256)
    assert {name: records[name].sha256 for name in given} == {
        name: stream.sha256_of(tensor.data) for name, tensor in given.items()
    }


def test_sections_larger_than_a_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_PIECE", 7)
    data = bytes(range(100))
    _, records = stream.write_tensors(Disk(), tmp_path / "f", {"x": Tensor("uint8", (100,), data)})
    into = bytearray(100)
    sha256 = stream.read_into(Disk(), tmp_path / "f", records["x"].begin, memoryview(into))
    assert into == data and sha256 == records["x"].sha256 == stream.sha256_of(data)
    with pytest.raises(EOFError, match="ends 1 bytes too early"):
        stream.read_into(Disk(), tmp_path / "f", records["x"].begin + 1, memoryview(into))


def header(**entries: object) -> bytes:
    """A header of these tensors, as it stands behind the first eight bytes."""
    return json.dumps(entries).encode()


def tensor(begin: int, end: int, *shape: int, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def test_what_is_written_is_found_again() -> None:
    tensors = {"flags": ("bool", (3,)), "w": ("float32", (2, 2)), "none": ("float64", (0, 4)), "n": ("int64", ())}
    made = layout(tensors, {"format": "pt"})
    size = header_size(made.header[:8], made.size)
    found = placed(made.header[8:], made.size)
    assert size == len(made.header) - 8
    assert {name: (one.dtype, one.shape) for name, one in found.items()} == tensors
    assert {name: one.begin for name, one in found.items()} == made.begins


@pytest.mark.parametrize(
    ("head", "size", "why"),
    [
        (b"\x01\0", 2, "it has 2 bytes, and the length of its header alone takes 8"),
        ((93).to_bytes(8, "little"), 100, "its header is to be 93 bytes long, and 92 follow"),
        (b"\xff" * 8, 100, f"its header is to be {2**64 - 1} bytes long, and 92 follow"),
        ((100_000_001).to_bytes(8, "little"), 1 << 30, "its header is to be 100000001 bytes long"),
    ],
)
def test_a_header_longer_than_its_file(head: bytes, size: int, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        header_size(head, size)


@pytest.mark.parametrize(
    ("text", "rest", "why"),
    [
        (b"{", 0, "its header is not JSON"),
        (b"\xff{}", 0, "its header is not JSON"),
        (b"[" * 200_000, 0, "its header is not JSON"),
        (b"[]", 0, "its header is a list, and has to name tensors"),
        (b'{"a": {}, "a": {}}', 0, "its header has 'a' twice"),
        (header(a=3), 0, "its header does not say where tensor 'a' is"),
        (header(a=tensor(0, 4)), 4, None),
        (header(a=tensor(0, 4, dtype="F99")), 4, "tensor 'a' is of the type 'F99', which is not known here"),
        (header(a={**tensor(0, 4, 1), "shape": [True]}), 4, "its header does not say where tensor 'a' is"),
        (header(a={**tensor(0, 4, 1), "data_offsets": [0]}), 4, "its header does not say where tensor 'a' is"),
        (header(a=tensor(-4, 0, 1)), 0, "its header does not say where tensor 'a' is"),
        (header(a=tensor(0, 8, 3)), 8, r"tensor 'a' of float32 and shape \[3\] has 8 bytes"),
        (header(a=tensor(0, 8, 2), b=tensor(4, 8, 1)), 8, "tensor 'b' begins at byte .* lies over the one before it"),
        (header(a=tensor(0, 4, 1), b=tensor(0, 4, 1)), 4, "lies over the one before it"),
        (header(a=tensor(0, 4, 1), b=tensor(8, 12, 1)), 12, "leaves a gap before it"),
        (header(a=tensor(0, 8, 2)), 7, "the file at byte .*: it is cut off"),
        (header(a=tensor(0, 8, 2)), 9, "it is followed by something else"),
    ],
)
def test_headers_that_do_not_fit(text: bytes, rest: int, why: str | None) -> None:
    size = 8 + len(text) + rest
    if why is None:
        assert placed(text, size)["a"].size == 4
        return
    with pytest.raises(ValueError, match=why):
        placed(text, size)
