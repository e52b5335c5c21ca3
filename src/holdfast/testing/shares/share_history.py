"""What a simulated run with a plain loop has committed: of which shares each version was made, and what came out.

All hosts that commit a version must have made it of the same, or have got it from one that did. What only hosts held
that are gone may be made again, of other shares.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.core.shares import LostPart
from holdfast.testing.model import Model, Violation

if TYPE_CHECKING:
    from holdfast.testing.fake_host import FakeHost
    from holdfast.testing.shares.share_arena import FakeShare

__all__ = ["HostHistory", "ShareHistory"]


@dataclass(slots=True)
class _Version:
    """What a step led to."""

    made: tuple[FakeShare, ...]
    state: tuple[int, ...]
    left: tuple[LostPart, ...]
    hosts: list[FakeHost]

    @property
    def lost(self) -> bool:
        """Is nobody left that held it?"""
        return all(_gone(host) for host in self.hosts)


class ShareHistory:
    """The versions of one run."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._versions = {0: _Version((), tuple(range(model.slices)), (), [])}

    def commit(self, host: FakeHost, step: int, version: _Version) -> None:
        """A host has finished a step."""
        if _gone(host):
            return
        before = self._versions.get(step + 1)
        if before is None or (before.lost and not _same(before, version)):
            for later in [at for at in self._versions if at > step]:
                del self._versions[later]
            self._versions[step + 1] = version
        elif _same(before, version):
            before.hosts.append(host)
        else:
            raise Violation(
                f"host {host.number} makes step {step} of {version.made}, and leaves {version.left}, but hosts "
                f"{[one.number for one in before.hosts if not _gone(one)]} made it of {before.made}, and left "
                f"{before.left}"
            )

    def fetch(self, host: FakeHost, version: int, state: Sequence[int], left: Sequence[LostPart]) -> None:
        """A host has got a version from another one."""
        if _gone(host):
            return
        known = self._versions.get(version)
        if known is None or (known.state, known.left) != (tuple(state), tuple(left)):
            raise Violation(f"the state that was fetched is not what step {version - 1} led to")
        known.hosts.append(host)

    def made(self, step: int) -> tuple[FakeShare, ...]:
        """The shares of which a step was made."""
        return self._versions[step + 1].made

    def backlogs(self) -> dict[int, tuple[LostPart, ...]]:
        """Version -> what was left over when it began."""
        return {at: version.left for at, version in self._versions.items()}

    def check_end(self, committed: Iterable[int]) -> None:
        """All samples of the run were used once, or are left over, where so many steps are committed."""
        steps = max(committed, default=0)
        made = [self._versions[step + 1].made for step in range(steps)]
        used = [part for shares in made for share in shares for part in share.parts]
        there = [LostPart(0, 0, step, lane) for step in range(steps) for lane in self._model.lanes_at(step)]
        left = self._versions[steps].left
        if sorted((*used, *left)) != there:
            raise Violation(f"of {len(there)} parts {len(used)} were used and {len(left)} left over: {sorted(used)}")


class HostHistory:
    """What one host writes into it."""

    def __init__(self, history: ShareHistory, host: FakeHost) -> None:
        self._history, self._host = history, host

    def commit(
        self, step: int, made: tuple[FakeShare, ...], state: tuple[int, ...], left: tuple[LostPart, ...]
    ) -> None:
        """It has finished a step."""
        self._history.commit(self._host, step, _Version(made, state, left, [self._host]))

    def fetch(self, version: int, state: Sequence[int], left: Sequence[LostPart]) -> None:
        """It has got a version from another one."""
        self._history.fetch(self._host, version, state, left)


def _same(one: _Version, other: _Version) -> bool:
    return (one.made, one.state, one.left) == (other.made, other.state, other.left)


def _gone(host: FakeHost) -> bool:
    return host.closed or not host.up
