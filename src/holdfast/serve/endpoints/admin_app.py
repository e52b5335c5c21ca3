"""The control plane over HTTP, at a port of its own: which models there are, to load and to unload them.

A browser's page may not ask here, whoever has sent it: what a browser sends has an `Origin`, and is refused.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import Any

from holdfast.serve.endpoints.authorization import Authorization
from holdfast.serve.endpoints.http_connection import HttpRequest
from holdfast.serve.models.answers import Unanswered
from holdfast.serve.models.catalog import Catalog
from holdfast.serve.models.repository import Repository
from holdfast.serve.protocol import metadata
from holdfast.serve.protocol.errors import BadRequest, error_body
from holdfast.serve.protocol.repository import check_load, check_unload, parse_index, parse_parameters
from holdfast.serve.protocol.rest import JSON_HEADERS

__all__ = ["AdminApp"]

_MODEL = re.compile(rb"/v2/repository/models/([^/]+)/(load|unload)")
_JSON = tuple(JSON_HEADERS)

Start = Callable[[Coroutine[None, None, None], str], object]


class AdminApp:
    """Answers what operators ask for."""

    def __init__(
        self, catalog: Catalog, repository: Repository, authorization: Authorization, start: Start, *, version: str
    ) -> None:
        """`start` begins something that goes on in the background: loading a model takes its time."""
        self._catalog, self._repository, self._authorization = catalog, repository, authorization
        self._start, self._version = start, version

    def look(self, request: HttpRequest) -> None:
        """Turn away who may not ask, before the body is read."""
        if not self._authorization.permits(request.headers.get(b"authorization")):
            told = (*_JSON, (b"www-authenticate", b"Bearer"))
            said = "The control plane asks for a token of its own: Authorization: Bearer TOKEN."
            request.refusal = 401, error_body(said), told
        elif b"origin" in request.headers:
            request.refusal = 403, error_body("Pages in a browser may not ask the control plane."), _JSON

    def handle(self, request: HttpRequest) -> None:
        """Answer a request, now or when it is done."""
        self._start(self._answer(request), "an operator's request")

    def answered(self, request: HttpRequest, status: int) -> None:
        """An answer was sent."""

    async def _answer(self, request: HttpRequest) -> None:
        try:
            status, view = await self._done(request)
            request.respond(status, [metadata.json_body(view)], _JSON)
        except BadRequest as error:
            request.refuse(error.status, error)
        except Unanswered as why:
            request.refuse(why.status, why)
        except Exception as error:  # ours: a client must not learn more of it than that
            asyncio.get_running_loop().call_exception_handler({"message": "a request failed", "exception": error})
            request.refuse(500, "The server failed on this request; its log says why.")

    async def _done(self, request: HttpRequest) -> tuple[int, Any]:
        path = request.path
        if path in (b"/v2", b"/v2/"):
            _only(request, "GET")
            return 200, metadata.server_metadata("holdfast", self._version, repository=True)
        if path in (b"/v2/health/live", b"/v2/health/ready"):
            _only(request, "GET")
            ready = self._catalog.ready
            return 200 if ready or path.endswith(b"live") else 503, metadata.live(True, ready)
        if path == b"/v2/repository/index":
            _only(request, "POST")
            return 200, self._repository.index(ready=parse_index(request.body))
        found = _MODEL.fullmatch(path)
        if found is None:
            shown = path[:100].decode("ascii", "replace")
            raise BadRequest(404, f"There is nothing at {shown}: this is the control plane.", "")
        _only(request, "POST")
        name = found[1].decode("ascii", "replace")
        if found[2] == b"load":
            version = await self._repository.load(name, check_load(parse_parameters(request.body)))
            return 200, {"name": name, "version": str(version)}
        check_unload(parse_parameters(request.body))
        await self._repository.unload(name)
        return 200, {"name": name}


def _only(request: HttpRequest, method: str) -> None:
    if request.method != method:
        raise BadRequest(405, f"This is asked with {method}, not {request.method}.", "")
