"""Ray: hosts on the nodes of a Ray cluster that is there already (`holdfast run --on ray`).

    launcher ── ray_driver ══ Ray ══ post (an actor) ── guard ── holdfast join ── workers
        ║                                                              ║
        ╚══════════════════ the run's own connection ══════════════════╝

Ray finds room and starts one agent on each node; from there on the agent is a host like any other, and Ray is not in
the way of a step. Nothing of the run goes through Ray but the agent's command, its token, its output and its end.

Ray's driver is a process of its own, and this is the launcher's end of it. A driver is ended by Ray's own code when
the cluster is lost (after minutes, by `exit`), takes over SIGTERM, and brings dozens of threads: none of that may
happen to the process that holds the coordinator.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from holdfast.config.limits import CLUSTER
from holdfast.engines.fleet import FleetEvent, FleetLost, MachineOffer, Site
from holdfast.engines.nodes import Needs
from holdfast.errors import RunError, Unreachable, by_name
from holdfast.transport.link import Link

__all__ = ["DEFAULT_CLUSTER", "Begin", "Connect", "End", "Order", "RayFleet", "Rest", "Told"]

#: What the driver speaks with.
DEFAULT_CLUSTER = "holdfast.engines.ray_cluster:RayCluster"


class Connect(msgspec.Struct, frozen=True, tag=True):
    """To the driver: meet the cluster, and say what is there for hosts with these needs."""

    address: str
    needs: Needs
    wait: float


class Begin(msgspec.Struct, frozen=True, tag=True):
    """To the driver: start agents that become hosts by this."""

    offer: MachineOffer


class Rest(msgspec.Struct, frozen=True, tag=True):
    """To the driver: start no more agents."""


class End(msgspec.Struct, frozen=True, tag=True):
    """To the driver: end everything. So does the end of the link."""


Order = Connect | Begin | Rest | End
Told = FleetEvent | Site


class RayFleet:
    """Starts agents on a Ray cluster. See `fleet.Fleet` for the contract.

    Args:
        address: of the cluster; empty: what RAY_ADDRESS says, or the cluster that this machine is part of.
        needs: what one host takes.
        wait: seconds that a cluster which is too small has to grow.
        logs: where the driver's own output goes, as `ray.log`.
        cluster: what the driver speaks with, as `module:class` (tests put their own there).

    Resources: `close` ends the driver, and with it every agent.
    """

    def __init__(
        self, address: str, needs: Needs, *, wait: float, logs: Path, cluster: str = DEFAULT_CLUSTER
    ) -> None:
        self._connect = Connect(address, needs, wait)
        self._log, self._cluster = logs / "ray.log", cluster
        self._driver: subprocess.Popen[bytes] | None = None
        self._link: Link | None = None
        self._decoder = msgspec.msgpack.Decoder(Told)
        self._over = False

    def connect(self) -> Site:
        """Start the driver, and wait for what it finds."""
        self._open_driver()
        self._say(self._connect)
        deadline = time.monotonic() + CLUSTER.connect
        while (left := deadline - time.monotonic()) > 0:
            assert self._link is not None
            if not select.select([self._link], [], [], left)[0]:
                break
            for told in self._hear():
                if isinstance(told, Site):
                    return told
                if isinstance(told, FleetLost):
                    self.close()
                    raise (by_name(told.error) or RunError)(told.reason)
        self.close()
        raise Unreachable(
            f"The Ray cluster at {self._connect.address or os.environ.get('RAY_ADDRESS') or 'auto'} did not take this "
            f"machine in within {CLUSTER.connect:.0f} s. What Ray says is in {self._log}; `ray status` shows whether "
            "this machine can reach the cluster."
        )

    def open(self, offer: MachineOffer) -> None:
        """Begin to start agents."""
        self._say(Begin(offer))

    def rest(self) -> None:
        """Start no more agents."""
        self._say(Rest())

    def fileno(self) -> int:
        """Readable when there is news."""
        assert self._link is not None, "connect comes first"
        return self._link.fileno()

    def events(self) -> Sequence[FleetEvent]:
        """What happened since the last call. After the end of the driver, nothing."""
        return [told for told in self._hear() if not isinstance(told, Site)]

    def close(self) -> None:
        """End every agent, and the driver."""
        if self._driver is None:
            return
        driver, self._driver, self._over = self._driver, None, True
        self._say(End())
        try:
            driver.wait(CLUSTER.close)
        except subprocess.TimeoutExpired:
            driver.kill()  # Ray ends what its driver has started
            driver.wait()
        if self._link is not None:
            self._link.close()
            self._link = None
        with contextlib.suppress(OSError):
            if self._log.stat().st_size == 0:
                self._log.unlink()

    def _open_driver(self) -> None:
        ours, theirs = Link.pair()
        command = [sys.executable, "-P", "-m", "holdfast.engines.ray_driver"]
        command += ["--control", str(theirs.fileno()), "--parent", str(os.getpid()), "--cluster", self._cluster]
        with theirs, _appended(self._log) as log:
            self._driver = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C in the terminal is the launcher's to hear
            )  # fmt: skip
        ours.setblocking(False)
        self._link = ours

    def _say(self, order: Order) -> None:
        # A driver that is gone is heard of by `events`. The link is empty here: there are four orders in a life.
        if self._link is not None:
            self._link.send(msgspec.msgpack.encode(order))

    def _hear(self) -> list[Told]:
        told: list[Told] = []
        while self._link is not None and not self._over:
            try:
                frame = self._link.recv()
            except BlockingIOError:
                break
            if frame is None:
                self._over = True
                told.append(FleetLost("RunError", self._last_words()))
                break
            told.append(self._decoder.decode(frame.data))
            self._over = isinstance(told[-1], FleetLost)
        return told

    def _last_words(self) -> str:
        said = "it said nothing"
        with contextlib.suppress(OSError, IndexError):
            said = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()][-1][:300]
        return (
            f"The connection to Ray has ended ({said}). Ray ends the hosts that it started; no new ones are started. "
            f"Look at {self._log}, and at the cluster: `ray status`."
        )


def _appended(path: Path) -> BinaryIO:
    try:
        return open(path, "ab")
    except OSError:  # the run goes on; that its directory cannot be written is said by whoever writes its story
        return open(os.devnull, "wb")
