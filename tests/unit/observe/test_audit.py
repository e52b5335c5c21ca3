from pathlib import Path

from holdfast.observe.audit import audit, read
from holdfast.train.audit_trail import AuditTrail


def test_exact_pass() -> None:
    (one,) = audit(["0 0 0 5 1", "0 0 1 2 7", "0 1 0 3 4", "0 0 1 2 7"], steps=2)
    assert one.exact
    assert one.told() == (
        "pass 0: 6 samples in 3 units, each in exactly one; 1 units were computed more than once"
    )


def test_steps_that_were_never_committed_do_not_count() -> None:
    (one,) = audit(["0 0 0 5 1", "0 1 0 5 1"], steps=1)
    assert one.exact and one.samples == 2


def test_repeated_samples_and_units_that_differ() -> None:
    (one,) = audit(["3 0 0 5 1", "3 0 1 1 2", "3 0 0 5 9"], steps=1)
    assert not one.exact
    assert one.told() == (
        "pass 3: NOT exact: samples [1] were used in more than one unit, units [(0, 0)] differ between workers, "
        "steps [] have no line"
    )


def test_a_step_without_a_line() -> None:
    (one,) = audit(["0 0 0 5", "0 2 0 6"], steps=3)
    assert not one.exact and one.gaps == (1,)


def test_a_cut_line_is_left_out(tmp_path: Path) -> None:
    trail = AuditTrail(tmp_path / "audit", 4)
    trail.note(0, 7, 1, [3, 4])
    trail.close()
    with open(tmp_path / "audit" / "worker-4.txt", "a") as file:
        file.write("0 8 1 3")
    assert read(tmp_path / "audit") == ["0 7 1 3 4"]
