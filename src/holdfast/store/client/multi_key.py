"""Several keys under one verb, with one handle and one deadline.

Each key has a request of its own, and a push of it counts or fails by itself. So that nothing is applied by half that
need not be, what can be known is looked at for all keys before anything is sent. What goes wrong later is told
together with what became of each key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from holdfast.errors import (
    HandlerFailed,
    HoldfastError,
    Mismatch,
    ResourceError,
    ServerLost,
    StoreError,
    StoreTimeout,
    UnknownKey,
    UsageError,
)
from holdfast.store.client.handle import Handle
from holdfast.store.client.keyed_requests import KeyedRequests
from holdfast.store.client.pending import Pending
from holdfast.store.messages import Init, PushRequest
from holdfast.store.owners import checked_name

__all__ = ["Keys", "MultiKeyHandle", "multi_keyed", "one_each", "several", "tale"]

#: Several keys, in an order: what is given and what comes back is in the same one.
Keys = list[str] | tuple[str, ...]

#: What a verb that changes something has done to a key when all is well.
_DID = {"init": "initialised", "push": "applied", "push_pull": "applied"}
#: Verbs on keys that must be there.
_OF_KNOWN = ("push", "pull", "push_pull")
#: With these a server (or this client) says that it has not done it.
_REFUSALS = (HandlerFailed, Mismatch, ResourceError, UnknownKey, UsageError)
#: Errors that are a text and nothing else.
_PLAIN = (*_REFUSALS, ServerLost, StoreError, StoreTimeout)
_SHOWN = 5  #: names in one list


def several(key: object) -> tuple[str, ...] | None:
    """The keys, if it is several; None: it is one. Raises UsageError."""
    if isinstance(key, list | tuple):
        names = tuple(checked_name(one, "key") for one in key)
        if len(set(names)) < len(names):
            twice = next(name for i, name in enumerate(names) if name in names[:i])
            raise UsageError(f"Key {twice!r} is named twice among {len(names)} keys of one call. Name every key once.")
        return names
    if isinstance(key, Iterable) and not isinstance(key, str | bytes | Tensor):
        raise UsageError(
            f"Keys were given as a {type(key).__name__}. Give one key as text, or several as a list or a tuple, whose "
            "order is that of the values: list(keys)."
        )
    return None


def one_each(what: str, verb: str, keys: Sequence[str], given: Any) -> Sequence[Any]:
    """What was given for each of several keys; None stands for nothing for each. Raises UsageError."""
    if given is None:
        return [None] * len(keys)
    if not isinstance(given, list | tuple) or len(given) != len(keys):
        count = f"{len(given)}" if isinstance(given, list | tuple) else f"a {type(given).__name__}"
        raise UsageError(f"{verb} of {len(keys)} keys was given {count} as {what}: give a list with one for each key.")
    if what == "rows" and (bad := next((one for one in given if isinstance(one, int)), None)) is not None:
        raise UsageError(
            f"{verb} of {len(keys)} keys was given the number {bad} as rows of one of them: give a list of row numbers "
            "for each key, or None for all of its rows."
        )
    return given


def tale(verb: str, fates: Mapping[str, str]) -> str:
    """What became of each key.

    >>> tale("push", {"a": "applied", "b": "not applied", "c": "applied"})
    "Of the 3 keys of this push, 'a', 'c' were applied; 'b' was not applied."
    """
    told = []
    for fate in dict.fromkeys(fates.values()):
        names = [repr(name) for name, one in fates.items() if one == fate]
        shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
        told.append(f"{shown} {'was' if len(names) == 1 else 'were'} {fate}")
    return f"Of the {len(fates)} keys of this {verb}, {'; '.join(told)}."


def multi_keyed(
    keyed_requests: KeyedRequests, verb: str, keys: Sequence[str], act: Callable[..., Handle[Any]],
    given: Mapping[str, Any],
    deadline: float,
) -> Handle[Any]:  # fmt: skip
    """One handle for what `act` asks for every key. `given` has one of each for each of them. Raises UsageError."""
    columns = [one_each(what, verb, keys, column) for what, column in given.items()]
    if verb in _OF_KNOWN:
        try:
            for known, value in zip(keyed_requests.known(keys, deadline), columns[0], strict=True):
                if verb in _DID:
                    keyed_requests.check(known, value)
        except StoreError as error:
            nothing = f" None of the {len(keys)} keys of this {verb} was {_DID[verb]}." if verb in _DID else ""
            return Handle.failed(type(error)(f"{error}{nothing}"))
    parts: dict[str, Handle[Any]] = {}
    with keyed_requests.together():
        for key, *row in zip(keys, *columns, strict=True):
            try:
                parts[key] = act(key, *row)
            except (StoreError, ResourceError) as error:
                parts[key] = Handle.failed(error)
    return MultiKeyHandle(verb, parts, deadline)


class MultiKeyHandle(Handle[Any]):
    """The handle of several keys; `parts` are theirs.

    Errors: the first that a key had, when all have ended; and what became of the others.
    """

    def __init__(self, verb: str, parts: Mapping[str, Handle[Any]], deadline: float) -> None:
        super().__init__([one for part in parts.values() for one in part._pending], self._all, deadline)
        self._verb, self._parts = verb, parts
        self.error = next((part.error for part in parts.values() if part.error is not None), None)

    def result(self, timeout: float | None = None) -> Any:
        """What every key gives, in their order; None where a verb gives nothing."""
        try:
            return super().result(timeout)
        except HoldfastError as error:
            if self._verb not in _DID or type(error) not in _PLAIN:
                raise
            fates = {key: _fate(self._verb, part) for key, part in self._parts.items()}
            raise type(error)(f"{error} {tale(self._verb, fates)}") from error

    def _all(self) -> tuple[Any, ...] | None:
        values = tuple(part.result() for part in self._parts.values())
        return None if self._verb in ("init", "push") else values


def _fate(verb: str, part: Handle[Any]) -> str:
    """What became of one key, in words."""
    did = _DID[verb]
    writes = [pending for pending in part._pending if isinstance(pending.request, PushRequest | Init)]
    fates = {_ended(pending) for pending in writes} or {False}  # without any, it was not even asked for
    if fates == {True}:
        return did
    if True in fates:
        return f"{did} in part"  # of a key that is spread
    return f"not {did}" if fates == {False} else "not answered"


def _ended(pending: Pending) -> bool | None:
    """Was it done? None: nobody knows."""
    if pending.answer is not None:
        return True
    return False if isinstance(pending.error, _REFUSALS) else None
