"""What is brought back from an agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.hosts.log_shipper import LogShipper, log_place


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
