"""How a failed run tells of it: culprit first, the user's own lines only, under 15 lines. Pure."""

from __future__ import annotations

from holdfast.observe.stacks import user_frames

__all__ = ["present"]

_MOST_LINES = 14
_MOST_FRAMES = 4


def present(kind: str, message: str, trace: str, directory: str) -> str:
    """What to print when a run fails.

    The whole message and trace are in `DIR/failure.txt`, so nothing is lost by being short here.
    """
    told = [line for line in message.splitlines() if line.strip()] or [kind]
    frames = user_frames(trace)[-_MOST_FRAMES:]
    tail = [f"  {frame}" for frame in frames]
    if kind == "Hang":
        tail.append(f"stacks: {directory}/hang-*.txt   output: {directory}/logs/")
    elif trace:
        tail.append(f"full trace: {directory}/failure.txt   output: {directory}/logs/")
    room = _MOST_LINES - len(tail)
    if len(told) > room:
        told = [*told[: room - 1], f"... and {len(told) - room + 1} more lines"]
    return "\n".join([f"holdfast: {told[0]}", *told[1:], *tail])
