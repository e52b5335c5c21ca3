from __future__ import annotations

import mmap
import os

import pytest

from holdfast.errors import ResourceError
from holdfast.transport import memory
from tests.unit.transport.lines import nothing_left


def test_memory_has_no_name_and_is_zeroed() -> None:
    fd = memory.reserve(1 << 20)
    try:
        assert "memfd:holdfast" in os.readlink(f"/proc/self/fd/{fd}")
        assert not os.get_inheritable(fd)
        with mmap.mmap(fd, 1 << 20) as mapped:
            assert mapped[:8] == bytes(8) and len(mapped) == 1 << 20
    finally:
        os.close(fd)


def test_there_must_be_room() -> None:
    with nothing_left(), pytest.raises(ResourceError, match=r"1,073,741,824\.0 MiB of shared memory"):
        memory.reserve(1 << 50)


def test_the_refusal_names_both_values_and_what_to_do() -> None:
    with pytest.raises(ResourceError) as told:
        memory.reserve_checked(3 << 20, 1 << 20, "free on this machine")
    assert str(told.value) == (
        "The run needs 3.0 MiB of shared memory for parameters, gradients and optimizer state, but only 1.0 MiB are "
        "free on this machine. Use fewer lanes (each open lane holds one gradient), a smaller model or an optimizer "
        "with less state, or free some memory."
    )


def test_available_says_what_sets_the_limit() -> None:
    free, why = memory.available()
    assert free > 0
    assert why in ("free on this machine", "left in this process's memory cgroup")
