from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import keys
from holdfast.core.keys import key, mix64


def test_keys_are_these_on_every_machine() -> None:
    assert [key(0), key(0, 0), key(1, 2, 3), key(-1, -1)] == [
        0xE220A8397B1DCDAF,
        0x7ECC13A3DA1A7565,
        0x9224636E833D5D98,
        0x19236F6844619CE5,
    ]


def test_mix64_is_the_finalizer_of_splitmix64() -> None:
    # The first output of splitmix64 with seed 0, as published with it.
    assert mix64(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF


def test_streams_are_distinct() -> None:
    streams = [getattr(keys, name) for name in keys.__all__ if name.startswith("STREAM_")]
    assert len(streams) >= 2
    assert len(set(streams)) == len(streams)


def test_no_two_small_names_share_a_key() -> None:
    names: list[tuple[int, ...]] = [(s,) for s in range(50)]
    names += [(s, a) for s in range(50) for a in range(50)]
    names += [(s, a, b) for s in range(20) for a in range(20) for b in range(20)]
    assert len({key(*name) for name in names}) == len(names)


@given(st.integers(), st.lists(st.integers(-(2**63), 2**64), max_size=4))
def test_keys_are_64_bits(seed: int, parts: list[int]) -> None:
    assert 0 <= key(seed, *parts) < 1 << 64


def test_one_bit_of_any_part_turns_half_the_bits() -> None:
    name = [3, keys.STREAM_COMPUTE, 17, 2]
    for part in range(len(name)):
        turned = []
        for bit in range(64):
            other = list(name)
            other[part] ^= 1 << bit
            turned.append((key(*name) ^ key(*other)).bit_count())
        assert min(turned) >= 14  # 32 expected, standard deviation 4
        assert 30 < sum(turned) / 64 < 34
