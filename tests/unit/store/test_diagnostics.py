"""What servers say when they run out of descriptors: it is said, and they go on."""

from __future__ import annotations

import errno
import threading
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from holdfast import store
from holdfast.config.limits import STORE
from holdfast.store.server import server as servers
from holdfast.store.server.supervisor import listen


class Listener:
    """A socket at which the kernel has somebody, and we once no descriptor for them."""

    def __init__(self, real: Any) -> None:
        self._real, self.asked = real, 0

    def accept(self) -> Any:
        self.asked += 1
        if self.asked == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        return self._real.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def test_a_server_without_descriptors_says_so(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(servers, "STORE", replace(STORE, accept_pause=0.01))
    name = "holdfast-test-voice"
    real, (ours, theirs) = listen(f"{name}.0"), servers.Link.pair()
    served: Any = servers.Server(0, 1, real)
    served._listener = Listener(real)
    thread = threading.Thread(target=served.serve, args=(theirs.fileno(),))
    thread.start()
    try:
        with store.connect(f"{name}/1/1", "a", timeout=10.0) as mine:
            mine.init("w", torch.ones(1)).wait()
    finally:
        ours.close()
        thread.join()
    said = "holdfast.store: Server 0 can take no client at the moment: Too many open files. It tries again.\n"
    assert capfd.readouterr().err == said
