"""Listening for gRPC: one place through which every call goes, whatever it asks for, and what clients may take up.

    listener = GrpcListener("127.0.0.1", 0, service, Authorization(token), GrpcLimits())
    await listener.start()
    ...
    await listener.stop(5.0)

A call without the token is turned away before its message is read, also where it asks for what is not there. The only
module that imports grpc.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

# Processes that we start know nothing of our calls; gRPC would say of each that it does not prepare for that.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc
import grpc.aio

from holdfast.errors import UsageError
from holdfast.serve.endpoints.authorization import Authorization
from holdfast.serve.models.answers import Unanswered
from holdfast.serve.protocol.errors import BadRequest
from holdfast.serve.protocol.grpc_messages import METHODS, STATUS, Method, read

__all__ = ["Call", "GrpcLimits", "GrpcListener", "GrpcService"]


class GrpcLimits(NamedTuple):
    """What clients may take up."""

    body: int = 64 << 20  #: bytes of a message
    calls: int = 2048  #: at a time, of all connections
    streams: int = 256  #: calls at a time of one connection
    connections: int = 1024
    idle_seconds: float = 600.0  #: of a connection without a call
    silent_seconds: float = 60.0  #: after which it is asked whether the client is there still
    handshake_seconds: float = 10.0


class Call(NamedTuple):
    """What a method may know of the call that it answers."""

    left: float | None  #: seconds that the client will wait; None: it does not say
    send: Callable[[Any], Awaitable[None]]  #: one more answer, of a method that answers more than once


Answers = Callable[[Any, Call], Awaitable[Any]]


class GrpcService(Protocol):
    """What answers calls."""

    def answers(self) -> Mapping[str, Answers]:
        """By the names of methods. A message in; out comes a message, or nothing from those that answer with `send`.

        They may raise BadRequest and Unanswered. A client that is gone is a cancellation.
        """

    def elsewhere(self, method: Method) -> str:
        """Why a method of the protocol is not answered here."""


class GrpcListener:
    """Listens; see above. The port is bound when it is made, and nobody is answered before `start`."""

    def __init__(
        self, host: str, port: int, service: GrpcService, authorization: Authorization, limits: GrpcLimits, *,
        certificate: Path | None = None, key: Path | None = None,
    ) -> None:  # fmt: skip
        options = [
            ("grpc.so_reuseport", 0),  # else a second server would take half of the first one's calls, unnoticed
            ("grpc.max_receive_message_length", limits.body),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_concurrent_streams", limits.streams),
            ("grpc.max_allowed_incoming_connections", limits.connections),
            ("grpc.max_connection_idle_ms", int(1000 * limits.idle_seconds)),
            ("grpc.keepalive_time_ms", int(1000 * limits.silent_seconds)),
            ("grpc.server_handshake_timeout_ms", int(1000 * limits.handshake_seconds)),
        ]
        self._server = grpc.aio.server(
            handlers=[_Gate(service, authorization)], options=options, maximum_concurrent_rpcs=limits.calls
        )
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if certificate is None or key is None:
                self.port = self._server.add_insecure_port(where)
            else:
                pair = key.read_bytes(), certificate.read_bytes()
                self.port = self._server.add_secure_port(where, grpc.ssl_server_credentials([pair]))
        except (RuntimeError, OSError) as error:
            raise UsageError(f"gRPC cannot listen at {where}: {error}.") from None

    async def start(self) -> None:
        """Answer, from now on."""
        await self._server.start()

    async def stop(self, seconds: float) -> None:
        """Take nothing more, and end what is not answered within so many seconds."""
        await self._server.stop(seconds)


class _Gate(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Finds who answers a call, once it is known that it may be answered."""

    def __init__(self, service: GrpcService, authorization: Authorization) -> None:
        self._authorization = authorization
        answers = service.answers()
        self._handlers: dict[str, Any] = {}
        for method in METHODS:
            path = f"/{method.service}/{method.name}"
            if method.name not in answers:
                self._handlers[path] = _refusal(501, service.elsewhere(method))
            elif method.streams:
                several = partial(_answer_several, method, answers[method.name])
                self._handlers[path] = grpc.unary_stream_rpc_method_handler(several)
            else:
                one = partial(_answer, method, answers[method.name])
                self._handlers[path] = grpc.unary_unary_rpc_method_handler(one)

    def service(self, details: Any) -> Any:
        """The only way in."""
        shown = None
        for name, value in details.invocation_metadata or ():
            if name == "authorization":
                shown = value.encode() if isinstance(value, str) else value
        if not self._authorization.permits(shown):
            return _refusal(401, "This server asks for its token: metadata authorization: Bearer TOKEN.")
        return self._handlers.get(details.method) or _refusal(501, f"There is no method {details.method[:100]}.")


def _refusal(status: int, message: str) -> Any:
    """Answers with an error, without having read what was sent."""

    async def refuse(_: Any, context: Any) -> None:
        await _abort(context, status, message)

    return grpc.stream_stream_rpc_method_handler(refuse)


async def _answer(method: Method, answer: Answers, data: bytes, context: Any) -> bytes:
    try:
        made: bytes = (await answer(read(method, data), _call(method, context))).SerializeToString()
        return made
    except BadRequest as error:
        refused = error.status, str(error), 0.0
    except Unanswered as why:
        refused = why.status, str(why), why.retry_after
    except Exception as error:  # ours: a client must not learn more of it than that
        asyncio.get_running_loop().call_exception_handler({"message": "a call failed", "exception": error})
        refused = 500, "The server failed on this request; its log says why.", 0.0
    await _abort(context, *refused)
    raise AssertionError("aborting raises")


async def _answer_several(method: Method, answer: Answers, data: bytes, context: Any) -> None:
    try:
        await answer(read(method, data), _call(method, context))
    except BadRequest as error:
        await _abort(context, error.status, str(error))
    except Unanswered as why:
        await _abort(context, why.status, str(why), why.retry_after)


def _call(method: Method, context: Any) -> Call:
    async def send(message: Any) -> None:
        await context.write(message.SerializeToString())

    return Call(context.time_remaining(), send)


async def _abort(context: Any, status: int, message: str, retry_after: float = 0.0) -> None:
    trailing: tuple[tuple[str, str], ...] = ()
    if status == 503:  # gRPC's own clients read the second, where they retry by themselves
        wait = max(0.001, retry_after)
        trailing = ("retry-after", str(math.ceil(wait))), ("grpc-retry-pushback-ms", str(math.ceil(1000 * wait)))
    await context.abort(getattr(grpc.StatusCode, STATUS.get(status, "UNKNOWN")), message, trailing)
