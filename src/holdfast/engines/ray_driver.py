"""Ray's driver: the one process of a run that speaks with Ray. See `ray` for why it is one.

It obeys a launcher over a link (`ray.Order` in, `ray.Told` out), and looks at three things in turn: its link, the
cluster's nodes once a second, and the calls that its posts have not answered yet. What to start where is decided in
`nodes`. When the link ends, so does everything.

Run as `python -m holdfast.engines.ray_driver`, by `ray.RayFleet` only.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import math
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from holdfast.config.limits import CLUSTER
from holdfast.engines.fleet import AgentLost, AgentSaid, AgentUp, FleetLost, FleetWaits, MachineOffer, NodeGone, Site
from holdfast.engines.nodes import AgentPlace, ClusterNode, Strikes, able, again, agent_places, room, shortage, told
from holdfast.engines.ray import Begin, Connect, End, Order, Rest, Told
from holdfast.engines.ray_cluster import AgentProcessLost, AgentProcessUnreachable, RayCluster
from holdfast.errors import HoldfastError, ResourceError
from holdfast.transport.link import Link
from holdfast.transport.processes import die_with_parent

__all__ = ["main"]

#: Lines of an agent that are told with its end.
_LAST = 20
_FIX_SMALL = (
    " Add nodes, or ask for less: --hosts, --workers, --set ray.cpus=1. If the cluster grows by itself, say how long "
    "that may take: --set ray.wait=10m."
)
_FIX_BUSY = " Wait until they are free (`ray status` shows who uses them), or ask for less: --hosts, --workers."


@dataclass(slots=True)
class _AgentHandle:
    """A post on a node, and the call that it has not answered yet."""

    agent: int
    agent_process: Any
    node: ClusterNode
    call: Any
    begun: float
    up: bool = False
    last: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST))


class _Driver:
    """The agents of one run on one cluster. Everything happens in one thread."""

    def __init__(self, cluster: RayCluster, connect: Connect, tell: Link) -> None:
        self._cluster, self._connect, self._link = cluster, connect, tell
        self._bundle = connect.needs.bundle()
        self._offer: MachineOffer | None = None
        self._asked = 0.0  #: when agents were asked for
        self._reserving = self._resting = False
        self._nodes = {node.id: node for node in cluster.nodes()}
        self._held: dict[int, _AgentHandle] = {}
        self._agents = 0  #: ever started; the next one's number
        self._strikes: dict[str, Strikes] = {}
        self._waits = ""  #: what we wait for, as last told
        self._last_loss = ""

    def site(self) -> Site:
        """What the launcher wants to know first."""
        nodes = list(self._nodes.values())
        return Site(self._cluster.here(), room(nodes, self._connect.needs), told(nodes, self._cluster.address))

    def serve(self) -> None:
        """Obey until the launcher wants no more."""
        next_look = -math.inf
        while True:
            order = _heard(self._link, 0.0 if self._held else CLUSTER.link_poll)
            if isinstance(order, End):
                return
            if isinstance(order, Begin):
                self._offer, self._asked = order.offer, time.monotonic()
            elif isinstance(order, Rest):
                self._resting = True
            if self._offer is None:
                continue
            if (now := time.monotonic()) >= next_look:
                self._look(self._offer, now)
                next_look = now + CLUSTER.nodes_poll
            self._listen()

    def end(self) -> None:
        """Ask every post to end its agent, wait for the answers, and leave. Ray ends who does not answer."""
        reached = [held.agent_process for held in self._held.values() if held.node.id in self._nodes]
        with contextlib.suppress(Exception):  # a cluster that is gone has nothing left to end
            ends = [self._cluster.call(agent_process, "end") for agent_process in reached]
            self._cluster.answered(ends, CLUSTER.actors_end, all_of_them=True)
        for held in self._held.values():
            self._cluster.dismiss(held.agent_process)

    # ------------------------------------------------------------ nodes

    def _look(self, offer: MachineOffer, now: float) -> None:
        """See who is there, and start what is missing."""
        nodes = {node.id: node for node in self._cluster.nodes()}
        for gone in self._nodes.keys() - nodes.keys():
            _tell(self._link, NodeGone(self._nodes[gone].name, "Ray says that it is dead"))
        self._nodes = nodes
        if self._resting:
            return
        if not self._agents and self._is_short(offer, now):
            return
        if not self._reserving:
            self._cluster.reserve(self._bundle, offer.hosts)
            self._reserving = True
        group = {bundle: node for bundle, node in self._cluster.reserved().items() if node in nodes}
        if len(group) < offer.hosts and not self._agents:  # all at first, or none
            if now - self._asked >= CLUSTER.busy + self._connect.wait:
                raise ResourceError(
                    f"Ray has reserved nothing in {now - self._asked:.0f} s, though there seems to be room: "
                    f"{told(list(nodes.values()), self._cluster.address)}. `ray status` shows what it waits for."
                )
            return
        taken = [held.node.id for held in self._held.values()]
        barred = {node for node, strikes in self._strikes.items() if strikes.until > now}
        for agent_place in agent_places(nodes, group, taken, barred, offer.most, self._connect.needs):
            self._start(offer, agent_place, now)
        lost = {node for node, strikes in self._strikes.items() if strikes.until == math.inf}
        if not self._held and not any(able(node, self._connect.needs) for id, node in nodes.items() if id not in lost):
            raise ResourceError(
                "No agent is left, and none can be started: on every node that is large enough, one has ended in a way "
                f"that trying again does not change. The last one was {self._last_loss}. What they said is in the "
                "run's logs (agent-N.log)."
            )

    def _is_short(self, offer: MachineOffer, now: float) -> bool:
        """Whether there is no room yet; says why, and raises ResourceError once that has lasted too long.

        What is reserved for us is not free any more, so who has reserved is not short of it. But a group that is larger
        than the cluster is asked for while we wait: that is what makes a cluster grow.
        """
        group = self._cluster.reserved()
        if len(group) == offer.hosts:
            return False
        short = shortage(list(self._nodes.values()), offer.hosts, self._connect.needs, self._cluster.address)
        if short is None:
            return False
        wait = self._connect.wait if short.small else max(CLUSTER.busy, self._connect.wait)
        if now - self._asked >= wait:
            raise ResourceError(short.sentence + (_FIX_SMALL if short.small else _FIX_BUSY))
        if short.sentence != self._waits:
            self._waits = short.sentence
            _tell(self._link, FleetWaits(short.sentence))
        if not self._reserving:
            self._cluster.reserve(self._bundle, offer.hosts)
            self._reserving = True
        return True

    # ------------------------------------------------------------ posts

    def _start(self, offer: MachineOffer, agent_place: AgentPlace, now: float) -> None:
        agent_process = self._cluster.agent_process(agent_place, self._bundle)
        # The secret goes with a call, not with the post's making, which Ray writes down.
        call = self._cluster.call(agent_process, "begin", list(offer.words), offer.secret, offer.folder)
        self._held[self._agents] = _AgentHandle(self._agents, agent_process, self._nodes[agent_place.node], call, now)
        self._agents += 1

    def _listen(self) -> None:
        """Take in what posts answer."""
        calls = {held.call: held for held in self._held.values()}
        for call in self._cluster.answered(list(calls), CLUSTER.link_poll):
            held = calls[call]
            try:
                self._take(held, self._cluster.answer(call))
            except AgentProcessLost as error:
                self._lost(held, None, str(error), hopeless=error.hopeless)
            except AgentProcessUnreachable as error:
                if not held.up:
                    self._lost(held, None, f"it could not be started: {error}")
                    continue
                time.sleep(CLUSTER.link_poll)  # Ray says so at once, and again, until it knows better
                held.call = self._cluster.call(held.agent_process, "news", CLUSTER.news)

    def _take(self, held: _AgentHandle, answer: Any) -> None:
        if held.up:
            lines, code = answer
            held.last.extend(lines)
            for some in _payloads(lines):
                _tell(self._link, AgentSaid(held.agent, some))
            if code is not None:
                self._lost(held, code, f"it ended with {_ended(code)}")
                return
        else:
            pid, _ = answer
            held.up = True
            if pid:
                _tell(self._link, AgentUp(held.agent, held.node.name, pid))
        held.call = self._cluster.call(held.agent_process, "news", CLUSTER.news)

    def _lost(self, held: _AgentHandle, code: int | None, reason: str, *, hopeless: bool = False) -> None:
        now = time.monotonic()
        strikes = again(self._strikes.get(held.node.id, Strikes()), code, now - held.begun, now)
        if hopeless:
            strikes = strikes._replace(until=math.inf)
        self._strikes[held.node.id] = strikes
        self._last_loss = f"on {held.node.name}, {reason}"
        del self._held[held.agent]
        self._cluster.dismiss(held.agent_process)
        final = strikes.until == math.inf
        _tell(self._link, AgentLost(held.agent, held.node.name, code, reason, list(held.last), final=final))


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until the launcher is gone."""
    parser = argparse.ArgumentParser(prog="holdfast.engines.ray_driver")
    parser.add_argument("--control", type=int, required=True, help="descriptor of the link to the launcher")
    parser.add_argument("--parent", type=int, required=True, help="pid of the launcher")
    parser.add_argument("--cluster", required=True, help="module:class that is the cluster")
    options = parser.parse_args(argv)
    die_with_parent(options.parent)
    link = Link.from_fd(options.control)
    module, _, name = options.cluster.partition(":")
    connect = _heard(link, None)
    if not isinstance(connect, Connect):
        return 0
    cluster: RayCluster | None = None
    try:
        cluster = getattr(importlib.import_module(module), name)(connect.address)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)  # Ray has taken them; we leave with the launcher
        _drive(_Driver(cluster, connect, link), link)
    except HoldfastError as error:
        _tell(link, FleetLost(type(error).__name__, str(error)))
    finally:
        if cluster is not None:
            cluster.leave()
    return 0


def _drive(driver: _Driver, link: Link) -> None:
    try:
        _tell(link, driver.site())
        driver.serve()
    finally:
        driver.end()


def _heard(link: Link, seconds: float | None) -> Order | None:
    """The launcher's next order, if one comes in time. The end of the link is one too."""
    if not select.select([link], [], [], seconds)[0]:
        return None
    frame = link.recv()
    return End() if frame is None else msgspec.msgpack.decode(frame.data, type=Order)


def _tell(link: Link, message: Told) -> None:
    link.send(msgspec.msgpack.encode(message))


def _payloads(lines: Sequence[str]) -> list[list[str]]:
    """The lines in pieces that a link takes."""
    payloads: list[list[str]] = []
    left = 0
    for line in lines:
        size = len(line.encode()) + 8
        if size > left:
            payloads.append([])
            left = CLUSTER.message_bytes
        payloads[-1].append(line)
        left -= size
    return payloads


def _ended(code: int) -> str:
    return f"status {code}" if code >= 0 else f"signal {-code} ({signal.strsignal(-code)})"


if __name__ == "__main__":
    sys.exit(main())
