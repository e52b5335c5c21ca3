"""Simulated clusters and faults as data: shipped, so that users can put their own policies to the test.

    >>> from holdfast.testing.cluster import simulate
    >>> simulate(seed=1).outcome
    'end'

`clock` is virtual time, `config` and `faults` say what there is and what goes wrong, `model` what must come out.
`fake_arena`, `fake_worker`, `fake_session` and `fake_host` pretend to be shared memory, processes, network and
machines; `cluster` puts them around the real coordinator. `servers`, with `server_pushes` and `server_clocks`, is a
cluster of its own: a thousand lanes and fifty servers around the rule of `core.sync.modes` and the placing of
`control.slice_balance`; `server_audit` says what must hold.
"""
