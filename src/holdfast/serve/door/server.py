"""The front door: listens, holds every request until it is answered, and keeps the replicas that answer."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType

from holdfast.errors import ModelError, UsageError
from holdfast.model.manifest import model_name
from holdfast.serve.dispatch.dispatcher import DispatchLimits
from holdfast.serve.dispatch.rollout import RolloutLimits
from holdfast.serve.dispatch.scaling import Scaling, ScalingLimits
from holdfast.serve.door.authorization import Authorization
from holdfast.serve.door.autoscaler import autoscale
from holdfast.serve.door.catalog import Catalog
from holdfast.serve.door.http_app import HttpInference
from holdfast.serve.door.http_connection import HttpApp, HttpConnection, HttpLimits, sweep
from holdfast.serve.door.library_watch import first_version, watch
from holdfast.serve.door.machines import Machines
from holdfast.serve.door.model_service import ModelService
from holdfast.serve.door.replica_processes import ReplicaProcesses, ReplicaStarter
from holdfast.serve.door.run_following import RunFollowing, is_run
from holdfast.serve.options import ServeOptions
from holdfast.serve.protocol.limits import ProtocolLimits

__all__ = ["Server", "check_exposure"]


def check_exposure(options: ServeOptions) -> None:
    """Refuse to listen beyond this machine without a token. Raises UsageError."""
    if options.token is None and not _loopback(options.host):
        raise UsageError(
            f"--host {options.host}: whoever reaches this machine could use the model. Add --token-file FILE (a new "
            "one is made where there is none), and --certificate and --key for TLS, without which the token can be "
            "overheard; or listen on 127.0.0.1."
        )


def _loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


class Server:
    """All of a server; use `run`."""

    def __init__(self, options: ServeOptions, directory: Path, scratch: str, say: Callable[[str], None]) -> None:
        self._options, self._directory, self._scratch, self._say = options, directory, scratch, say
        self._catalog = Catalog()
        self._connections: set[HttpConnection] = set()
        self._servers: list[asyncio.Server] = []
        self._stack = contextlib.AsyncExitStack()
        self._ended = asyncio.Event()
        self._sockets: dict[str, socket.socket] = {}

    async def run(self, ready: Callable[[dict[str, str]], None]) -> None:
        """Serve until a signal ends it. `ready` is told the addresses once every model answers."""
        check_exposure(self._options)
        loop = asyncio.get_running_loop()
        async with self._stack:
            self._bind()  # first: a port in use is said before anything was started
            processes = ReplicaProcesses(self._directory, self._scratch, self._options.threads)
            self._stack.callback(processes.close)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                loop.add_signal_handler(number, self._asked_to_end, number)
                self._stack.callback(loop.remove_signal_handler, number)
            tasks = await self._stack.enter_async_context(_Tasks())
            machines = Machines(self._options, processes, self._directory, self._say, self._move)
            self._stack.push_async_callback(machines.close)
            if not await self._unless_ended(self._open_models(machines, processes, tasks)):
                return
            addresses = await self._listen()
            tasks.start(sweep(self._connections), "sweep")
            ready(addresses)
            await self._ended.wait()
            await self._drain()

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

    async def _open_models(self, machines: Machines, local: ReplicaProcesses, tasks: _Tasks) -> None:
        processes: ReplicaStarter = local
        if machines.wanted:
            processes = await machines.open()
            tasks.start(machines.watch(), "machines")
        for path in self._options.models:
            await self._open_model(path, processes, tasks)
        for service in self._catalog.services.values():
            await self._until_ready(service)

    async def _open_model(self, path: Path, processes: ReplicaStarter, tasks: _Tasks) -> None:
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
        service = ModelService(
            name, processes, self._say, replicas=options.replicas, memory=options.memory,
            limits=DispatchLimits(objective=options.objective, batch=options.batch, hang=options.hang),
            rollout=RolloutLimits(prove=options.prove),
        )  # fmt: skip
        self._stack.callback(service.close)
        self._catalog.services[name] = service
        service.offer(first)
        if first.path.parent.resolve() == path.resolve():  # a folder of versions, not one of them
            tasks.start(watch(path, service, self._say), f"watch {name}")
        if following is not None:
            tasks.start(following.follow(service), f"follow {name}")
        if options.most_replicas > options.replicas:
            limits = ScalingLimits(options.replicas, options.most_replicas)
            scaling = Scaling(limits, options.objective, options.replicas)
            tasks.start(autoscale(service, scaling, self._say), f"scale {name}")

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

    def _bind(self) -> None:
        options = self._options
        for what, port in (("http", options.port), ("grpc", options.grpc_port)):
            if port is not None and what != "grpc":
                self._sockets[what] = _bound(options.host, port)
                self._stack.callback(self._sockets[what].close)

    async def _listen(self) -> dict[str, str]:
        options = self._options
        loop = asyncio.get_running_loop()
        authorization = Authorization(options.token)
        limits = ProtocolLimits(body=options.body)
        app = HttpInference(
            self._catalog, authorization, limits, version=_version(), pages={}, metrics=None,
        )  # fmt: skip
        http_limits = HttpLimits(body=options.body)

        def make(app: HttpApp = app) -> HttpConnection:
            return HttpConnection(app, http_limits, self._connections)

        listening = self._sockets["http"]
        server = await loop.create_server(make, sock=listening, ssl=self._tls(), backlog=1024)
        self._servers.append(server)
        scheme = "https" if options.certificate is not None else "http"
        return {"http": f"{scheme}://{_shown(options.host)}:{listening.getsockname()[1]}"}

    def _tls(self) -> ssl.SSLContext | None:
        if self._options.certificate is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self._options.certificate, self._options.key)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(
                f"--certificate {self._options.certificate}: it cannot be used with --key {self._options.key} "
                f"({error}). Give a certificate and its private key, both as PEM."
            ) from None
        return context

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

    async def _drain(self) -> None:
        """Two phases: not ready any more, while what was taken is answered; then nobody listens."""
        self._catalog.draining = True
        await asyncio.gather(*(service.drain(self._options.drain) for service in self._catalog.services.values()))
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            connection.drain()
        await asyncio.sleep(0)


class _Tasks:
    """What goes on in the background; one that fails ends the server, with its error."""

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> _Tasks:
        await self._group.__aenter__()
        return self

    def start(self, work: Coroutine[None, None, None], name: str) -> None:
        """Begin something that goes on to the end of the server."""
        self._tasks.append(self._group.create_task(work, name=name))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        try:
            await self._group.__aexit__(kind, error, trace)
        except ExceptionGroup as several:
            raise several.exceptions[0] from None


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except OSError as error:
        made.close()
        what = "somebody listens there already" if port else str(error.strerror)
        raise UsageError(
            f"Port {port} of {host} cannot be used: {what if error.errno == 98 else error.strerror}. Choose another "
            "one with --port, or leave that out: the system chooses one then."
        ) from None
    return made


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("holdfast")
    except PackageNotFoundError:
        return "unknown"


