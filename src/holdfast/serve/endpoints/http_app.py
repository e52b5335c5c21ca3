"""What a server answers over HTTP: the Open Inference Protocol, plain JSON at /predict, metrics, and a page for people.

Every request goes through `look`, which turns away who may not ask, before its body is kept; `handle` answers. Nothing
here waits: an inference is answered when its replica has, by a callback.
"""

from __future__ import annotations

import asyncio
import math
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import Any, NamedTuple

from holdfast.serve.door.prometheus import CONTENT_TYPE
from holdfast.serve.door.request_log import LoggedRequest, RequestLog
from holdfast.serve.endpoints.authorization import Authorization
from holdfast.serve.endpoints.http_connection import HttpRequest
from holdfast.serve.endpoints.pages import Page
from holdfast.serve.models.answers import Answer, Unanswered
from holdfast.serve.models.catalog import Catalog
from holdfast.serve.models.model_service import ModelService
from holdfast.serve.protocol import metadata
from holdfast.serve.protocol.errors import BadRequest, error_body
from holdfast.serve.protocol.fit import Fitted, fit
from holdfast.serve.protocol.limits import ProtocolLimits
from holdfast.serve.protocol.plain import encode_predict, parse_predict
from holdfast.serve.protocol.requests import InferResponse
from holdfast.serve.protocol.rest import JSON_HEADERS, encode_infer, parse_infer

__all__ = ["HttpInference"]

_MODEL = re.compile(rb"/v2/models/([^/]+)(?:/versions/([^/]+))?(?:/(infer|ready|config|stats))?")
_JSON = tuple(JSON_HEADERS)
_EXAMPLE = b"/example/"

#: An id that a header can carry.
_ID = re.compile(r"[\x21-\x7e]{1,128}")
#: Fields of a request whose refusal shows nothing of a tensor.
_TOLD = re.compile(r".*\.(shape|datatype|name)|inputs|outputs|[A-Z][A-Za-z-]+|")

Route = Callable[[HttpRequest], None]


class _Facts(NamedTuple):
    """What the log says of a request for inference."""

    model: str
    items: int
    version: int = 0
    queued: float = 0.0
    computed: float = 0.0


