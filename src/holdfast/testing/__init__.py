"""Simulated clusters and faults as data: shipped, so that users can put their own policies to the test.

    >>> from holdfast.testing.cluster import simulate
    >>> simulate(seed=1).outcome
    'end'

`clock` is virtual time, `faults` says what goes wrong, `arena` and `worker` pretend to be shared memory and
processes, `cluster` puts them around the real coordinator.
"""
