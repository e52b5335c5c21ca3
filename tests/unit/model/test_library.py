"""The library: which versions there are, which is the newest whole one, and damage of every file named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.errors import DamagedModel, ModelError, NewerModel, NotAModel, UnreadableModel
from holdfast.model import manifest as manifests
from holdfast.model.library import open_version, resolve, version_at, versions
from holdfast.model.version_writer import write_version
from tests.unit.model.nets import draft
from tests.unit.model.test_manifest import hostile


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    for number in (1, 2, 3):
        write_version(folder, draft(number))
    return folder


def spoil(file: Path, data: bytes | None = None) -> None:
    file.write_bytes(data if data is not None else file.read_bytes()[:-1] + b"#")


def test_the_newest_first(root: Path) -> None:
    (root / "notes").mkdir()
    (root / "007").mkdir()
    found = versions(root)
    assert [(one.number, one.path, one.why) for one in found] == [(n, root / str(n), "") for n in (3, 2, 1)]
    assert open_version(root).version == 3
    assert open_version(root / "2").version == 2
    assert versions(root / "nowhere") == []


def test_more_than_nine(root: Path) -> None:
    for number in range(4, 12):
        write_version(root, draft(number))
    assert [one.number for one in versions(root)][:3] == [11, 10, 9]


@pytest.mark.parametrize("file", ["weights.safetensors", "program.json", "model.json"])
@pytest.mark.parametrize("harm", ["changed", "shorter", "longer", "gone", "link", "pipe", "folder"])
def test_damage_of_any_file_is_named_and_an_older_version_serves(root: Path, file: str, harm: str) -> None:
    harmed = root / "3" / file
    data = harmed.read_bytes()
    if harm in ("changed", "shorter", "longer"):
        spoil(harmed, {"changed": data[:-3] + b"#" + data[-2:], "shorter": data[:-1], "longer": data + b"#"}[harm])
    else:
        harmed.rename(root / "aside")
        if harm == "link":
            harmed.symlink_to(root / "aside")
        elif harm == "pipe":
            os.mkfifo(harmed)
        elif harm == "folder":
            harmed.mkdir()
    wanted = NotAModel if (file, harm) == ("model.json", "gone") else DamagedModel
    with pytest.raises(wanted) as told:
        open_version(root / "3")
    assert file in str(told.value) and str(root / "3") in str(told.value)
    version, passed_over = resolve(root)
    assert version.manifest.version == 2
    assert passed_over == [str(told.value)]
    if file == "model.json":
        assert versions(root)[0].why == str(told.value)


def test_none_is_whole(root: Path) -> None:
    for number in (1, 2, 3):
        spoil(root / str(number) / "program.json")
    with pytest.raises(ModelError) as told:
        open_version(root)
    assert str(told.value).startswith(f"No version of the model in {root} is whole. The model {root / '3'} is damaged:")


def test_what_is_no_model(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for path, told in (
        (tmp_path / "nowhere", "there is nothing"), (tmp_path / "file", "it is a file"),
        (tmp_path / "empty", "there is no version in it"), (root / "9", "there is nothing"),
        (root / "3" / "model.json", "it is a file"),
    ):  # fmt: skip
        with pytest.raises(NotAModel) as error:
            open_version(path)
        assert error.value.why == told


def test_a_version_in_a_folder_of_another_number(root: Path) -> None:
    (root / "3").rename(root / "8")
    with pytest.raises(NotAModel, match="says that it is version 3; let its folder be called so"):
        open_version(root / "8")
    assert open_version(root).version == 2
    (root / "8").rename(root.parent / "copy")
    with pytest.raises(NotAModel, match="says that it is version 3"):
        open_version(root.parent / "copy")


def test_a_manifest_that_points_elsewhere(root: Path) -> None:
    (root.parent / "secret").write_bytes(b"\0" * 3)
    (root / "3" / "model.json").write_bytes(hostile(files={"../../secret": {"sha256": "0" * 64, "bytes": 3}}))
    with pytest.raises(DamagedModel, match="cannot be the name of a file"):
        open_version(root / "3")
    (root / "3" / "model.json").write_bytes(hostile(format=2))
    with pytest.raises(NewerModel):
        open_version(root / "3")


def test_what_the_system_does_not_let_us_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = version_at(root / "3")

    def refused(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(version._disk), "open", refused)
    for act in (version.verify, lambda: version.read("program.json"), lambda: open_version(root / "3")):
        with pytest.raises(UnreadableModel, match="cannot be read: Permission denied"):
            act()


def test_a_manifest_of_any_size(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.truncate(root / "3" / manifests.NAME, 65 << 20)
    with pytest.raises(DamagedModel, match=r"model\.json has 68157440 bytes"):
        version_at(root / "3")


def test_other_files_in_its_folder_are_not_part_of_it(root: Path) -> None:
    (root / "3" / "more").write_text("")
    assert open_version(root).version == 3
    with pytest.raises(DamagedModel, match="names no file more"):
        version_at(root / "3").read("more")


def test_what_is_kept_is_read_once(root: Path) -> None:
    version, _ = resolve(root, keep=True)
    first = bytes(version.read("program.json"))
    spoil(root / "3" / "program.json")
    assert first == b"{}"
    with pytest.raises(DamagedModel, match=r"program\.json has other bytes"):
        version.read("program.json")
