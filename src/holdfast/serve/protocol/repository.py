"""What an operator may ask of the model repository: a name, and at most a version. Never a path, a file or a URL."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from holdfast.serve.protocol.errors import BadRequest, malformed, shown

__all__ = ["check_load", "check_repository", "check_unload", "parse_index", "parse_parameters"]

_NUMBER = re.compile(r"[1-9]\d{0,8}")


class _Index(msgspec.Struct):
    ready: bool = False


class _Asked(msgspec.Struct):
    parameters: dict[str, object] = {}


def parse_index(body: bytes | memoryview) -> bool:
    """Are only models meant that are ready? Raises BadRequest.

    >>> parse_index(b""), parse_index(b'{"ready": true}')
    (False, True)
    """
    try:
        return msgspec.json.decode(body, type=_Index).ready if len(body) else False
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(error, "") from None


def parse_parameters(body: bytes | memoryview) -> dict[str, object]:
    """The parameters in a body; there may be none of both. Raises BadRequest."""
    try:
        return msgspec.json.decode(body, type=_Asked).parameters if len(body) else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(error, "") from None


def check_load(parameters: Mapping[str, object]) -> int:
    """Which version is to be served, and no other; 0: the newest. Raises BadRequest.

    >>> check_load({}), check_load({"version": "3"}), check_load({"version": 3})
    (0, 3, 3)
    """
    for name in parameters:
        if name != "version":
            raise BadRequest(
                400, "is not taken: models are served from the folders with which the server was started, as they are",
                f"parameters[{shown(name)}]",
            )  # fmt: skip
    version = parameters.get("version", "")
    text = str(version) if type(version) in (int, str) else "?"
    if not text:
        return 0
    if not _NUMBER.fullmatch(text):
        raise BadRequest(400, f"is {shown(version)}; it is the number of a version", "parameters.version")
    return int(text)


def check_unload(parameters: Mapping[str, object]) -> None:
    """Nothing may be said but what clients always say. Raises BadRequest."""
    for name, value in parameters.items():
        if name != "unload_dependents" or not isinstance(value, bool):  # there are none, so both are the same
            raise BadRequest(400, "is not taken", f"parameters[{shown(name)}]")


def check_repository(name: str) -> None:
    """There is one repository, which has no name. Raises BadRequest."""
    if name:
        raise BadRequest(400, f"is {shown(name)}; there is one repository, which has no name", "repository_name")
