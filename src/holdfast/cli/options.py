"""Parsing a command line: argparse, with errors of our own that suggest the nearest name."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

from holdfast.errors import UsageError

__all__ = ["Parser", "nearest"]


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose mistakes are UsageErrors."""

    def __init__(self, command: str, description: str, epilog: str = "") -> None:
        super().__init__(
            prog=f"holdfast {command}", description=description, epilog=epilog, allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        """A mistake of whoever typed."""
        raise UsageError(f"{self.prog}: {message}. `{self.prog} --help` shows what there is.")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Read `argv`, or name what is not understood and what is nearest to it."""
        try:
            options, extra = self.parse_known_args(argv)
        except UsageError:
            # What is missing is often only misspelt: that is the better thing to say.
            extra = [word for word in argv if word.startswith("--") and word.partition("=")[0] not in self._known()]
            if not extra:
                raise
        if extra:
            name = extra[0].partition("=")[0]
            raise UsageError(f"{name}: {self.prog} has no such option.{nearest(name, self._known())}")
        return options

    def _known(self) -> list[str]:
        return [name for action in self._actions for name in action.option_strings]


def nearest(name: str, known: Sequence[str]) -> str:
    """" Did you mean ...?", when something is near."""
    from difflib import get_close_matches

    near = get_close_matches(name, known, n=1, cutoff=0.6)
    return f" Did you mean {near[0]}?" if near else ""
