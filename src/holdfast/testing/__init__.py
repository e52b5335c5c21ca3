"""Simulated clusters and faults as data: shipped, so that users can put their own policies to the test.

    >>> from holdfast.testing.cluster import simulate
    >>> simulate(seed=1).outcome
    'end'

`clock` is virtual time, `config` and `faults` say what there is and what goes wrong, `model` what must come out.
`fake_arena`, `fake_worker`, `fake_session` and `fake_host` pretend to be shared memory, processes, network and
machines; `cluster` puts them around the real coordinator. `relaxed_cluster` does the same for relaxed modes, with
memory and sessions of their own (`relaxed_state`, `relaxed_session`); `relaxed_audit` says what must hold there.
"""