class HttpInference:
    """Answers what clients of models ask for."""

    def __init__(
        self, catalog: Catalog, authorization: Authorization, limits: ProtocolLimits, *, version: str,
        pages: Mapping[bytes, Page], metrics: Callable[[], bytes] | None, log: RequestLog | None = None,
    ) -> None:  # fmt: skip
        """`pages` are what anybody may have, by path; `metrics` is None where they are to be had elsewhere."""
        self._log, self.responses = log, Counter[int]()
        self._ids = (f"{mine}-{number:x}" for mine in [secrets.token_hex(4)] for number in count(1))
        self._catalog, self._authorization, self._limits = catalog, authorization, limits
        self._version, self._pages, self._metrics = version, pages, metrics
        self._now = time.monotonic
        self._routes: dict[bytes, Route] = {
            b"/v2": self._server, b"/v2/": self._server, b"/v2/health/live": self._health,
            b"/v2/health/ready": self._health, b"/v2/models/stats": self._statistics, b"/metrics": self._tell_metrics,
            b"/predict": self._predict, b"/page.json": self._overview,
        }  # fmt: skip

    @property
    def paths(self) -> list[bytes]:
        """Everything there is to ask for, of a model called `m`; whoever adds a route, adds it here or to the table."""
        models = [b"/v2/models/m" + version + what for version in (b"", b"/versions/1")
                  for what in (b"", b"/infer", b"/ready", b"/config", b"/stats")]  # fmt: skip
        return [*self._routes, *self._pages, b"/predict/m", _EXAMPLE + b"m", *models]

    # ------------------------------------------------------------ HttpApp

    def look(self, request: HttpRequest) -> None:
        """Turn away who may not ask, and what could not be answered in time: before the body is read."""
        request.came = self._now()
        given = request.headers.get(b"x-request-id", b"").decode("latin-1")
        request.id = given if _ID.fullmatch(given) else next(self._ids)
        # A page of ours holds no secrets, and a browser opens it without a token; what the page asks for needs one.
        permitted = self._authorization.permits(request.headers.get(b"authorization"))
        if not permitted and not (request.path in self._pages and request.method in ("GET", "HEAD")):
            told = (*_JSON, (b"www-authenticate", b"Bearer"))
            request.reason = "no token, or a wrong one"
            request.refusal = 401, error_body("This server asks for its token: Authorization: Bearer TOKEN."), told
            return
        if request.method == "POST" and (found := _MODEL.fullmatch(request.path)) and found[3] == b"infer":
            try:
                service = self._catalog.service(_text(found[1]), _text(found[2]))
                request.facts = _Facts(service.name, 0)
                service.check_room()
            except Unanswered as why:
                request.reason = str(why)
                request.refusal = why.status, error_body(why), (*_JSON, *_retry(why))

    def handle(self, request: HttpRequest) -> None:
        """Answer a request."""
        try:
            self._route(request)
        except Exception as error:
            _refuse(request, error)

    def answered(self, request: HttpRequest, status: int) -> None:
        """Count an answer, and log it where that is wanted."""
        self.responses[status] += 1
        facts = request.facts
        if self._log is None or (facts is None and status < 400):
            return
        seconds, now = self._now() - request.came if request.came else 0.0, time.time()
        left_out = self._log.wants(status, seconds, now)
        if left_out is None:
            return
        told = facts if isinstance(facts, _Facts) else _Facts("", 0)
        self._log.add(LoggedRequest(
            time=now, id=request.id, model=told.model, version=told.version, status=status, items=told.items,
            queue_ms=1000 * told.queued, compute_ms=1000 * told.computed, total_ms=1000 * seconds,
            reason=request.reason[:300], left_out=left_out,
        ))  # fmt: skip

    def _route(self, request: HttpRequest) -> None:
        path = request.path
        if path.startswith(b"/v2/models/") and (found := _MODEL.fullmatch(path)) and path != b"/v2/models/stats":
            model, version, what = _text(found[1]), _text(found[2]), _text(found[3])
            if what == "infer":
                _only(request, "POST")
                self._infer(request, model, version)
            else:
                _only(request, "GET")
                self._model(request, model, version, what)
            return
        if path.startswith(b"/predict/"):
            self._predict(request)
            return
        route = self._routes.get(path)
        if route is None and path in self._pages:
            _only(request, "GET")
            page = self._pages[path]
            request.respond(200, [page.body], page.headers)
            return
        if path.startswith(_EXAMPLE):
            self._example(request)
            return
        if route is None or (path == b"/metrics" and self._metrics is None):
            raise BadRequest(404, f"There is nothing at {_shown(path)}.", "")
        route(request)

    # ------------------------------------------------------------ facts

    def _server(self, request: HttpRequest) -> None:
        _only(request, "GET")
        _json(request, metadata.server_metadata("holdfast", self._version))

    def _health(self, request: HttpRequest) -> None:
        _only(request, "GET")
        ready = self._catalog.ready
        status = 200 if ready or request.path.endswith(b"live") else 503
        _json(request, metadata.live(True, ready), status)

    def _model(self, request: HttpRequest, model: str, version: str, what: str) -> None:
        if what == "ready":
            service = self._catalog.service(model, version)
            _json(request, metadata.model_ready(model, service.ready), 200 if service.ready else 503)
        elif what == "config":
            _json(request, self._catalog.config(model, version))
        elif what == "stats":
            _json(request, self._catalog.statistics(model, version))
        else:
            _json(request, self._catalog.model_metadata(model, version))

    def _statistics(self, request: HttpRequest) -> None:
        _only(request, "GET")
        _json(request, self._catalog.statistics())

    def _overview(self, request: HttpRequest) -> None:
        _only(request, "GET")
        _json(request, self._catalog.overview())

    def _example(self, request: HttpRequest) -> None:
        _only(request, "GET")
        name = _text(request.path[len(_EXAMPLE) :])
        reading = asyncio.get_running_loop().run_in_executor(None, self._catalog.example(name))

        def answer(future: asyncio.Future[memoryview]) -> None:
            if not future.cancelled() and (error := future.exception()) is None:
                request.respond(200, [future.result()], _JSON)
            elif not future.cancelled():  # it tells of files, which are nothing to clients
                future.get_loop().call_exception_handler({"message": "no example", "exception": error})
                request.refuse(404, f"The example of {name} cannot be read any more; the server's log says why.")

        reading.add_done_callback(answer)

    def _tell_metrics(self, request: HttpRequest) -> None:
        _only(request, "GET")
        assert self._metrics is not None
        request.respond(200, [self._metrics()], ((b"content-type", CONTENT_TYPE),))

    # ------------------------------------------------------------ inference

    def _infer(self, request: HttpRequest, model: str, version: str) -> None:
        service = self._catalog.service(model, version)
        headers = request.headers
        length, encoding = headers.get(b"inference-header-content-length"), headers.get(b"content-encoding")
        asked = parse_infer(
            request.body, model=model, version=version, limits=self._limits,
            json_length=None if length is None else length.decode("latin-1"),
            encoding=None if encoding is None else encoding.decode("latin-1"),
        )  # fmt: skip
        if service.manifest is None:
            raise Unanswered(503, f"{model} is not ready: no version of it has been loaded yet.", 1.0)
        fitted = fit(asked, service.manifest.signature, self._limits)
        self._submit(request, service, fitted, partial(self._answer, service.name, fitted))

    def _submit(
        self, request: HttpRequest, service: ModelService, fitted: Fitted,
        answer: Callable[[Answer, HttpRequest], None],
    ) -> None:  # fmt: skip
        asked = fitted.request
        deadline = math.inf if asked.timeout is None else self._now() + asked.timeout
        version = int(asked.version) if asked.version else 0
        if asked.id and _ID.fullmatch(asked.id):
            request.id = asked.id
        request.facts = _Facts(service.name, fitted.items)
        future = service.infer(asked.inputs, fitted.items, version=version, deadline=deadline, id=request.id)
        request.gone = future.cancel
        future.add_done_callback(partial(self._settle, request, answer))

    def _settle(
        self, request: HttpRequest, answer: Callable[[Answer, HttpRequest], None], future: asyncio.Future[Answer]
    ) -> None:
        if future.cancelled():
            return
        try:
            found = future.result()
            if isinstance(request.facts, _Facts):
                name, items = request.facts[:2]
                request.facts = _Facts(name, items, found.version, found.queued, found.computed)
            answer(found, request)
        except Exception as error:
            _refuse(request, error)

    def _answer(self, name: str, fitted: Fitted, answer: Answer, request: HttpRequest) -> None:
        asked = fitted.request
        body, headers = encode_infer(InferResponse(name, str(answer.version), asked.id, answer.outputs), asked)
        request.respond(200, body, headers)

    def _predict(self, request: HttpRequest) -> None:
        _only(request, "POST")
        name = request.path[len(b"/predict/") :]
        service = self._catalog.service(_text(name)) if name else self._catalog.only()
        request.facts = _Facts(service.name, 0)
        service.check_room()
        assert service.manifest is not None
        encoding = request.headers.get(b"content-encoding")
        plain = parse_predict(
            request.body, service.manifest.signature, model=service.name, version="", limits=self._limits,
            encoding=None if encoding is None else encoding.decode("latin-1"),
        )  # fmt: skip
        fitted = fit(plain.request, service.manifest.signature, self._limits)

        def answer(found: Answer, request: HttpRequest) -> None:
            assert service.manifest is not None
            response = InferResponse(service.name, str(found.version), "", found.outputs)
            manifest = service.manifest
            body = encode_predict(response, manifest.signature, plain.single, manifest.classes)
            request.respond(200, [body], _JSON)

        self._submit(request, service, fitted, answer)


