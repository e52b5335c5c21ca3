"""Asks a going run something: one request, one answer, over its control socket."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import msgspec

from holdfast.config.limits import CONTROL
from holdfast.control.protocol.requests import Ask, short_address
from holdfast.errors import RunError, UsageError

__all__ = ["NotRunning", "ask"]


class NotRunning(UsageError):
    """Nobody answers at this directory: the run has ended, or never began."""


def ask(directory: Path, request: Ask, timeout: float = CONTROL.answer) -> dict[str, Any]:
    """Send `request` to the run in `directory`.

    Raises:
        NotRunning: there is no going run.
        UsageError: the run refused the request.
        RunError: the run's launcher does not answer.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection, \
            short_address(directory / "control.sock") as address:  # fmt: skip
        connection.settimeout(timeout)
        try:
            connection.connect(address)
            connection.send(msgspec.json.encode(request))
            data = connection.recv(CONTROL.answer_bytes)
        except TimeoutError:
            raise RunError(
                f"The launcher of {directory} does not answer within {timeout:g} s: it is stopped or very busy. "
                "Look at its process; `kill -CONT` wakes a stopped one."
            ) from None
        except PermissionError:
            raise RunError(
                f"The run in {directory} belongs to another user, and answers nobody else. Ask as that user (sudo -u)."
            ) from None
        except OSError:  # nobody listens there any more
            data = b""
    if not data:
        raise NotRunning(f"No run is going in {directory}. `holdfast status {directory}` shows how it ended.")
    answer: dict[str, Any] = msgspec.json.decode(data)
    if "error" in answer:
        raise UsageError(answer["error"])
    return answer
