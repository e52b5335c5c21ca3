"""Every duration and limit of Holdfast, with its default, in one place. `holdfast run --show-config` shows them all.

`CrewConfig` is set by the user (`--set crew.settle=30s`) and travels to the machine, the monitor and the agents. The
other sections are fixed: they bound what a slow or hostile peer can cost, or say how often a loop looks, and no run
needs another value. A module reads them where it needs them: `NETWORK.dial`.

What is not here: numbers that are part of a format (`transport.frames`, the ledger), that the kernel gives, that change
a result (`core`), and sizes of buffers that only matter for speed.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

__all__ = [
    "AGENT", "CHECKPOINT", "CLUSTER", "CONTROL", "FIXED", "NETWORK", "NOTICE", "PROCESS", "SCREEN", "SERVING", "STORE",
    "TORCHRUN", "TRANSFER", "WORKER", "CrewConfig", "Seconds",
]  # fmt: skip

#: A time. People write 30s, 2m or 1h30m for it.
Seconds = Annotated[float, msgspec.Meta(title="seconds")]


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of one part of Holdfast."""


class CrewConfig(_Section, frozen=True):
    """How patient the run is with its crew. All times are seconds (`--set crew.settle=30s` works too)."""

    #: After the first worker is ready, wait this long for the others before training without them.
    join_grace: Seconds = 5.0
    #: Workers that may be lost in a row, by bad luck, without one step of progress.
    luck_budget: int = 5
    #: Workers that may be lost at one unit before it is called bad.
    unit_attempts: int = 3
    #: A worker stopped by the system (SIGSTOP) for longer than this, and than 5 units, is replaced.
    frozen_limit: Seconds = 1.0
    #: A unit may take at least this long before its worker counts as hung ...
    hang_limit: Seconds = 30.0
    #: ... and at least so many times the slowest unit seen.
    hang_factor: float = 20.0
    #: The same outside of a unit (start-up, evaluation, saving), where less is known.
    idle_limit: Seconds = 600.0
    #: Least time between two changes made only for speed.
    settle: Seconds = 1.0
    #: Least part of the step time that another distribution of lanes or slices must save.
    gain: float = 0.15
    #: Least part of all the time that moving slices between servers must save.
    worth: float = 0.02
    #: A worker that was left without lanes because it is slow is tried again after this, then 2x, 4x, ...
    probe: Seconds = 5.0
    #: Longest time between two such tries.
    probe_limit: Seconds = 300.0
    #: An unanswered message is sent again after this.
    repeat: Seconds = 0.5
    #: How long identical failures are gathered, so that they are told once.
    gather: Seconds = 0.3
    #: How long a worker may take to leave after its script has ended.
    exit_grace: Seconds = 10.0
    #: A host that is silent for so many steps counts as lost ...
    silence_factor: float = 4.0
    #: ... but not before this time ...
    silence_limit: Seconds = 1.5
    #: ... and not later than this.
    silence_most: Seconds = 30.0
    #: How long after one host could not reach another the reports of other hosts are awaited: one try to reach it.
    unreached: Seconds = 6.0


class _Control(_Section, frozen=True):
    """The coordinator and those who ask it something."""

    #: The wake-up descriptors of a whole crew travel in one message, and the kernel takes 253 of them.
    max_lanes: int = 234
    max_servers: int = 16  #: on one host, for the same reason; more would have little to do
    tick: Seconds = 0.2  #: between two looks at the workers, for what no message tells
    stop_grace: Seconds = 0.2  #: for workers of a run that failed, to write a sentence into their log
    answer: Seconds = 5.0  #: for the launcher to answer `holdfast status`; it answers between two callbacks
    request_bytes: int = 4096
    answer_bytes: int = 192 * 1024  #: room for the status of a few hundred workers
    accept_pause: Seconds = 0.5  #: without accepting, when there is no descriptor left
    heard_at_once: Seconds = 0.5  #: of the time between two looks no more counts as silence of a host
    paced_steps: int = 5  #: of which the limit of silence follows
    watched_at_once: Seconds = 1.0  #: of the time between two looks no more counts against a worker
    least_half_life: Seconds = 0.1  #: of what was measured of servers
    most_half_life: Seconds = 4.0
    stacks: Seconds = 1.0  #: for a worker's stacks to be written
    stacks_poll: Seconds = 0.05


