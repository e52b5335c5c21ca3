"""`holdfast set DIR sync=MODE`: change how a going run keeps step."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.cli.options import Parser, nearest
from holdfast.cli.rundir import open_run
from holdfast.control.protocol.requests import Set
from holdfast.control.shell.control_client import ask
from holdfast.core.sync.modes import parse
from holdfast.errors import ConfigError, UsageError

__all__ = ["main"]

#: What can be set while a run is going.
SETTABLE = ("sync",)


def main(argv: Sequence[str]) -> int:
    """Ask the run; say what it decided."""
    it = Parser(
        "set", "Change a setting of a going run.",
        "What can be set:\n  sync=MODE   how lanes keep step, from the next step boundary on: exact, bounded:S, "
        "quorum:K,\n              async or local:H",
    )
    it.add_argument("dir", metavar="DIR", help="the run's directory")
    it.add_argument("setting", metavar="NAME=VALUE", help="what shall be")
    options = it.parse(argv)
    name, equals, value = options.setting.partition("=")
    if name not in SETTABLE:
        hint = nearest(name, SETTABLE).strip() or "For example: holdfast set DIR sync=bounded:2."
        if name in ("workers", "servers"):
            hint = f"For the number of {name} there is holdfast scale."
        raise ConfigError(
            name, value, f"cannot be set while a run is going; what can: {', '.join(SETTABLE)}", source="holdfast set",
            fix=hint,
        )
    if not equals:
        raise UsageError(f"{options.setting}: a setting is written name=value. For example: sync=bounded:2.")
    try:
        mode = parse(value)
    except ValueError as error:
        raise ConfigError(name, value, str(error), source="holdfast set", fix="For example: sync=bounded:2.") from None
    answer = ask(open_run(options.dir), Set(mode.name))
    print(answer["sentence"])
    return 0
