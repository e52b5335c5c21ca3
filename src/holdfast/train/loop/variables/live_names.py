"""Live names: which variables a frame may still read before it writes them again, by its bytecode. Pure.

A variable that is set anew before anybody reads it has no influence on what follows, whatever it holds now: the number
of a loop that is over, a sum that the next loop begins with 0. All that cannot be known counts as read, but for one
thing: a `for` loop is taken to run once at least, else all that one sets would count as read after it.
"""

from __future__ import annotations

import dis
import heapq
import re
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType

__all__ = ["live_globals", "live_locals", "names_in"]

_ANY = frozenset(("globals", "locals", "vars", "dir", "eval", "exec"))  # who calls these may read everything
_NO_WAY_ON = frozenset(
    ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_ABSOLUTE",
     "JUMP_BACKWARD_NO_INTERRUPT")
)  # fmt: skip


def live_locals(frame: FrameType) -> set[str] | None:
    """Of a function, or of a module that is being run; None: it may read any of them.

    What functions inside of it may read counts, whether they are called or not.
    """
    code = frame.f_code
    of_module = live_globals(code)
    if of_module is None or _ANY & _globals_read(code):
        return None
    found = _live_after(code, frame.f_lasti) | {*code.co_cellvars, *code.co_freevars}
    return found | of_module if frame.f_locals is frame.f_globals else found


def live_globals(main: CodeType) -> set[str] | None:
    """Of a module, those that functions in it may read; None: any of them."""
    found = {name for inner in _inner(main) for name in _globals_read(inner)}
    return None if found & _ANY else found


def names_in(code: CodeType) -> set[str]:
    """All names that a code uses besides its own variables: globals, attributes, what it imports."""
    return {name for one in (code, *_inner(code)) for name in one.co_names}


def _inner(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _inner(constant)


def _globals_read(code: CodeType) -> set[str]:
    return {one.argval for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}


def _live_after(code: CodeType, at: int) -> set[str]:
    """The names that may be read after the instruction at this offset before they are written.

    Sets of names are the bits of numbers here: a long script has many of both.
    """
    instructions = list(dis.get_instructions(code))
    index = {one.offset: number for number, one in enumerate(instructions)}
    entries = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
    bits: dict[str, int] = {}
    does: list[tuple[int, int, list[int], list[int]]] = []  # what it reads first, and writes; what follows; who catches
    for number, one in enumerate(instructions):
        reads = writes = 0
        for name, reading in _names(one):
            bit = 1 << bits.setdefault(name, len(bits))
            if reading:
                reads |= bit & ~writes
            else:
                writes |= bit
        caught = [index[entry.target] for entry in entries if entry.start <= one.offset < entry.end]
        does.append((reads, ~writes, _following(instructions, number, index), caught))
    before = [0] * len(instructions)
    leads: dict[int, list[int]] = {}  # what comes before each
    for number, (_, _, following, caught) in enumerate(does):
        for other in (*following, *caught):
            leads.setdefault(other, []).append(number)

    def union(numbers: Iterable[int]) -> int:
        live = 0
        for other in numbers:
            live |= before[other]
        return live

    waiting = [-number for number in range(len(instructions))]  # the last one first: loops are settled on the way up
    heapq.heapify(waiting)
    while waiting:
        number = -heapq.heappop(waiting)
        reads, kept, following, caught = does[number]
        live = union(following) & kept | reads | union(caught)  # it may raise before it writes
        if live != before[number]:
            before[number] = live
            for other in leads.get(number, ()):
                heapq.heappush(waiting, -other)
    here = max((number for offset, number in index.items() if offset <= at), default=0)
    live = union((*does[here][2], *does[here][3]))
    return {name for name, bit in bits.items() if live >> bit & 1}


def _following(instructions: list[dis.Instruction], number: int, index: dict[int, int]) -> list[int]:
    one = instructions[number]
    following = [number + 1] if one.opname not in _NO_WAY_ON and number + 1 < len(instructions) else []
    if following and instructions[number + 1].opname == "FOR_ITER":  # from here it is the first time
        following = [number + 2]
    if one.opcode in dis.hasjrel or one.opcode in dis.hasjabs:
        following.append(index[one.argval])
    return following


def _names(one: dis.Instruction) -> list[tuple[str, bool]]:
    """The variables that an instruction reads, or else writes, in order. Some do two things at once."""
    names = one.argval if isinstance(one.argval, tuple) else (one.argval,)
    does = re.findall(r"(LOAD|STORE|DELETE)_(?:FAST|NAME|GLOBAL|DEREF|CLASSDEREF|CLOSURE|FROM)", one.opname)
    return [(name, what == "LOAD") for name, what in zip(names, does, strict=False) if isinstance(name, str)]
