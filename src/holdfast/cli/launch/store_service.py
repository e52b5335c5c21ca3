"""The store service: keeps the parameter store of a run, for scripts that ask for one (`run.store`).

The launcher keeps it, because it outlives every worker: whoever is killed, values and what was counted stay. There is
one store in a run; its servers are started when the first worker asks, in a thread, and end with the launcher, however
that ends. Workers on other hosts come in through a listener of its own, with the run's own credentials. No torch here.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast.control.membership.roster import CrewStatus, titled
from holdfast.control.protocol.messages import SCRIPT, StoreAt, StoreWanted
from holdfast.control.protocol.ports import HostPort
from holdfast.errors import HoldfastError
from holdfast.quantities import Size
from holdfast.store.server.rounds import Clients, client_of
from holdfast.transport.auth.credentials import Credentials

if TYPE_CHECKING:  # a run without a store does not load it
    from holdfast.store.server.supervisor import ServerSupervisor

__all__ = ["StoreService", "crew_of", "differing"]

#: Of processes that have not been in a generation yet.
_COMING = frozenset({"starting", "ready", "seeding", "waiting"})


def crew_of(crew: CrewStatus) -> Clients:
    """Who meets at barriers and broadcasts of the run's store, by the names of its clients. Pure.

    Before the first generation all who were started, once as many machines are there as the run begins with. Then its
    members: who is to leave goes when the others go on, and who is on its way comes in when they do, so neither is
    waited for.
    """
    coming = tuple(client_of(person.row) for person in crew.people if person.stage in _COMING)
    if not crew.generation:
        there = sum(not host.leaving for host in crew.hosts)
        return Clients(coming, complete=bool(coming) and there >= crew.hosts_wanted)
    return Clients(tuple(client_of(person.row) for person in crew.people if person.stage == "member"), coming, True)


def differing(first: StoreWanted, other: StoreWanted, servers: Collection[int] = ()) -> str:
    """Why two processes, some of which are servers, cannot have the same store; empty when they can. Pure."""
    if (first.servers, first.handler, first.memory) == (other.servers, other.handler, other.memory):
        return ""
    who, before = (titled([wanted.worker], servers) for wanted in (other, first))
    return (
        f"{who.capitalize()} asks for a store with {_said(other)}, but {before} has asked for one with "
        f"{_said(first)}, and there is one store in a run. Call run.store with the same arguments in every worker."
    )


def _said(wanted: StoreWanted) -> str:
    memory = f", memory={Size(wanted.memory)}" if wanted.memory else ""
    return f"servers={wanted.servers}, handler={wanted.handler!r}{memory}"


class StoreService:
    """See `control.protocol.ports.StoreService`. `bind` and the credentials are for workers on other hosts.

    Resources: `close` ends the servers.
    """

    def __init__(
        self, script: str, clients: int, *, bind: tuple[str, int] | None = None, ours: Credentials | None = None,
        theirs: Credentials | None = None,
    ) -> None:  # fmt: skip
        self._script, self._clients = Path(script).resolve(), clients
        self._bind, self._ours, self._theirs = bind, ours, theirs
        self._first: StoreWanted | None = None
        self._crew = Clients()
        self._servers: set[int] = set()  # of all that were ever seen
        self._supervisor: ServerSupervisor | None = None
        self._problem = ""
        self._ready = False
        self._asking: list[tuple[StoreWanted, HostPort]] = []
        self._thread: threading.Thread | None = None

    def wanted(self, message: StoreWanted, host: HostPort) -> None:
        """Answer, or begin; called in the loop."""
        if self._first is None:
            self._first = message
            self._thread = threading.Thread(
                target=self._start,
                args=(message, asyncio.get_running_loop()),
                name="holdfast-store-service",
                daemon=True,
            )
            self._thread.start()
        if problem := differing(self._first, message, self._servers):
            host.send(message.worker, StoreAt(message.worker, "", problem=problem))
        elif self._ready:
            host.send(message.worker, self._answer(message, host))
        else:
            self._asking = [(one, at) for one, at in self._asking if one.worker != message.worker] + [(message, host)]

    def crew_changed(self, crew: CrewStatus) -> None:
        """The crew may be another one; called in the loop."""
        self._servers.update(person.worker for person in crew.people if person.server)
        now = crew_of(crew)
        if now != self._crew:
            self._crew = now
            if self._ready and self._supervisor is not None:
                self._supervisor.meets(now)

    def close(self) -> None:
        """End the servers, also those that are just starting. May be called twice."""
        if self._supervisor is not None:
            self._supervisor.close()
        if self._thread is not None:
            self._thread.join()
        if self._supervisor is not None:
            self._supervisor.release()

    def _start(self, wanted: StoreWanted, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread: servers load torch, which takes seconds."""
        from holdfast.store.server.supervisor import ServerSupervisor

        try:
            paths = [str(self._script.parent), *sys.path]
            self._supervisor = supervisor = ServerSupervisor(
                wanted.servers, self._clients, wanted.memory, paths, crew=self._crew
            )
            supervisor.start(wanted.handler.replace(SCRIPT, str(self._script)))
            if self._bind is not None and self._ours is not None and self._theirs is not None:
                supervisor.open_listener((self._bind[0], 0), self._ours, self._theirs)
        except HoldfastError as error:
            self._problem = f"The run's store cannot be started. {error}"
        except Exception as error:
            self._problem = f"The run's store cannot be started: {type(error).__name__}: {error}."
        try:
            loop.call_soon_threadsafe(self._started)
        except RuntimeError:
            pass  # the run is over

    def _started(self) -> None:
        self._ready = True
        if self._supervisor is not None:
            self._supervisor.meets(self._crew)
        asking, self._asking = self._asking, []
        for message, host in asking:
            host.send(message.worker, self._answer(message, host))

    def _answer(self, message: StoreWanted, host: HostPort) -> StoreAt:
        if self._problem or self._supervisor is None:
            return StoreAt(message.worker, "", problem=self._problem)
        address, admission = self._supervisor.address, self._supervisor.listener
        if host.number == 0 or admission is None:
            return StoreAt(message.worker, str(address))
        far = msgspec.structs.replace(address, name=admission.place)
        return StoreAt(message.worker, str(far), far=True)
