"""The page at `/`, where a person tries a model: its files, and the headers that keep a browser from anything else.

They lie in `page/` beside this module and are read once. Nothing in them comes from elsewhere, and what they show is
fetched from the server that sent them, with the token that the person types.
"""

from __future__ import annotations

from importlib.resources import files
from typing import NamedTuple

__all__ = ["Page", "read_pages"]

Header = tuple[bytes, bytes]

_TYPES = {
    ".html": b"text/html; charset=utf-8", ".css": b"text/css; charset=utf-8", ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}  # fmt: skip
#: Only its own files and its own server; nothing inline, nothing evaluated, in no frame of another page.
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    b"trusted-types 'none'"
)
_HEADERS = (
    (b"content-security-policy", _POLICY), (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"), (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"), (b"x-frame-options", b"DENY"), (b"cache-control", b"no-cache"),
)  # fmt: skip


class Page(NamedTuple):
    """A file that anybody may have: it holds no secrets."""

    body: bytes
    headers: tuple[Header, ...]


def read_pages() -> dict[bytes, Page]:
    """All files of the page by their paths: `/`, and what it needs as `/page/NAME`."""
    pages: dict[bytes, Page] = {}
    for file in (files("holdfast.serve.endpoints") / "page").iterdir():
        kind = _TYPES.get("." + file.name.rpartition(".")[2])
        if kind is not None:
            path = "/" if file.name == "index.html" else f"/page/{file.name}"
            pages[path.encode()] = Page(file.read_bytes(), ((b"content-type", kind), *_HEADERS))
    return pages