def _refuse(request: HttpRequest, error: Exception) -> None:
    """Answer with what went wrong."""
    if isinstance(error, BadRequest):
        # A refused tensor is quoted to its owner, and to nobody else.
        reason = str(error) if _TOLD.fullmatch(error.field) else f"{error.field}: it cannot be read"
        request.refuse(error.status, error, reason=reason)
    elif isinstance(error, Unanswered):
        request.refuse(error.status, error, _retry(error))
    else:  # ours: a client must not learn more of it than that
        what = f"request {request.id} failed"
        asyncio.get_running_loop().call_exception_handler({"message": what, "exception": error})
        request.refuse(500, "The server failed on this request; its log says why.")


def _only(request: HttpRequest, method: str) -> None:
    if request.method != method and not (method == "GET" and request.method == "HEAD"):
        raise BadRequest(405, f"{_shown(request.path)} is asked with {method}, not {request.method}.", "")


def _json(request: HttpRequest, view: Any, status: int = 200) -> None:
    request.respond(status, [metadata.json_body(view)], _JSON)


def _retry(why: Unanswered) -> tuple[tuple[bytes, bytes], ...]:
    if why.status != 503:
        return ()
    return ((b"retry-after", b"%d" % max(1, math.ceil(why.retry_after))),)


def _text(part: bytes | None) -> str:
    return "" if part is None else part.decode("ascii", "replace")


def _shown(path: bytes) -> str:
    return path[:100].decode("ascii", "replace")