class _Network(_Section, frozen=True):
    """Connections between machines."""

    dial: Seconds = 5.0  #: one try to reach another host
    dial_again: Seconds = 0.5  #: between two tries, where none of its addresses answered
    attach_again: Seconds = 0.05  #: between two tries to reach a host that has not begun the generation yet
    arrival: Seconds = 10.0  #: for another host of the generation to be reached
    early: int = 256  #: connections that wait for their generation; more than any crew opens
    donor: Seconds = 5.0  #: to reach a donor
    donor_poll: Seconds = 0.1
    tcp_silence: int = 6  #: unanswered TCP probes, 0.2 s after the first, then 2x, 4x, ...: 12 s at least
    handshake: Seconds = 5.0
    handshakes: int = 64  #: at a time
    handshake_bytes: int = 128 * 1024
    refusal: Seconds = 1.0  #: for a refused peer to read why
    refused_bytes: int = 256 * 1024  #: of a refused peer that are read and dropped
    accepted_at_once: int = 16  #: before those that were accepted have their turn
    backlog: int = 512  #: connections that the kernel holds
    refusals_told: int = 256  #: so that a peer with many addresses cannot fill a disk
    accept_pause: Seconds = 0.2  #: without accepting, for want of descriptors or memory
    rest_factor: float = 4.0  #: so much longer than it worked the listener rests, under a flood ...
    rest_most: Seconds = 0.05  #: ... but no longer
    queued_messages: int = 4096  #: more means that the other side reads no more
    queued_bytes: int = 32 * 1024 * 1024
    close: Seconds = 1.0  #: for the rest to be sent when a channel is closed
    long_round_trip: Seconds = 0.005  #: machines of one site are closer
    kernel: Seconds = 2.0  #: for the kernel to list interfaces
    probe_silence: Seconds = 5.0  #: of a connection within a measurement
    probe_seconds: Seconds = 1.0  #: that a peer may ask for
    probe_bytes: int = 64 * 2**20  #: that a peer may ask for
    probe_turn: Seconds = 60.0  #: for a connection that answered to have its turn
    probe_burst: Seconds = 0.15  #: in each direction, to choose a way
    probe_thorough: Seconds = 0.3  #: the same for a person: a slow link takes a while to find its rate
    survey: Seconds = 120.0  #: on another machine
    address: Seconds = 2.0  #: for an address to answer `holdfast doctor`


class _Agent(_Section, frozen=True):
    """`holdfast join` and the hosts that it brings."""

    tick: Seconds = 0.2  #: between two signs of life, and between two looks at the workers
    first_silence: Seconds = 30.0  #: of the coordinator, until it has told its limit
    dial: Seconds = 10.0  #: one try to reach the run
    look_for: Seconds = 60.0  #: a run that was lost, unless --wait says otherwise
    good_visit: Seconds = 30.0  #: a visit this long was no failure: the next one is not put off for it
    leave: Seconds = 3.0  #: at the end of the run, to end its processes and close the connection
    slots: int = 4096
    log_backlog: int = 1024 * 1024  #: bytes of logs are sent while no more than this waits to be sent
    log_piece: int = 256 * 1024  #: of one file at a time
    log_round: int = 1024 * 1024  #: of all files in one round
    state_backlog: int = 4 * 1024 * 1024  #: bytes of a state are sent while no more than this waits to be sent
    state_piece: int = 512 * 1024  #: of one section at a time
    state_poll: Seconds = 0.002  #: between two looks whether more can be sent
    state_bytes: int = 1 << 42  #: of a state: more is a mistake
    script_bytes: int = 4 * 1024 * 1024  #: that travel with a script; more beside it is not the script


class _Process(_Section, frozen=True):
    """Processes of this machine."""

    reap: Seconds = 10.0  #: the kernel needs milliseconds; a process that waits for a dead disk may never end
    poll: Seconds = 0.001  #: between two looks whether a process has ended
    orphans: Seconds = 5.0  #: between two looks for orphans to be reaped
    fetcher_death: Seconds = 0.2  #: in which a fetching process of a loader that is about to die does so


class _Transfer(_Section, frozen=True):
    """Loops that look at shared memory for something to send, or for a state to be complete."""

    manifest_poll: Seconds = 0.001  #: for the manifest of an arena that was just made
    state_poll: Seconds = 0.002  #: for the source to complete its step
    sums_poll: Seconds = 0.001  #: for a donor to write down the sums of a step
    donor_poll: Seconds = 0.0005
    replica_poll: Seconds = 0.0005  #: for a version to be complete
    snapshot_poll: Seconds = 0.0002  #: for the version that a snapshot is taken of


