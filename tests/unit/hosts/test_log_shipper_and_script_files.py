from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.config.limits import AGENT
from holdfast.errors import UsageError
from holdfast.hosts.log_shipper import LogShipper, log_place
from holdfast.hosts.script_files import ScriptFiles, has_same, safe_name

# ---------------------------------------------------------------- what is brought back


@pytest.fixture
def there(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    (tmp_path / "audit").mkdir()
    return tmp_path


def test_what_grows_is_sent_piece_by_piece_and_nothing_twice(there: Path) -> None:
    sent: list[tuple[str, bytes]] = []
    log_shipper = LogShipper(there, lambda name, data: sent.append((name, data)) is None)
    log_shipper.collect()
    assert sent == []
    (there / "logs" / "worker-1.log").write_bytes(b"one\n")
    (there / "hang-1.txt").write_bytes(b"stacks")
    (there / "audit" / "worker-1.txt").write_bytes(b"0 0 0 1\n")
    (there / "lock").write_bytes(b"mine")
    log_shipper.collect()
    assert sent == [("logs/worker-1.log", b"one\n"), ("hang-1.txt", b"stacks"), ("audit/worker-1.txt", b"0 0 0 1\n")]
    with (there / "logs" / "worker-1.log").open("ab") as log:
        log.write(b"two\n")
    log_shipper.collect()
    assert sent[3:] == [("logs/worker-1.log", b"two\n")]
    log_shipper.collect()
    assert len(sent) == 4


def test_a_round_is_bounded_and_what_is_not_taken_is_sent_later(there: Path) -> None:
    sent: list[int] = []
    willing = [True]

    def take(name: str, data: bytes) -> bool:
        if willing[0]:
            sent.append(len(data))
        return willing[0]

    log_shipper = LogShipper(there, take)
    (there / "logs" / "worker-1.log").write_bytes(b"x" * 3_000_000)
    log_shipper.collect()
    assert sum(sent) == 1024 * 1024 and max(sent) <= 256 * 1024, "in pieces that a message takes"
    willing[0] = False
    log_shipper.collect()
    willing[0] = True
    for _ in range(3):
        log_shipper.collect()
    assert sum(sent) == 3_000_000


@pytest.mark.parametrize(
    "name", ["run.json", "../logs/worker-1.log", "logs/worker-1.log/x", "/etc/passwd", "logs/worker-x.log", "hang-.txt"]
)
def test_other_names_go_nowhere(name: str) -> None:
    assert log_place(name, 1) is None


# ---------------------------------------------------------------- what is sent along


def test_the_script_and_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import helper")
    (tmp_path / "helper.py").write_text("")
    (tmp_path / "data.bin").write_bytes(b"not along")
    (tmp_path / "package.py").mkdir()
    script_files = ScriptFiles(str(tmp_path / "train.py"))
    assert list(script_files.digests) == ["train.py", "helper.py"], "the script's own first"
    assert list(script_files.pieces()) == [("train.py", b"import helper", False), ("helper.py", b"", True)]
    assert script_files.refusal() == ""
    assert has_same(str(tmp_path / "train.py"), script_files.digests)
    (tmp_path / "helper.py").write_text("changed")
    assert not has_same(str(tmp_path / "train.py"), script_files.digests)
    assert not has_same(str(tmp_path / "elsewhere" / "train.py"), script_files.digests)


def test_too_much_does_not_travel(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes(b"#" * (AGENT.script_bytes + 2**20))
    script_files = ScriptFiles(str(tmp_path / "train.py"))
    assert script_files.refusal() == (
        "the script and the Python files beside it are 5.0 MiB, and no more than 4 MiB are sent along; copy "
        f"{tmp_path} to the same path on that machine"
    )
    pieces = list(script_files.pieces())
    assert sum(len(data) for _, data, _ in pieces) == AGENT.script_bytes + 2**20
    assert [last for *_, last in pieces].count(True) == 1 and pieces[-1][2]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b.py", "../a.py", "a\0b", "x" * 300])
def test_names_from_elsewhere_are_names(name: str) -> None:
    with pytest.raises(UsageError, match="which cannot lie beside a script"):
        safe_name(name)
