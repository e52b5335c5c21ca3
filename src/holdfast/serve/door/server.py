"""The front door: listens, holds every request until it is answered, and keeps the replicas that answer."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
from collections.abc import Callable, Coroutine
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.config.limits import SERVING
from holdfast.errors import ModelError, UsageError
from holdfast.model.manifest import model_name
from holdfast.serve.dispatch.dispatcher import DispatchLimits
from holdfast.serve.dispatch.rollout import RolloutLimits
from holdfast.serve.dispatch.scaling import Scaling, ScalingLimits
from holdfast.serve.door.background import Background
from holdfast.serve.door.exposure import check_exposure, overheard
from holdfast.serve.door.listeners import HttpListeners, bound, shown, tls_context
from holdfast.serve.door.prometheus import MetricsApp, exposition
from holdfast.serve.door.request_log import RequestLog, Selection
from holdfast.serve.endpoints.admin_app import AdminApp
from holdfast.serve.endpoints.authorization import Authorization
from holdfast.serve.endpoints.http_app import HttpInference
from holdfast.serve.endpoints.http_connection import HttpLimits
from holdfast.serve.endpoints.pages import read_pages
from holdfast.serve.machines.autoscaler import autoscale
from holdfast.serve.machines.machines import Machines
from holdfast.serve.models.catalog import Catalog
from holdfast.serve.models.library_watch import first_version
from holdfast.serve.models.model_service import ModelService
from holdfast.serve.models.replica_processes import ReplicaProcesses, ReplicaStarter
from holdfast.serve.models.repository import Repository
from holdfast.serve.models.run_following import RunFollowing, is_run
from holdfast.serve.options import ServeOptions
from holdfast.serve.protocol.limits import ProtocolLimits

if TYPE_CHECKING:  # needs what may not be there
    from holdfast.serve.endpoints.grpc_listener import GrpcListener, GrpcService

__all__ = ["Server"]

_ADMIN_BODY = 1 << 20  # bytes that an operator may send
_FLUSHES_PER_TRIM = 20


class Server:
    """All of a server; use `run`."""

    def __init__(self, options: ServeOptions, directory: Path, scratch: str, say: Callable[[str], None]) -> None:
        self._options, self._directory, self._scratch, self._say = options, directory, scratch, say
        self._catalog = Catalog()
        self._log = RequestLog(directory, Selection(options.objective, options.log_requests), say)
        self._limits = ProtocolLimits(body=options.body)
        self._version = _installed()
        self._grpc: dict[str, GrpcListener] = {}
        self._stack = contextlib.AsyncExitStack()
        self._ended = asyncio.Event()

    async def run(self, ready: Callable[[dict[str, str]], None]) -> None:
        """Serve until a signal ends it. `ready` is told the addresses once every model answers."""
        options = self._options
        check_exposure(options)
        # What clients send, and the token, are in our memory: it goes into no file.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        loop = asyncio.get_running_loop()
        async with self._stack:
            listeners = HttpListeners(options.host, tls_context(options.certificate, options.key))
            self._stack.callback(listeners.close)
            self._bind(listeners)  # first: a port in use is said before anything was started
            self._stack.callback(self._log.flush)
            processes = ReplicaProcesses(self._directory, self._scratch, options.threads)
            self._stack.callback(processes.close)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                loop.add_signal_handler(number, self._asked_to_end, number)
                self._stack.callback(loop.remove_signal_handler, number)
            background = await self._stack.enter_async_context(Background())
            machines = Machines(options, processes, self._directory, self._say, self._move)
            self._stack.push_async_callback(machines.close)

            def make(name: str) -> ModelService:
                return self._make_service(machines.places or processes, name, background)

            repository = Repository(self._catalog, make, background.start, self._say, drain=options.drain)
            self._bind_grpc(repository)
            if not await self._unless_ended(self._open_models(machines, repository, background)):
                return
            addresses = await self._listen(listeners, repository, background)
            background.start(listeners.sweep(), "sweep")
            background.start(self._keep_logs(processes), "logs")
            ready(addresses)
            await self._ended.wait()
            await self._drain(listeners)

    async def _unless_ended(self, work: Coroutine[None, None, None]) -> bool:
        """Do something to its end, or until a signal ends the server; whether it was done."""
        working, ended = asyncio.ensure_future(work), asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait([working, ended], return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
            return working.done()
        finally:
            for one in (working, ended):
                one.cancel()
            await asyncio.gather(working, ended, return_exceptions=True)

    # ------------------------------------------------------------ models

    async def _open_models(self, machines: Machines, repository: Repository, background: Background) -> None:
        if machines.wanted:
            await machines.open()
            background.start(machines.watch(), "machines")
        for path in self._options.models:
            await self._open_model(path, repository, background)
        for service in self._catalog.services.values():
            await self._until_ready(service)

    async def _open_model(self, path: Path, repository: Repository, background: Background) -> None:
        options = self._options
        following = None
        if is_run(path):
            name = options.name or model_name(path.resolve().name)
            following = RunFollowing(path, self._directory / "models" / name, self._say)
            await following.first(name)
            path = following.library
        first, passed_over = await asyncio.to_thread(first_version, path)
        for sentence in passed_over:
            self._say(f"warning: {sentence}")
        name = options.name or first.manifest.name
        if name in self._catalog.services:
            raise UsageError(f"{path}: there is a model {name} already. Give each its own name, or serve one of them.")
        repository.open(name, path, first)
        if following is not None:
            background.start(following.follow(name, partial(self._catalog.held_versions, name)), f"follow {name}")

    def _make_service(self, processes: ReplicaStarter, name: str, background: Background) -> ModelService:
        options = self._options
        service = ModelService(
            name, processes, self._say, replicas=options.replicas, memory=options.memory,
            limits=DispatchLimits(objective=options.objective, batch=options.batch, hang=options.hang),
            rollout=RolloutLimits(prove=options.prove),
        )  # fmt: skip
        self._stack.callback(service.close)
        if options.most_replicas > options.replicas:
            limits = ScalingLimits(options.replicas, options.most_replicas)
            scaling = Scaling(limits, options.objective, options.replicas)
            background.start(autoscale(service, scaling, self._say), f"scale {name}")
        return service

    def _move(self, process: int, reason: str) -> bool:
        """Have a replica replaced, whichever model's it is."""
        return any(service.replace(process, reason) for service in self._catalog.services.values())

    async def _until_ready(self, service: ModelService) -> None:
        """Wait until a model answers. Raises ModelError where it cannot be served."""
        while not service.ready:
            if service.refused_versions and not service.current:
                version, reason = max(service.refused_versions.items())
                raise ModelError(
                    f"Version {version} of {service.name} cannot be served: {reason}. What it printed is in "
                    f"{self._directory / 'logs'}."
                )
            service.changed.clear()
            await service.changed.wait()

    # ------------------------------------------------------------ listening

    def _bind(self, listeners: HttpListeners) -> None:
        options = self._options
        for what, port, option in (
            ("http", options.port, "--port"), ("admin", options.admin_port, "--admin-port"),
            ("metrics", options.metrics_port, "--metrics-port"),
        ):  # fmt: skip
            if port is not None:
                listeners.bind(what, port, option)

    def _bind_grpc(self, repository: Repository) -> None:
        options = self._options
        if options.grpc_port is None and options.admin_grpc_port is None:
            return
        try:
            from holdfast.serve.endpoints.grpc_listener import GrpcLimits, GrpcListener
            from holdfast.serve.endpoints.grpc_service import GrpcControl, GrpcInference
        except ImportError as error:
            if options.admin_grpc_port is not None or options.grpc_port:
                raise UsageError(f"{error.name} is missing, which gRPC needs: pip install 'holdfast[serve]'.") from None
            self._say(f"{error.name} is missing, so there is no gRPC; pip install 'holdfast[serve]' adds it")
            return

        def listen(what: str, port: int, service: GrpcService, token: str | None, body: int) -> None:
            if port:
                bound(options.host, port, f"--{what}-port").close()  # says better why it cannot be
            self._grpc[what] = listener = GrpcListener(
                options.host, port, service, Authorization(token), GrpcLimits(body=body),
                certificate=options.certificate, key=options.key,
            )  # fmt: skip
            self._stack.push_async_callback(listener.stop, 0.0)

        if options.grpc_port is not None:
            inference = GrpcInference(self._catalog, self._limits, version=self._version)
            listen("grpc", options.grpc_port, inference, options.token, options.body)
        if options.admin_grpc_port is not None:
            control = GrpcControl(self._catalog, repository, self._limits, version=self._version)
            listen("admin-grpc", options.admin_grpc_port, control, options.admin_token, _ADMIN_BODY)

    async def _listen(
        self, listeners: HttpListeners, repository: Repository, background: Background
    ) -> dict[str, str]:
        options, authorization = self._options, Authorization(self._options.token)
        if warning := overheard(options):
            self._say(warning)

        def metrics() -> bytes:
            count, version = listeners.count("http"), self._version
            return exposition(self._catalog, connections=count, responses=app.responses, version=version)

        app = HttpInference(
            self._catalog, authorization, self._limits, version=self._version, pages=read_pages(),
            metrics=None if listeners.has("metrics") else metrics, log=self._log,
        )  # fmt: skip
        limits = HttpLimits(body=options.body, bodies=max(HttpLimits().bodies, 4 * options.body))
        addresses = {"http": await listeners.open("http", app, limits)}
        if listeners.has("metrics"):
            addresses["metrics"] = await listeners.open("metrics", MetricsApp(authorization, metrics), limits)
        if listeners.has("admin"):
            asked = Authorization(options.admin_token)
            control = AdminApp(self._catalog, repository, asked, background.start, version=self._version)
            few = HttpLimits(body=_ADMIN_BODY, connections=64)
            addresses["admin"] = await listeners.open("admin", control, few)
        for what, listener in self._grpc.items():
            await listener.start()
            addresses[what] = f"{shown(options.host)}:{listener.port}"
        return addresses

    # ------------------------------------------------------------ the end

    def _asked_to_end(self, number: signal.Signals) -> None:
        name = "Ctrl-C" if number == signal.SIGINT else number.name
        if self._ended.is_set():
            self._say(f"{name} again: ending at once")
            for task in asyncio.all_tasks():
                task.cancel()
            return
        self._say(f"{name}: nothing more is taken; what was taken is answered first")
        self._ended.set()

    async def _drain(self, listeners: HttpListeners) -> None:
        """Two phases: not ready any more, while what was taken is answered; then nobody listens."""
        self._catalog.draining = True
        await asyncio.gather(*(service.drain(self._options.drain) for service in self._catalog.services.values()))
        self._catalog.closed = True
        await asyncio.gather(listeners.drain(), *(listener.stop(SERVING.parting) for listener in self._grpc.values()))

    async def _keep_logs(self, processes: ReplicaProcesses) -> None:
        """Write what requests have left, and let no replica's output fill the disk; for ever."""
        while True:
            for _ in range(_FLUSHES_PER_TRIM):
                await asyncio.sleep(SERVING.flush)
                self._log.flush()
            await asyncio.to_thread(processes.trim_logs)


def _installed() -> str:
    try:
        return metadata.version("holdfast")
    except metadata.PackageNotFoundError:
        return "unknown"