class _Worker(_Section, frozen=True):
    """Worker processes."""

    repeat: Seconds = 0.5  #: an unanswered message to the coordinator is sent again after this
    clock_near: Seconds = 86400.0  #: a number this near to the time of day is taken for a reading of the clock
    clock_before: Seconds = 60.0  #: a script may have read a clock so long before it joined
    verifying: float = 0.01  #: part of the time that verifying units may take, unless a share was asked for
    second: Seconds = 10.0  #: for a unit to be computed a second time, at least ...
    second_factor: float = 10.0  #: ... and so many times what the first time took
    script_apart: Seconds = 5.0  #: for which a worker of another host may seem to be further on in the script


class _Checkpoint(_Section, frozen=True):
    """Checkpoints of a going run."""

    poll: Seconds = 0.05  #: between two looks whether one is due
    patience: Seconds = 60.0  #: for a version to be complete of which one can be taken
    at_end: Seconds = 30.0  #: for the one before a run ends because it was asked to


class _Notice(_Section, frozen=True):
    """Looking whether this machine is about to be taken away."""

    poll: Seconds = 1.0  #: between two looks
    answer: Seconds = 1.0  #: for a URL to answer
    command: Seconds = 5.0  #: for a command to end


class _Store(_Section, frozen=True):
    """The parameter store."""

    timeout: Seconds = 60.0  #: of a verb, unless its caller says otherwise
    start: Seconds = 60.0  #: of a new server
    deaths: int = 3  #: in a row without a change: then a server is not replaced, what it is asked kills it
    retry: Seconds = 0.05  #: until a server that could not take a message gets it again
    dial: Seconds = 5.0
    dial_again: Seconds = 0.2  #: between two tries to reach a server of another machine
    dial_poll: Seconds = 0.01
    accept_pause: Seconds = 0.2  #: without accepting, for want of descriptors or memory
    together: Seconds = 2e-3  #: answers to requests that came together are held no longer, to be sent together
    spin: Seconds = 500e-6  #: before sleeping: a value of a megabyte is written, applied and shown in less
    core_taken: Seconds = 50e-6  #: an offered core that is not back after this is in use
    last_words: Seconds = 1.0  #: for a proxy to tell its client why it ends
    keys: int = 8192  #: of one server
    clients: int = 256  #: that one server remembers
    name_bytes: int = 200  #: of a key, a barrier or a client


class _Torchrun(_Section, frozen=True):
    """Scripts that torchrun has started."""

    rendezvous: Seconds = 600.0  #: for all ranks to come
    report: Seconds = 10.0  #: until it is told for the first time which ranks are awaited; then 2x, 4x, ...
    poll: Seconds = 0.1
    store_dial: Seconds = 5.0  #: between two tries Ctrl-C is heard
    linger: Seconds = 30.0  #: rank 0 keeps its store open for ranks that were there and seem to be gone
    summary: Seconds = 30.0  #: for the helper to end once the run has ended
    failure: Seconds = 3.0  #: for a failed rank to learn whether the run has failed
    helper_tick: Seconds = 0.1
    helper_end: Seconds = 30.0  #: for a helper to end by itself when no rank is left, or the run has ended
    dial: Seconds = 5.0  #: one try of a helper to reach the run
    dial_all: Seconds = 60.0  #: all of them
    late_ranks: Seconds = 5.0  #: for ranks to come and hear why there is no run for them
    helper_poll: Seconds = 0.5
    error_text: int = 4096  #: characters that a rank is told
    exit_grace: Seconds = 5.0  #: for the ranks of a host that has ended
    exit_window: Seconds = 0.5  #: ranks that end within it count as one end


class _Cluster(_Section, frozen=True):
    """Ray, Slurm and Kubernetes."""

    leave: Seconds = 5.0  #: for agents to leave by themselves when the run has ended
    connect: Seconds = 60.0  #: to start Python, import ray and reach the cluster
    address: Seconds = 5.0  #: for the head node to answer
    close: Seconds = 15.0  #: for agents on nodes that answer to be gone; their processes are killed
    news: Seconds = 20.0  #: for which an actor waits for news before it answers that there are none
    busy: Seconds = 30.0  #: for nodes in use to become free: another run may just be ending
    actors_end: Seconds = 8.0  #: for actors to tell that their agents are gone
    healthy: Seconds = 30.0  #: an agent that lived this long was well: its end tells nothing about the next one
    tries: int = 3
    nodes_poll: Seconds = 1.0  #: between two looks at the nodes
    link_poll: Seconds = 0.1  #: longest time without a look at the link to the launcher
    lines: int = 2000  #: of an agent, for a reader that does not come; the oldest go first
    line_text: int = 2000  #: characters
    answer_bytes: int = 32 * 1024
    message_bytes: int = 48 * 1024  #: of output in one message to the launcher
    config_map_bytes: int = 2**20


