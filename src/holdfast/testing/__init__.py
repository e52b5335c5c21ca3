"""Simulated clusters and faults as data: shipped, so that users can put their own policies to the test.

    >>> from holdfast.testing.cluster import simulate
    >>> simulate(seed=1).outcome
    'end'

`clock` is virtual time, `config` and `faults` say what there is and what goes wrong, `model` what must come out.
`arena`, `worker`, `ferry` and `host` pretend to be shared memory, processes, network and machines; `cluster` puts
them around the real coordinator. `servers`, with `pushes` and `tally`, is a cluster of its own: a thousand lanes and
fifty servers around the rule of `core.clocks` and the placing of `coordinator.owning`; `audit` says what must hold.
"""
