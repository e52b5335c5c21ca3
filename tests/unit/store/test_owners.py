"""Who holds what."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config.limits import STORE
from holdfast.errors import UsageError
from holdfast.store.owners import checked_name, owner, parts


@given(st.integers(0, 10_000), st.integers(1, 64))
def test_shares_are_all_rows_in_order_and_differ_by_one_at_most(rows: int, servers: int) -> None:
    shares = parts(rows, servers)
    assert [row for first, last in shares for row in range(first, last)] == list(range(rows))
    sizes = [last - first for first, last in shares]
    assert len(sizes) == servers
    assert max(sizes) - min(sizes) <= 1


def test_the_owner_of_a_name_is_the_same_everywhere() -> None:
    # Pinned: a client and a server of different builds must agree.
    assert [owner(name, 5) for name in ("a", "b", "user", "item", "layer.0.weight")] == [3, 3, 4, 1, 3]
    assert len({owner(f"key {i}", 4) for i in range(100)}) == 4


def test_names() -> None:
    assert checked_name("w", "key") == "w"
    assert checked_name("Gewicht Ω", "key") == "Gewicht Ω"
    for bad in ("", "a\0b", "a\nb", "x" * (STORE.name_bytes + 1)):
        with pytest.raises(UsageError):
            checked_name(bad, "key")
    with pytest.raises(UsageError) as caught:
        checked_name("", "barrier")
    assert str(caught.value) == "'' cannot be the name of a barrier: use 1 to 200 bytes of printable text, not 0."
