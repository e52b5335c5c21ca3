from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.serve.predict.blocks import Window, block, block_count, block_size


@given(rows=st.integers(0, 300), size=st.integers(1, 70))
def test_blocks_have_each_row_once(rows: int, size: int) -> None:
    blocks = [block(number, rows, size) for number in range(block_count(rows, size))]
    assert [row for one in blocks for row in range(one.begin, one.end)] == list(range(rows))
    assert all(0 < one.end - one.begin <= size for one in blocks)


@given(data=st.data(), rows=st.integers(0, 200), size=st.integers(1, 20), most=st.integers(1, 6))
def test_what_is_computed_in_any_order_is_written_in_order(
    data: st.DataObject, rows: int, size: int, most: int
) -> None:
    count = block_count(rows, size)
    done = data.draw(st.integers(0, count))
    window: Window[int] = Window(rows, size, done=done, most=most)
    under_way: list[int] = []
    written: list[int] = []
    while not window.over:
        while (one := window.begin()) is not None:
            under_way.append(one.number)
        waiting = window.written
        number = under_way.pop(data.draw(st.integers(0, len(under_way) - 1)))
        for ready, result in window.finish(number, number * 7):
            assert result == ready.number * 7
            written.append(ready.number)
        assert window.written >= waiting
        assert not under_way or max(under_way) < done + len(written) + most
    assert written == list(range(done, count)) and not under_way
    assert window.begin() is None


def test_a_block_is_taken_once() -> None:
    window: Window[str] = Window(10, 5, done=0, most=2)
    assert [window.begin(), window.begin(), window.begin()] == [block(0, 10, 5), block(1, 10, 5), None]
    assert window.finish(1, "b") == []
    for number in (1, 2):
        with pytest.raises(ValueError, match=f"block {number} was not begun, or was computed twice"):
            window.finish(number, "again")
    assert [result for _, result in window.finish(0, "a")] == ["a", "b"]
    assert window.over


def test_rows_that_are_large_make_small_blocks() -> None:
    assert [block_size(size) for size in (0, 4, 1 << 20, 1 << 40)] == [512, 512, 32, 1]
    assert block_size(4, batched=False) == 64
