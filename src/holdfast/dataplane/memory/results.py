"""What operations of the script have given, kept by number for those who come by them later. No torch.

A late worker runs the script from its top and skips what is done; a host that follows a crew never took part. Both find
here what an evaluation returned then. The newest `PAST` are kept.
"""

from __future__ import annotations

__all__ = ["NESTED", "PAST", "PAST_BYTES", "OperationResults"]

PAST = 4096
#: Operations are numbered in steps of this, so that there is room for those inside of each: evaluations in a turn.
NESTED = 1 << 20
_ROOM, _HEAD = 2048, 16  # bytes of each, and of its head: tag, length
PAST_BYTES = PAST * _ROOM


class OperationResults:
    """The results, as bytes."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory

    def fits(self, data: bytes | memoryview) -> bool:
        """Is there room for so much?"""
        return len(data) <= _ROOM - _HEAD

    def put(self, op: int, data: bytes | memoryview) -> None:
        """Keep what `op` has given. All who write it write the same, so there is no moment in which it is not there."""
        at = _place(op)
        head = self._memory[at : at + _HEAD].cast("q")
        head[1] = len(data)
        self._memory[at + _HEAD : at + _HEAD + len(data)] = data
        head[0] = op + 1

    def has(self, op: int) -> bool:
        """Is the result of `op` here?"""
        at = _place(op)
        return self._memory[at : at + 8].cast("q")[0] == op + 1

    def get(self, op: int) -> bytes | None:
        """What `op` has given, if it gave something, is over, and still kept."""
        at = _place(op)
        tag, length = self._memory[at : at + _HEAD].cast("q")
        return bytes(self._memory[at + _HEAD : at + _HEAD + length]) if tag == op + 1 else None

    def drop(self, op: int) -> None:
        """It counts as not made."""
        at = _place(op)
        self._memory[at : at + 8].cast("q")[0] = 0

    def since(self, op: int) -> list[int]:
        """The operations after `op` whose results are here, in order."""
        tags = self._memory[:PAST_BYTES].cast("q")[:: _ROOM // 8].tolist()
        return sorted(tag - 1 for tag in tags if tag - 1 > op)


def _place(op: int) -> int:
    """Where a result lies. Operations inside of another one have its number and one of their own (`NESTED`)."""
    return (op // NESTED + op % NESTED) % PAST * _ROOM
