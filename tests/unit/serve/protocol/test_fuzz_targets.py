"""What `make fuzz` looks at for minutes, for a moment and with whatever hypothesis thinks of."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.fuzz_requests import TARGETS, one_input


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.__name__)
@given(data=st.binary(max_size=400))
def test_no_bytes_do_harm(target: Callable[[bytes], None], data: bytes) -> None:
    target(data)


@given(data=st.binary(max_size=400))
def test_every_input_has_a_target(data: bytes) -> None:
    one_input(data)
