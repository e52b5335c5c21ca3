"""What a server answers over gRPC: the Open Inference Protocol and health v1; and, apart from them, the control plane.

Messages in, messages out: `grpc_listener` does the rest.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from typing import Any

from holdfast.config.limits import SERVING
from holdfast.serve.endpoints.grpc_listener import Answers, Call
from holdfast.serve.models.answers import Unanswered
from holdfast.serve.models.catalog import Catalog
from holdfast.serve.models.repository import Repository
from holdfast.serve.protocol import metadata
from holdfast.serve.protocol.errors import BadRequest
from holdfast.serve.protocol.fit import fit
from holdfast.serve.protocol.grpc_messages import Method, from_response, from_view, repository_parameters, to_request
from holdfast.serve.protocol.limits import ProtocolLimits
from holdfast.serve.protocol.repository import check_load, check_repository, check_unload
from holdfast.serve.protocol.requests import InferResponse

__all__ = ["GrpcControl", "GrpcFacts", "GrpcInference"]

_MOST_WATCHERS = 256  # of a server's health


class GrpcFacts:
    """What clients and operators may ask alike: is it up, is it ready, and what is it?"""

    def __init__(self, catalog: Catalog, *, version: str, repository: bool) -> None:
        self._catalog, self._version, self._repository = catalog, version, repository
        self._watchers = 0

    def answers(self) -> Mapping[str, Answers]:
        """By the names of methods."""
        return {
            "ServerLive": self._live, "ServerReady": self._live, "ServerMetadata": self._server,
            "ModelReady": self._model_ready, "Check": self._check, "Watch": self._watch,
        }  # fmt: skip

    def elsewhere(self, method: Method) -> str:
        """Why a method is not answered here."""
        return f"{method.name} is not answered at this port, which is the control plane's: ask the other one."

    async def _live(self, message: Any, call: Call) -> Any:
        what = "ServerLive" if message.DESCRIPTOR.name == "ServerLiveRequest" else "ServerReady"
        return from_view(what, metadata.live(True, self._catalog.ready))

    async def _server(self, message: Any, call: Call) -> Any:
        view = metadata.server_metadata("holdfast", self._version, repository=self._repository)
        return from_view("ServerMetadata", view)

    async def _model_ready(self, message: Any, call: Call) -> Any:
        service = self._catalog.service(message.name, message.version)
        return from_view("ModelReady", metadata.model_ready(message.name, service.ready))

    # ------------------------------------------------------------ health v1

    async def _check(self, message: Any, call: Call) -> Any:
        status = self._status(message.service)
        if status == "SERVICE_UNKNOWN":
            raise Unanswered(404, f"There is neither a service nor a model {message.service[:100]!r}.")
        return from_view("Check", {"status": status})

    async def _watch(self, message: Any, call: Call) -> None:
        if self._watchers >= _MOST_WATCHERS:
            raise BadRequest(429, f"there are {_MOST_WATCHERS} watchers already", "Watch")
        self._watchers += 1
        try:
            told = ""
            while not self._catalog.closed:
                if (status := self._status(message.service)) != told:
                    told = status
                    await call.send(from_view("Watch", {"status": status}))
                await asyncio.sleep(SERVING.health_look)
            if told == "SERVING":
                await call.send(from_view("Watch", {"status": "NOT_SERVING"}))
        finally:
            self._watchers -= 1

    def _status(self, service: str) -> str:
        """Of the server, by the name of its service or none; or of a model, by its name."""
        if service in ("", "inference.GRPCInferenceService"):
            ready = self._catalog.ready
        else:
            try:
                ready = self._catalog.service(service).ready
            except Unanswered:
                return "SERVICE_UNKNOWN"
        return "SERVING" if ready else "NOT_SERVING"


class GrpcInference(GrpcFacts):
    """What clients of models ask for."""

    def __init__(self, catalog: Catalog, limits: ProtocolLimits, *, version: str) -> None:
        super().__init__(catalog, version=version, repository=False)
        self._limits = limits

    def answers(self) -> Mapping[str, Answers]:
        """By the names of methods."""
        return {
            **super().answers(), "ModelInfer": self._infer, "ModelMetadata": self._metadata,
            "ModelConfig": self._config, "ModelStatistics": self._statistics,
        }  # fmt: skip

    def elsewhere(self, method: Method) -> str:
        """Why a method is not answered here."""
        return (
            f"{method.name} belongs to the control plane, which has a port of its own: start the server with "
            "--admin-grpc-port P, and ask there."
        )

    async def _metadata(self, message: Any, call: Call) -> Any:
        return from_view("ModelMetadata", self._catalog.model_metadata(message.name, message.version))

    async def _config(self, message: Any, call: Call) -> Any:
        return from_view("ModelConfig", {"config": self._catalog.config(message.name, message.version)})

    async def _statistics(self, message: Any, call: Call) -> Any:
        return from_view("ModelStatistics", self._catalog.statistics(message.name, message.version))

    async def _infer(self, message: Any, call: Call) -> Any:
        service = self._catalog.service(message.model_name, message.model_version)
        service.check_room()
        assert service.manifest is not None
        asked = to_request(message, self._limits)
        fitted = fit(asked, service.manifest.signature, self._limits)
        left = min((seconds for seconds in (asked.timeout, call.left) if seconds is not None), default=math.inf)
        version = int(asked.version) if asked.version else 0
        answer = await service.infer(
            fitted.request.inputs, fitted.items, version=version, deadline=time.monotonic() + left
        )
        return from_response(InferResponse(service.name, str(answer.version), asked.id, answer.outputs), fitted.request)


class GrpcControl(GrpcFacts):
    """What operators ask for: which models there are, and to load and unload them."""

    def __init__(self, catalog: Catalog, repository: Repository, limits: ProtocolLimits, *, version: str) -> None:
        super().__init__(catalog, version=version, repository=True)
        self._models, self._limits = repository, limits

    def answers(self) -> Mapping[str, Answers]:
        """By the names of methods."""
        return {
            **super().answers(), "RepositoryIndex": self._index, "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
        }  # fmt: skip

    async def _index(self, message: Any, call: Call) -> Any:
        check_repository(message.repository_name)
        return from_view("RepositoryIndex", {"models": self._models.index(ready=message.ready)})

    async def _load(self, message: Any, call: Call) -> Any:
        check_repository(message.repository_name)
        version = check_load(repository_parameters(message.parameters, self._limits))
        await self._models.load(message.model_name, version)
        return from_view("RepositoryModelLoad", {})

    async def _unload(self, message: Any, call: Call) -> Any:
        check_repository(message.repository_name)
        check_unload(repository_parameters(message.parameters, self._limits))
        await self._models.unload(message.model_name)
        return from_view("RepositoryModelUnload", {})