class _Serving(_Section, frozen=True):
    """`holdfast serve`, here and on several machines; `holdfast predict`."""

    late: Seconds = 0.05  #: that a batch takes at least before anybody looks whether its replica was stopped
    busy_look: Seconds = 0.02  #: between two looks at the clock while something waits or is computed
    idle_look: Seconds = 0.25  #: the same while nothing is; and between two looks whether replicas were stopped
    replica_end: Seconds = 5.0  #: for a replica that was ended to be gone
    new_versions: Seconds = 1.0  #: between two looks for new versions, or new checkpoints
    warm: Seconds = 0.5  #: for which a replica computes batches of the example, to learn what they take
    health_look: Seconds = 0.1  #: between two looks for who watches the health of a server
    sweep: Seconds = 1.0  #: between two looks for clients that take too long
    handshake: Seconds = 10.0  #: that a client may take over that of TLS
    parting: Seconds = 5.0  #: for which clients may read their last answers
    parting_look: Seconds = 0.01  #: between two looks whether they have
    flush: Seconds = 0.25  #: between two writes of the log of requests
    commit: Seconds = 0.5  #: of work of `holdfast predict` that a kill may cost
    job_look: Seconds = 0.5  #: between two lines of its progress on a terminal
    no_replica: Seconds = 60.0  #: without a replica that computes, after which it waits no more
    scaling_look: Seconds = 0.2  #: between two looks whether there are enough replicas
    beat: Seconds = 0.5  #: between two signs of life of a machine that has replicas
    silence: Seconds = 3.0  #: of a machine, after which it counts as lost
    opening: Seconds = 15.0  #: for a machine to connect for a replica that it was asked for
    look: Seconds = 0.2  #: between two looks whether replicas were stopped, and are well placed
    gateway: Seconds = 20.0  #: for the process that holds the connections to be up
    gateway_again: Seconds = 0.5  #: until that is started again, once it was lost
    trim: Seconds = 5.0  #: between two looks whether replicas have printed too much
    leave: Seconds = 30.0  #: for the replicas of a machine that leaves to be replaced elsewhere
    avoided: Seconds = 0.5  #: for which a machine is avoided where a replica was lost; twice, 4x, ... where it failed
    doublings: int = 6  #: of that, at the most
    gather: Seconds = 3.0  #: after a machine has joined, for others to come before it takes more than it has room for
    farewell: Seconds = 2.0  #: for machines to be told that the server ends
    file_piece: int = 4 * 2**20  #: bytes of a model's file in one message
    batch_bytes: int = 2**32  #: of one batch between machines: more is a mistake


class _Screen(_Section, frozen=True):
    """What a run shows."""

    update: Seconds = 0.25  #: of the progress line
    plain: Seconds = 5.0  #: between two lines where there is no terminal
    rate_window: Seconds = 4.0  #: over which samples per second are counted
    wait_memory: Seconds = 2.0  #: over which the share of a worker's waiting is averaged
    wait_noticed: float = 0.3  #: the share from which on it is told


CONTROL, NETWORK, AGENT, PROCESS, TRANSFER = _Control(), _Network(), _Agent(), _Process(), _Transfer()
WORKER, CHECKPOINT, STORE, TORCHRUN = _Worker(), _Checkpoint(), _Store(), _Torchrun()
CLUSTER, SCREEN, NOTICE, SERVING = _Cluster(), _Screen(), _Notice(), _Serving()

#: Sections that `--show-config` shows and nothing sets.
FIXED: dict[str, msgspec.Struct] = {
    "control": CONTROL, "network": NETWORK, "agent": AGENT, "process": PROCESS, "transfer": TRANSFER, "worker": WORKER,
    "checkpoint": CHECKPOINT, "notice": NOTICE, "store": STORE, "torchrun": TORCHRUN, "cluster": CLUSTER,
    "screen": SCREEN, "serving": SERVING,
}  # fmt: skip
