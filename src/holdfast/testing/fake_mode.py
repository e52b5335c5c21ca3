"""How lanes keep step on one simulated host, with an eye on when that changes."""

from __future__ import annotations

from collections.abc import Collection

from holdfast.control.protocol.messages import Reached
from holdfast.core.sync.modes import parse
from holdfast.testing.model import Violation

__all__ = ["FakeMode"]


class FakeMode:
    """The mode that counts on one host: that it changes, when, and whether one host holds the state then."""

    def __init__(self) -> None:
        self.reached = Reached()

    @property
    def central(self) -> bool:
        """Does one host hold the state?"""
        return not parse(self.reached.sync).exact

    def turn(self, reached: Reached, versions: Collection[int], acting: Collection[int], begun: bool) -> None:
        """A generation of this mode begins here, where the state is at these versions; of none, if it is fetched."""
        now = self.reached
        if reached.serial < now.serial or (reached.serial == now.serial and reached != now):
            raise Violation(f"a generation is in {reached}, though lanes kept step by {now} before")
        if reached == now:
            return
        if acting:
            raise Violation(f"the mode becomes {reached.sync} while workers {sorted(acting)} act")
        same = (now.sync, now.version, now.step) == (reached.sync, reached.version, reached.step)
        if versions and not same and (begun or set(versions) != {reached.version}):
            raise Violation(f"the mode becomes {reached}, which has begun; slices are at {versions}")
        self.reached = reached
