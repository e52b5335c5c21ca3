"""Which variables a script may still read from where it stands."""

from __future__ import annotations

import sys

import pytest

from holdfast.train.loop.variables.live_names import live_locals


def live(script: str) -> list[str] | None:
    """Where the script says `here()`, in order of the alphabet; of its own variables only."""
    found: list[set[str] | None] = []
    namespace = {"here": lambda: found.append(live_locals(sys._getframe(1)))}
    exec(compile(script, "script.py", "exec"), namespace)
    return None if found[0] is None else sorted(found[0] - {"here", "print", "range", "sum", "open", "ValueError"})


@pytest.mark.parametrize(
    ("script", "names"),
    [
        ("a = b = 1\nhere()\nprint(a)", ["a"]),
        ("a = 1\nhere()\na = 2\nprint(a)", []),
        ("a = 1\nhere()\nif a:\n    b = 1\nelse:\n    b = 2\nprint(b)", ["a"]),
        ("a = b = 1\nhere()\nif a:\n    b = 2\nprint(b)", ["a", "b"]),
        # a loop is gone through once at least; what it reads before it sets it, it reads the first time
        ("n = 0\nfor k in range(2):\n    here()\n    n = 0\n    for i in range(3):\n        n += i\n    print(i)", []),
        ("n = 0\nfor k in range(2):\n    here()\n    for i in range(3):\n        n += i\n    print(n)", ["n"]),
        ("n = 0\nwhile n < 1:\n    here()\n    n += 1", ["n"]),
        ("a = b = 1\nhere()\ntry:\n    a = 2\n    b = 2\nexcept ValueError:\n    print(a)\nprint(b)", ["a", "b"]),
        ("a = 1\nhere()\nwith open('/dev/null') as f:\n    a = 2\nprint(a)", ["a"]),  # after an exception, say
        ("a = b = 1\ndef f():\n    return a\nhere()\nb = 2", ["a"]),  # whether somebody calls it or not
        ("a = 1\nhere()\nb = [a for a in range(2)]", []),
        ("a = 1\nhere()\nb = sum(a for _ in range(2))", ["a"]),
        ("a = 1\ndef f(model):\n    model.eval()\nhere()", []),
        ("a = 1\nhere()\nprint(globals())", None),
        ("def f():\n    return eval('a')\nhere()", None),
    ],
)
def test_of_a_script(script: str, names: list[str] | None) -> None:
    assert live(script) == names


def test_of_a_function() -> None:
    script = (
        "def main():\n    a = b = c = 1\n    def inner():\n        return c\n    for k in range(2):\n        here()\n"
        "        a = 0\n        a += b\n    print(a)\nmain()"
    )
    assert live(script) == ["b", "c"]
