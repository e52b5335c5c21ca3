"""Handles: what every verb returns at once, to be waited for or not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from holdfast.store.client.pending import Pending, wait_for

__all__ = ["Handle", "wait"]

Value = TypeVar("Value")


class Handle(Generic[Value]):
    """Something that was asked for. `deadline` (as time.monotonic() counts) is when `wait` gives up unless told more.

    Errors: `wait` and `result` raise what went wrong: UnknownKey, Mismatch, HandlerFailed, StoreTimeout, ServerLost.
    After a StoreTimeout the request goes on, and the handle may be waited for again.
    """

    def __init__(self, pending: Sequence[Pending], finish: Callable[[], Value], deadline: float) -> None:
        self.deadline = deadline
        self._pending, self._finish = pending, finish
        self.error: Exception | None = None  #: what has gone wrong, as far as it is known
        self._value: Value | None = None
        self._finished = False
        self.seen = False  #: somebody was told how it ended

    @classmethod
    def failed(cls, error: Exception) -> Handle[Any]:
        """One that has failed already."""
        handle: Handle[Any] = Handle((), lambda: None, 0.0)
        handle.error = error
        return handle

    @property
    def done(self) -> bool:
        """Has it ended, whichever way? Takes in what has come; does not wait."""
        for pending in self._pending:
            if not pending.done:
                pending.wire.poll()
        return all(pending.done for pending in self._pending)

    def wait(self, timeout: float | None = None) -> None:
        """Until it is done, `timeout` seconds from now, or until the verb's own deadline."""
        self.result(timeout)

    def result(self, timeout: float | None = None) -> Value:
        """The same, and what it gives: a tensor for pull, push_pull and broadcast, None for the others."""
        deadline = self.deadline if timeout is None else time.monotonic() + timeout
        wait_for(self._pending, deadline)
        self.seen = True
        for pending in self._pending:
            pending.seen = True
            self.error = self.error or pending.error
        if self.error is not None:
            raise self.error
        if not self._finished:
            self._value, self._finished = self._finish(), True
            self._finish = _spent
        return self._value  # type: ignore[return-value]


def _spent() -> Any:
    raise AssertionError("a handle is finished once")


def wait(handles: Iterable[Handle[Any]], timeout: float | None = None) -> None:
    """Until all of them are done. Raises the first error among them, when all have ended or time is up."""
    deadline = None if timeout is None else time.monotonic() + timeout
    first: Exception | None = None
    for handle in list(handles):
        try:
            handle.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        except Exception as error:
            first = first or error
    if first is not None:
        raise first
