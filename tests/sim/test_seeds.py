"""Two thousand random clusters under random faults: no violation; every fourth twice, with the same trace both times.

A failure names its seed; `simulate(seed)` or `simulate(seed, draw_hosts(seed))` plays it again, event by event.
"""

from __future__ import annotations

import pytest

from holdfast.testing.cluster import draw, draw_hosts, simulate

SEEDS, HOST_SEEDS, CHUNK, TWICE = 1500, 800, 50, 4


@pytest.mark.parametrize("start", range(0, SEEDS, CHUNK))
def test_seeds(start: int) -> None:
    for seed in range(start, start + CHUNK):
        report = simulate(seed, draw(seed))
        assert report.story
        if seed % TWICE == 0:
            assert simulate(seed).trace_hash == report.trace_hash, f"seed {seed} went two ways"


@pytest.mark.parametrize("start", range(0, HOST_SEEDS, CHUNK))
def test_seeds_on_several_hosts(start: int) -> None:
    for seed in range(start, start + CHUNK):
        report = simulate(seed, draw_hosts(seed))
        assert report.story
        if seed % TWICE == 0:
            assert simulate(seed, draw_hosts(seed)).trace_hash == report.trace_hash, f"seed {seed} went two ways"
