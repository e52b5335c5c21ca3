"""Which setting of each peer is its best one: what its documentation says there is to be set, tried one by one.

Ours is told the objective, and has no such grid. The best setting is the one with the most requests a second, for each
number of connections by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import Failed
from benchmarks.serving import exchange
from benchmarks.serving.contenders import PEERS, Peer, Server, cores, going, python_of, versions
from benchmarks.serving.load import Load, Plan, load
from benchmarks.serving.networks import answers

__all__ = ["SETTINGS", "Best", "best", "closed"]

_BATCHES, _WAITS = (8, 16, 32, 64), (0.0005, 0.002, 0.01)


def _batching(batches: Sequence[int], waits: Sequence[float]) -> list[tuple[str, ...]]:
    return [("--batch", str(batch), "--wait", str(wait)) for batch, wait in product(batches, waits)]


#: By peer, all that is tried. Without options: no batching.
SETTINGS: dict[str, list[tuple[str, ...]]] = {
    "asgi": [()],
    "litserve": [(*batching, *queue) for queue in ((), ("--fast-queue",)) for batching in _batching(_BATCHES, _WAITS)],
    "ray": [(), *_batching((16, 64), (0.002, 0.01))],
    "bentoml": [(), *_batching((16, 64), (0.05, 1.0))],  # its wait is a latency to keep, and refusals keep it
    "mlserver": [
        (*workers, *batching)
        for workers in (("--workers", "0"), ("--workers", "1"))
        for batching in [(), *_batching((16, 64), (0.0005, 0.002))]
    ],
}
_QUICK: dict[str, list[tuple[str, ...]]] = {
    "litserve": [("--batch", "16", "--wait", "0.002", "--fast-queue")], "ray": [("--batch", "16", "--wait", "0.002")],
    "bentoml": [("--batch", "64", "--wait", "1.0")], "mlserver": [("--workers", "0")],
}  # fmt: skip


class Best(NamedTuple):
    """The best settings of the peers that are here, and what was tried."""

    peers: dict[str, dict[int, Peer]]  #: by name and connections
    tried: dict[str, list[dict[str, object]]]
    notes: list[str]


def closed(server: Server, model: str, connections: int, where: Path, *, warm: float, seconds: float) -> Load:
    """As many requests as are answered, each answer compared with what the model gives. Raises Busy."""
    expected = answers(model, exchange.numbers(server.target, exchange.DIFFERENT, 1))
    plan = Plan(
        target=server.target, connections=connections, seconds=seconds, warm=warm, core=cores()[1], expected=expected
    )
    return load(plan, where)


def best(names: Sequence[str], model: str, connections: Sequence[int], where: Path, *, quick: bool) -> Best:
    """Try them all. A peer that is not installed, or does not start, is left out and named."""
    found: dict[str, dict[int, Peer]] = {}
    tried: dict[str, list[dict[str, object]]] = {}
    notes = []
    for name in names:
        peer, rates = PEERS[name], dict[int, list[tuple[float, Peer]]]()
        if python_of(peer) is None:
            notes.append(f"{peer.name} is not installed here, and left out (python -m benchmarks.serving.contenders)")
            continue
        settings = _QUICK.get(name, SETTINGS[name]) if quick else SETTINGS[name]
        tried[name] = []
        for number, options in enumerate(settings):
            there = where / f"grid-{name}-{number}"
            there.mkdir()
            try:
                with going(peer.with_options(*options), model, peer.encodings[0], there) as server:
                    for count in connections:
                        figures = closed(
                            server, model, count, there / str(count), warm=1, seconds=1 if quick else 3
                        ).figures
                        tried[name].append({"options": options, "connections": count, **figures})
                        rates.setdefault(count, []).append((figures["rate"], peer.with_options(*options)))
            except Failed as error:
                notes.append(f"{peer.name} {' '.join(options)}: {str(error)[:300]}")
        if len(rates) == len(connections):
            found[name] = {count: max(rate, key=lambda pair: pair[0])[1] for count, rate in rates.items()}
            said = "; ".join(f"{' '.join(it.options) or 'no batching'} at {count}" for count, it in found[name].items())
            notes.append(f"{peer.name}: {versions(peer)}, {said}")
    return Best(found, tried, notes)
