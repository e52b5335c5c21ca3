"""Units, and which worker drives which lanes.

A step is cut into a fixed number of lanes; a worker drives some of them. Which ones never changes a result,
only how long a step takes, so everything here is about time:

* `seconds` are seconds that one lane's unit takes on a worker. One that is not measured (missing, zero, or no
  finite number) counts as the median of the measured ones, and as 1.0 if there are none.
* A step is as slow as its slowest worker: `max(lanes it drives * its seconds)`. `assign` makes that as small
  as it can be. A slow worker may end up with no lane at all.
* Each worker drives one contiguous run, in the order the workers are given, so that it sends few partial sums.
* An assignment changes only for a real gain (`rebalanced`), and then with the reason as a sentence.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median

from holdfast.core.tree import maximal_nodes
from holdfast.errors import listed

__all__ = ["Unit", "assign", "filled", "rebalanced", "shares", "step_seconds"]


@dataclass(frozen=True, slots=True, order=True)
class Unit:
    """One piece of work: the gradient of one lane's share of one step's global batch."""

    step: int
    lane: int


def shares(batch: int, num_lanes: int) -> tuple[range, ...]:
    """Return each lane's share of the positions [0, batch) of a global batch.

    Shares are contiguous and differ by at most one; the larger ones come first. When the batch is smaller
    than the lanes, the last shares are empty.

    >>> shares(5, 3)
    (range(0, 2), range(2, 4), range(4, 5))
    """
    if batch < 0 or num_lanes < 1:
        raise ValueError(f"a batch of {batch} cannot be shared among {num_lanes} lanes")
    size, larger = divmod(batch, num_lanes)
    starts = [lane * size + min(lane, larger) for lane in range(num_lanes + 1)]
    return tuple(map(range, starts[:-1], starts[1:]))


def assign(num_lanes: int, workers: Sequence[int], seconds: Mapping[int, float]) -> tuple[int, ...]:
    """Return lane -> worker, such that the step takes as little time as it can.

    Where equally fast workers tie for a lane, either the first ones or the last ones get more, whichever cuts
    the run into fewer partial sums.

    >>> assign(6, [1, 2, 3], {1: 0.1, 2: 0.1, 3: 0.4})
    (1, 1, 1, 2, 2, 2)
    """
    if num_lanes < 1 or not workers or len(set(workers)) != len(workers):
        raise ValueError(f"{num_lanes} lanes cannot be assigned to workers {list(workers)}")
    speed = filled(workers, seconds)
    first, last = (_layout(workers, _counts(num_lanes, workers, speed, sign)) for sign in (1, -1))
    return last if _partial_sums(last) < _partial_sums(first) else first


def step_seconds(driver: Sequence[int], seconds: Mapping[int, float]) -> float:
    """Return how long a step will take: its slowest worker's time."""
    speed = filled(sorted(set(driver)), seconds)
    return max(count * speed[worker] for worker, count in Counter(driver).items())


def rebalanced(
    current: Sequence[int], workers: Sequence[int], seconds: Mapping[int, float], gain: float
) -> tuple[tuple[int, ...], str] | None:
    """Return a better assignment and why, or None where the current one is good enough.

    Good enough: the step would not become shorter by more than `gain`. An assignment that names a worker
    who is not in `workers` is never good enough.
    """
    new = assign(len(current), workers, seconds)
    if gone := sorted(set(current) - set(workers)):
        lanes = [lane for lane, worker in enumerate(current) if worker in gone]
        return new, f"lanes {listed(lanes, 8)} have no driver in the crew: gone are workers {listed(gone, 8)}"
    speed = filled(workers, seconds)
    before, after = step_seconds(current, speed), step_seconds(new, speed)
    if after >= before * (1 - gain):
        return None
    slowest = max(Counter(current).items(), key=lambda item: (item[1] * speed[item[0]], -item[0]))[0]
    lanes_now, lanes_then = list(current).count(slowest), new.count(slowest)
    if not any(_measured(seconds.get(worker)) for worker in workers):
        return new, f"worker {slowest} goes from {lanes_now} to {lanes_then} lanes; no speeds are measured yet"
    return new, (
        f"a step should take {after:.3g} s and not {before:.3g} s ({1 - after / before:.0%} less): worker {slowest} "
        f"takes {speed[slowest]:.3g} s a lane (median {median(speed.values()):.3g} s) "
        f"and goes from {lanes_now} to {lanes_then} lanes"
    )


def filled(workers: Sequence[int], measured: Mapping[int, float]) -> dict[int, float]:
    """What was measured of each of these; of one that was not the median of the others, or 1.0 if there are none.

    >>> filled([1, 2, 3, 4], {1: 3.0, 2: 5.0, 3: float("nan")})
    {1: 3.0, 2: 5.0, 3: 4.0, 4: 4.0}
    """
    known = {worker: measured[worker] for worker in workers if _measured(measured.get(worker))}
    usual = median(known.values()) if known else 1.0
    return {worker: known.get(worker, usual) for worker in workers}


def _measured(value: float | None) -> bool:
    return value is not None and 0.0 < value < inf


def _counts(num_lanes: int, workers: Sequence[int], speed: Mapping[int, float], sign: int) -> list[int]:
    """Give each lane in turn to whoever would be done with it first; for equal pieces that is optimal."""
    counts = [0] * len(workers)
    heap = [(speed[worker], sign * index) for index, worker in enumerate(workers)]
    heapq.heapify(heap)
    for _ in range(num_lanes):
        _, signed = heap[0]
        index = signed * sign
        counts[index] += 1
        heapq.heapreplace(heap, ((counts[index] + 1) * speed[workers[index]], signed))
    return counts


def _layout(workers: Sequence[int], counts: Sequence[int]) -> tuple[int, ...]:
    return tuple(worker for worker, count in zip(workers, counts, strict=True) for _ in range(count))


def _partial_sums(driver: Sequence[int]) -> int:
    counts, start, total = Counter(driver), 0, 0
    for count in counts.values():  # in the order of first appearance, and runs are contiguous
        total += len(maximal_nodes(start, start + count, len(driver)))
        start += count
    return total
