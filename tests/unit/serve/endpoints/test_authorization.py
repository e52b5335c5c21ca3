"""Who may ask: every route, every method, every spelling of it."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import UsageError
from holdfast.serve.door.exposure import check_exposure
from holdfast.serve.door.prometheus import MetricsApp
from holdfast.serve.endpoints import authorization as module
from holdfast.serve.endpoints.authorization import Authorization
from holdfast.serve.endpoints.http_app import HttpInference
from holdfast.serve.endpoints.http_connection import HttpRequest
from holdfast.serve.endpoints.pages import read_pages
from holdfast.serve.models.catalog import Catalog
from holdfast.serve.options import ServeOptions
from holdfast.serve.protocol.limits import ProtocolLimits

TOKEN = "t" * 43
APP = HttpInference(
    Catalog(), Authorization(TOKEN), ProtocolLimits(), version="1",
    pages=read_pages(), metrics=lambda: b"",
)  # fmt: skip
METRICS = MetricsApp(Authorization(TOKEN), lambda: b"")
PAGES = set(read_pages())
METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT"]


def status(app: HttpInference | MetricsApp, method: str, target: bytes, header: bytes | None = None) -> int:
    """With which a request is turned away by its head; 0: it is not."""
    request = HttpRequest(None, method, target, {} if header is None else {b"authorization": header})  # type: ignore[arg-type]
    app.look(request)
    return request.refusal[0] if request.refusal is not None else 0


def aliases(path: bytes) -> list[bytes]:
    return [path, path + b"/", b"/" + path, path + b"?a=b", path.upper(), path + b"/..", path.replace(b"/", b"//")]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("path", APP.paths)
def test_nothing_is_answered_without_the_token(method: str, path: bytes) -> None:
    """But for the page, which holds no secrets: a browser cannot show a token when it opens it."""
    for target in aliases(path):
        opened = target.partition(b"?")[0] in PAGES and method in ("GET", "HEAD")
        assert status(APP, method, target) == (0 if opened else 401), target
        assert status(APP, method, target, b"Bearer " + TOKEN.encode()) != 401
        assert status(METRICS, method, target) == 401


@given(method=st.sampled_from(METHODS), target=st.binary(max_size=50), header=st.none() | st.binary(max_size=60))
def test_no_spelling_of_a_path_or_of_a_token_gets_in(method: str, target: bytes, header: bytes | None) -> None:
    if target.partition(b"?")[0] not in PAGES:
        assert status(APP, method, target, header) == 401


@pytest.mark.parametrize(
    "header",
    [b"", b"Bearer", b"Bearer ", TOKEN.encode(), b"Basic " + TOKEN.encode(), b"Bearer " + TOKEN.encode()[:-1],
     b"Bearer " + TOKEN.encode() + b"t", b"Bearer \xff", b"Bearer " + TOKEN.encode() + b", Bearer x"],
)  # fmt: skip
def test_what_is_no_token(header: bytes) -> None:
    assert not Authorization(TOKEN).permits(header)


def test_tokens_are_compared_in_constant_time() -> None:
    """The token is compared by `hmac.compare_digest`, and by nothing else."""
    permits = ast.parse(inspect.getsource(module)).body[-1].body[-1]  # type: ignore[attr-defined]
    assert isinstance(permits, ast.FunctionDef) and permits.name == "permits"
    compared = [node for node in ast.walk(permits) if isinstance(node, ast.Compare)]
    assert all(isinstance(one.ops[0], ast.Is | ast.IsNot) or "_BEARER" in ast.unparse(one) for one in compared)
    assert "hmac.compare_digest" in ast.unparse(permits.body[-1])


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "127.example.org", "localhost.example.org", "example"])
def test_nobody_listens_beyond_this_machine_without_a_token(host: str) -> None:
    options = ServeOptions(models=(Path("m"),), host=host)
    with pytest.raises(UsageError, match="--token-file"):
        check_exposure(options)
    check_exposure(options._replace(token=TOKEN))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_on_this_machine_it_may_be_open(host: str) -> None:
    check_exposure(ServeOptions(models=(Path("m"),), host=host))
    assert ServeOptions(models=(Path("m"),)).host == "127.0.0.1"
