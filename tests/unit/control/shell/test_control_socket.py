"""The control socket: who may ask, and what happens when there is no descriptor left to hear them."""

from __future__ import annotations

import asyncio
import errno
import socket
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.config.limits import CONTROL
from holdfast.control.protocol.requests import Status
from holdfast.control.shell import control_socket
from holdfast.control.shell.control_client import ask
from holdfast.errors import RunError


class Listener:
    """A socket at which the kernel has somebody, and we no descriptor for them, so many times."""

    def __init__(self, real: socket.socket, times: int) -> None:
        self._real, self.times, self.asked = real, times, 0

    def accept(self) -> Any:
        self.asked += 1
        if self.asked <= self.times:
            raise OSError(errno.EMFILE, "Too many open files")
        return self._real.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def test_without_a_descriptor_it_rests_and_then_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_socket, "CONTROL", replace(CONTROL, accept_pause=0.02))

    async def run() -> tuple[int, dict[str, Any]]:
        served: Any = control_socket.ControlSocket(tmp_path / "control.sock", lambda _: {"step": 3})
        served._socket = listener = Listener(served._socket, times=3)
        answer = await asyncio.to_thread(ask, tmp_path, Status())
        served.close()
        return listener.asked, answer

    assert asyncio.run(run()) == (4, {"step": 3}), "not more often than it was let"


def test_a_run_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "connect", connect)
    with pytest.raises(RunError) as caught:
        ask(tmp_path, Status())
    assert str(caught.value) == (
        f"The run in {tmp_path} belongs to another user, and answers nobody else. Ask as that user (sudo -u)."
    )
