"""What a request ends with: outputs, or the reason why there are none."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.serve.protocol.requests import InferOutput

__all__ = ["Answer", "Unanswered"]


class Answer(NamedTuple):
    """The outputs of one request, all of one version."""

    version: int
    outputs: tuple[InferOutput, ...]
    queued: float  #: seconds until a replica began
    computed: float  #: seconds that its batch took


class Unanswered(Exception):
    """There is no answer. Only 503 says that the request may be sent again: nothing was computed for it.

    `status` is that of HTTP: 404 the version is not served (any more), 500 the model failed, 503 there is no room or no
    replica, 504 the client's time is over. `detail` is what a model has said itself: not for clients.
    """

    def __init__(self, status: int, message: str, retry_after: float = 0.0, *, detail: str = "") -> None:
        self.status, self.retry_after, self.detail = status, retry_after, detail
        super().__init__(message)
