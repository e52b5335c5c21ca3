"""The model repository: which models there are, loading and unloading them while the server goes on.

What may be loaded are the folders with which the server was started, under the names that it gave them then. A client
says a name, and at most the number of a version.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.errors import ModelError, NotAModel
from holdfast.model.library import resolve, version_at
from holdfast.serve.models.answers import Unanswered
from holdfast.serve.models.catalog import Catalog
from holdfast.serve.models.library_watch import watch
from holdfast.serve.models.model_service import ModelService, VersionOnDisk
from holdfast.serve.protocol import metadata
from holdfast.serve.protocol.metadata import ModelIndex

__all__ = ["Repository"]


class _Source(NamedTuple):
    path: Path
    folder: bool  #: of versions, and not one of them


class Repository:
    """Opens models, and closes them."""

    def __init__(
        self, catalog: Catalog, make: Callable[[str], ModelService],
        start: Callable[[Coroutine[None, None, None], str], asyncio.Task[None]], note: Callable[[str], None], *,
        drain: float,
    ) -> None:  # fmt: skip
        """`make` gives a service without a version; `start` begins something that goes on in the background."""
        self._catalog, self._make, self._start, self._note, self._drain = catalog, make, start, note, drain
        self._sources: dict[str, _Source] = {}
        self._watching: dict[str, asyncio.Task[None]] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def open(self, name: str, path: Path, first: VersionOnDisk) -> None:
        """A model with which the server is started."""
        self._sources[name] = _Source(path, first.path.parent.resolve() == path.resolve())
        self._open(name).offer(first)

    def index(self, *, ready: bool = False) -> list[dict[str, Any]]:
        """All models, and in which state they are."""
        unloaded = [ModelIndex(name, "", "UNAVAILABLE", "unloaded") for name in sorted(self._catalog.unloaded)]
        return self._catalog.index(ready=ready) + metadata.repository_index(unloaded, ready=ready)

    async def load(self, name: str, version: int = 0) -> int:
        """Serve the newest version there is now, or that one and no other until the next `load`; the version.

        It was loaded, and answers, when this returns. Raises Unanswered.
        """
        source = self._source(name)
        async with self._locks[name]:
            wanted = await asyncio.to_thread(self._wanted, name, source, version)
            number = wanted.manifest.version
            service = self._catalog.services.get(name)
            opened = service is None
            if service is None:
                service = self._open(name)
            try:
                if why := service.demand(wanted, only=bool(version)):
                    raise Unanswered(409, f"{why[:1].upper()}{why[1:]}.")
                await self._until_it_answers(service, number)
            except Unanswered:
                if opened:
                    await self._close(name)
                raise
            self._note(f"{name}: an operator has loaded version {number}{', and no other' if version else ''}")
            return number

    async def unload(self, name: str) -> None:
        """Answer what was taken, and end the model's replicas; they are gone when this returns. Raises Unanswered."""
        self._source(name)
        async with self._locks[name]:
            if name in self._catalog.services:
                await self._close(name)
                self._note(f"{name}: an operator has unloaded it")

    # ------------------------------------------------------------ small steps

    def _source(self, name: str) -> _Source:
        if name not in self._sources:
            there = ", ".join(self._sources) or "none"
            raise Unanswered(404, f"There is no model {name[:100]!r}; this server was started with {there}.")
        return self._sources[name]

    def _wanted(self, name: str, source: _Source, number: int) -> VersionOnDisk:
        """The version on disk, proven whole."""
        try:
            if not number:
                version, passed_over = resolve(source.path)
                for sentence in passed_over:
                    self._note(f"{name}: {sentence}")
            elif source.folder:
                version = version_at(source.path / str(number))
                version.verify()
            else:
                version = resolve(source.path)[0]
                if version.manifest.version != number:
                    there = version.manifest.version
                    raise Unanswered(404, f"{name} is version {there}: the server was started with that one alone.")
        except NotAModel:
            raise Unanswered(404, f"There is no version {number or 'at all'} of {name}.") from None
        except ModelError as error:
            self._note(f"{name}: {error}")  # it names paths, which are not the client's to know
            raise Unanswered(409, f"Version {number or ''} of {name} is not whole; the log says why.") from None
        return VersionOnDisk(version.path, version.manifest)

    def _open(self, name: str) -> ModelService:
        service = self._make(name)
        self._catalog.add(service)
        source = self._sources[name]
        if source.folder:
            self._watching[name] = self._start(watch(source.path, service, self._note), f"watch {name}")
        return service

    async def _close(self, name: str) -> None:
        if (watching := self._watching.pop(name, None)) is not None:
            watching.cancel()
        await self._catalog.services[name].end(self._drain)
        self._catalog.remove(name)

    async def _until_it_answers(self, service: ModelService, number: int) -> None:
        while service.current != number or not service.ready:
            if number in service.refused_versions:
                reason = service.refused_versions[number]
                raise Unanswered(409, f"Version {number} of {service.name} cannot be served: {reason}.")
            if number not in (service.current, service.coming):
                raise Unanswered(409, f"Version {number} of {service.name} has given way to another one.")
            service.changed.clear()
            await service.changed.wait()
