"""The record of a prediction: what is kept after a kill at any byte, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import DirectoryBusy, ResourceError, UsageError
from holdfast.serve.predict.record import BadRowFound, Record

SETTINGS: dict[str, Any] = {"model": "a", "rows": 40, "replace": False}
HEAD = b"head\n"
BLOCKS = [f"block {number}\n".encode() * (number + 1) for number in range(4)]


def begun(out: Path, settings: dict[str, Any] = SETTINGS, *, fresh: bool = False) -> Record:
    record = Record.take(out, fresh=fresh)
    try:
        record.begin(settings, HEAD, len(BLOCKS))
    except BaseException:
        record.close()
        raise
    return record


def add(record: Record, *numbers: int) -> None:
    for number in numbers:
        bad = [BadRowFound(number, "it is odd")] if number % 2 else []
        record.add(BLOCKS[number], 10 - len(bad), bad, given=True)


def whole(part: Path, ends: object, scratch: Path) -> Path:
    return part


def test_a_file_has_its_name_when_it_is_whole(tmp_path: Path) -> None:
    out = tmp_path / "a.csv"
    record = begun(out)
    add(record, 0, 1, 2, 3)
    assert not out.exists()
    record.finish(whole)
    record.close()
    assert out.read_bytes() == HEAD + b"".join(BLOCKS)
    listed = (tmp_path / "a.csv.bad.jsonl").read_text()
    assert listed == '{"row":1,"reason":"it is odd"}\n{"row":3,"reason":"it is odd"}\n'
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "a.csv.bad.jsonl"]


def test_whatever_a_kill_leaves_of_the_two_files_it_goes_on(tmp_path: Path) -> None:
    first = begun(tmp_path / "a.csv")
    add(first, 0, 1, 2)
    first.commit()
    part = (first.folder / "part").read_bytes()
    lines = (first.folder / "blocks.jsonl").read_bytes()
    settings = (first.folder / "settings.json").read_bytes()
    first.close()
    for kept in range(0, len(lines) + 1, 7):
        for more in (b"", b"half of a blo"):
            out = tmp_path / f"{kept}-{len(more)}.csv"
            folder = Path(f"{out}.progress")
            folder.mkdir()
            (folder / "settings.json").write_bytes(settings)
            (folder / "blocks.jsonl").write_bytes(lines[:kept])
            (folder / "part").write_bytes(part + more)
            record = begun(out)
            done = lines[:kept].count(b"\n")
            assert len(record.done) == done and record.lost == 0
            assert [one.given for one in record.done] == [True] * done
            add(record, *range(done, 4))
            record.finish(whole)
            record.close()
            assert out.read_bytes() == HEAD + b"".join(BLOCKS)


@pytest.mark.parametrize("damage", [0, 2, 7, 20, 30, -1])
def test_a_block_that_is_not_as_it_was_written_is_computed_again(tmp_path: Path, damage: int) -> None:
    out = tmp_path / "a.csv"
    record = begun(out)
    add(record, 0, 1, 2)
    record.commit()
    record.close()
    part = bytearray((record.folder / "part").read_bytes())
    part[damage] ^= 1
    (record.folder / "part").write_bytes(part)
    record = begun(out)
    assert len(record.done) < 3 and record.lost == 3 - len(record.done)
    add(record, *range(len(record.done), 4))
    record.close()
    record = begun(out)  # nothing was committed
    assert not record.lost
    add(record, *range(len(record.done), 4))
    record.finish(whole)
    record.close()
    assert out.read_bytes() == HEAD + b"".join(BLOCKS)


def test_a_part_that_is_gone_is_made_again(tmp_path: Path) -> None:
    record = begun(tmp_path / "a.csv")
    add(record, 0, 1)
    record.commit()
    record.close()
    (record.folder / "part").unlink()
    record = begun(tmp_path / "a.csv")
    assert record.done == [] and record.lost == 2
    record.close()


def test_killed_between_the_name_and_the_end_it_is_done(tmp_path: Path) -> None:
    out = tmp_path / "a.csv"
    record = begun(out)
    add(record, 0, 1, 2, 3)
    record.commit()
    record.close()
    shutil.move(record.folder / "part", out)
    record = begun(out)
    assert len(record.done) == 4
    record.finish(whole)
    record.close()
    assert out.read_bytes() == HEAD + b"".join(BLOCKS) and not record.folder.exists()


def test_only_one_is_at_it(tmp_path: Path) -> None:
    record = begun(tmp_path / "a.csv")
    with pytest.raises(DirectoryBusy, match=r"is being made by another .* Use another --out"):
        Record.take(tmp_path / "a.csv", fresh=False)
    record.close()
    Record.take(tmp_path / "a.csv", fresh=False).close()


def test_other_settings_are_refused_and_named(tmp_path: Path) -> None:
    out = tmp_path / "a.csv"
    begun(out).close()
    with pytest.raises(UsageError) as raised:
        begun(out, {**SETTINGS, "model": "b", "rows": 41})
    assert str(raised.value) == (
        f"{out} was begun with something else: model a, now b; rows 40, now 41. Half of the file would be of the one "
        "and half of the other. Ask for the same again, add --fresh to begin again, or name another --out."
    )
    begun(out, {**SETTINGS, "model": "b"}, fresh=True).close()
    begun(out, {**SETTINGS, "model": "b"}).close()


def test_a_file_that_is_there_stays_unless_it_is_to_be_replaced(tmp_path: Path) -> None:
    out = tmp_path / "a.csv"
    out.write_text("before")
    with pytest.raises(UsageError, match=r"is there already. Name another --out, or add --fresh"):
        begun(out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv"]
    out.unlink()
    begun(out).close()
    out.write_text("before")  # somebody else has made it meanwhile
    with pytest.raises(UsageError, match=r"is there already"):
        begun(out)
    record = begun(out, {**SETTINGS, "replace": True}, fresh=True)
    add(record, 0)
    record.commit()
    record.close()
    record = begun(out)  # the same command without --fresh goes on with it
    assert len(record.done) == 1 and out.read_text() == "before"
    add(record, 1, 2, 3)
    record.finish(whole)
    record.close()
    assert out.read_bytes() == HEAD + b"".join(BLOCKS)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"cannot be used: No such file or directory\. Name another --out"):
        Record.take(tmp_path / "no" / "a.csv", fresh=False)


def test_a_record_that_is_none_is_refused(tmp_path: Path) -> None:
    record = begun(tmp_path / "a.csv")
    record.close()
    (record.folder / "settings.json").write_text("{")
    with pytest.raises(UsageError, match=r"settings\.json cannot be read .* Add --fresh to begin again"):
        begun(tmp_path / "a.csv")
