"""Who may join: what differs is said with both values, who has which, and what to do."""

from __future__ import annotations

from holdfast.control.membership.blueprint import Part, fingerprint, pack
from holdfast.control.membership.fitness import misfit
from holdfast.control.membership.hosts import Hosts
from holdfast.control.membership.process_names import ProcessNames
from holdfast.control.protocol.messages import Ready

DO = (
    "Build model, optimizer and loader alike in every process: no sizes that are random, or that follow from a rank, a "
    "machine or the files it has; and give every machine the same script, arguments and data."
)


def ready(worker: int, parts: list[Part], arena: int = 4096, *, known: int | None = None, threads: str = "1") -> Ready:
    packed = pack(parts[:known])
    return Ready(worker, {"threads": threads}, "g", fingerprint(parts), arena, 4, parts=packed, num_parts=len(parts))


def cast() -> ProcessNames:
    hosts = Hosts()
    hosts.joined(0, "a", 2)
    hosts.joined(1, "b", 1)
    made = ProcessNames(hosts)
    made.enter(0, host=0)
    made.enter(1, host=0, server=True)
    made.enter(2, host=1)
    return made


def test_mismatched_shapes_are_told_by_name() -> None:
    first, other = ([("parameter fc1.weight", f"[{width}, 784] float32")] for width in (128, 256))
    assert misfit(ready(0, first), ready(2, other), cast()) == (
        "OutOfSync",
        "worker 2 on host 1 has built something else than worker 0 on host 0, which was ready first. They differ in "
        "parameter fc1.weight (worker 0 on host 0: [128, 784] float32; worker 2 on host 1: [256, 784] float32). " + DO,
    )
    assert misfit(ready(0, first), ready(2, first), cast()) is None


def test_a_server_is_called_one() -> None:
    why = misfit(ready(0, []), ready(1, [], threads="2"), cast())
    assert why == (
        "NotExact",
        "server 1 on host 0 does not compute the bits of this run: threads is 2, but 1 on worker 0 on host 0. "
        "Start it on a machine, and with settings, where these are the same.",
    )


def test_a_difference_that_was_cut_off_is_still_one() -> None:
    first = [("parameter a", "[1] float32"), ("parameter b", "[1] float32")]
    other = [("parameter a", "[1] float32"), ("parameter b", "[2] float32")]
    why = misfit(ready(0, first, known=1), ready(2, other, known=1), cast())
    assert why is not None
    assert (
        f"They differ in hash of all parts (worker 0 on host 0: {fingerprint(first)}; worker 2 on host 1: "
        f"{fingerprint(other)}); the first 1 parts are the same. "
    ) in why[1]


def test_more_memory_for_the_same_parts() -> None:
    why = misfit(ready(0, []), ready(2, [], 8192), cast())
    assert why is not None
    assert "They differ in bytes of memory (worker 0 on host 0: 4096; worker 2 on host 1: 8192). " in why[1]
