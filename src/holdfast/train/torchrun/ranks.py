"""The ranks of a launcher: what a process is told about them, and which of them share a machine. Pure.

torchrun, cluster operators and shell scripts start N processes and tell each which one it is, and where the first of
them can be met: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. The ranks then find out from each other who is where
(see `rendezvous`). Ranks on one *node* share memory; the launcher's own idea of a node (GROUP_RANK) is kept, because
what it starts together it also ends together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from holdfast.errors import ConfigError, UsageError

__all__ = ["ADOPTED", "RankEntry", "RankNode", "Roll", "World", "named", "nodes", "world"]

#: Set in the environment of a rank that has joined: what it starts is not the rank itself.
ADOPTED = "HOLDFAST_ADOPTED"
_ALL = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class World:
    """What the launcher says. `scope` tells one launch, and one restart, from another."""

    rank: int
    size: int
    address: str
    port: int
    scope: str = "/0"
    group: str = ""  #: the launcher's own number of this node, if it has one
    restart: int = 0
    served: bool = False  #: the launcher itself serves the store; otherwise rank 0 does


class RankEntry(msgspec.Struct, frozen=True):
    """What a rank says of itself. `mark` is random: it tells this process from an earlier one of the same rank."""

    rank: int
    mark: str
    machine: str  #: same for two ranks: they reach each other by loopback
    node: str  #: same for two ranks: they can share memory
    version: str = ""


Roll = dict[int, RankEntry]


@dataclass(frozen=True, slots=True)
class RankNode:
    """Ranks that share memory, in order. The first of them leads: it starts the process that speaks for all."""

    ranks: tuple[int, ...]

    @property
    def leader(self) -> int:
        """The rank that leads."""
        return self.ranks[0]


def world(environ: Mapping[str, str], pid: int = 0) -> World | None:
    """The ranks that this process is one of; None: it is alone. `pid` is its own number.

    >>> world({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "gpu7", "MASTER_PORT": "29500"})
    World(rank=1, size=2, address='gpu7', port=29500, scope='/0', group='', restart=0, served=False)
    >>> world({}), world({"WORLD_SIZE": "1", "RANK": "0"}), world({"RANK": "3"})
    (None, None, None)

    Raises:
        UsageError: some of the variables are set and others are not.
        ConfigError: one of them cannot be what it is.
    """
    said = {name: environ[name].strip() for name in _ALL if environ.get(name, "").strip()}
    if environ.get(ADOPTED, str(pid)) != str(pid):
        return None  # started by a rank that has joined already
    if not said.keys() & {"RANK", "WORLD_SIZE"} or said.keys() == {"RANK"}:
        return None  # no launcher, or one that numbers processes which do not know of each other
    if said.get("WORLD_SIZE") == "1":
        return None
    if missing := [name for name in _ALL if name not in said]:
        there = _listed([f"{name} = {value}" for name, value in said.items()])
        undo = _listed([name for name in said if name in ("RANK", "WORLD_SIZE")])
        raise UsageError(
            f"{there} {_is(said)} set in the environment, but {_listed(missing)} {_is(missing)} not. A launcher such "
            f"as torchrun sets all four; set what is missing, or unset {undo} to train in this process alone."
        )
    size = _whole("WORLD_SIZE", said["WORLD_SIZE"], 1)
    restart = _whole("TORCHELASTIC_RESTART_COUNT", environ.get("TORCHELASTIC_RESTART_COUNT", "0"), 0)
    return World(
        rank=_whole("RANK", said["RANK"], 0, size - 1), size=size, address=said["MASTER_ADDR"],
        port=_whole("MASTER_PORT", said["MASTER_PORT"], 1, 65535),
        scope=f"{environ.get('TORCHELASTIC_RUN_ID', '')}/{restart}", group=environ.get("GROUP_RANK", ""),
        restart=restart, served=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )  # fmt: skip


def nodes(roll: Roll) -> list[RankNode]:
    """Who shares memory with whom, by lowest rank: the first node is that of rank 0.

    >>> here, there = RankEntry(0, "", "a", "a/1"), RankEntry(1, "", "b", "b/1")
    >>> nodes({0: here, 1: there, 2: here})
    [RankNode(ranks=(0, 2)), RankNode(ranks=(1,))]
    """
    groups: dict[str, list[int]] = {}
    for rank in sorted(roll):
        groups.setdefault(roll[rank].node, []).append(rank)
    return [RankNode(tuple(group)) for group in groups.values()]


def named(ranks: Collection[int], most: int = 8) -> str:
    """Ranks as a sentence names them.

    >>> named([3]), named([0, 1]), named(range(10), most=3)
    ('rank 3', 'ranks 0 and 1', 'ranks 0, 1, 2 and 7 more')
    """
    some = sorted(ranks)
    if len(some) == 1:
        return f"rank {some[0]}"
    shown = [str(rank) for rank in some[:most]]
    return f"ranks {_listed(shown + ([f'{len(some) - most} more'] if len(some) > most else []))}"


def _whole(name: str, text: str, least: int, most: int | None = None) -> int:
    ends = f"from {least} to {most}" if most is not None else f"of at least {least}"
    if not text.isascii() or not text.isdigit() or int(text) < least or (most is not None and int(text) > most):
        raise ConfigError(name, text, f"must be a whole number {ends}", source="the environment")
    return int(text)


def _listed(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def _is(words: Collection[str]) -> str:
    return "are" if len(words) > 1 else "is"
