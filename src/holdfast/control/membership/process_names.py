"""Process names: what every process of a run is called in sentences, also when it is gone. Pure.

Numbers are given out once, to workers and servers alike, so a number alone does not say what it was. Whoever tells
something of a process asks here, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from holdfast.control.membership.hosts import Hosts
from holdfast.control.membership.roster import titled

__all__ = ["ProcessNames"]


@dataclass(slots=True)
class ProcessNames:
    """All who were ever started. Nobody leaves it: a number is told of long after its process is gone.

    >>> cast = ProcessNames()
    >>> cast.enter(0, host=0); cast.enter(1, host=0, server=True)
    >>> cast.title(1), cast.placed(0), cast.all([0, 1])
    ('server 1', 'worker 0', 'worker 0 and server 1')
    """

    hosts: Hosts = field(default_factory=Hosts)
    _servers: set[int] = field(default_factory=set)
    _where: dict[int, int] = field(default_factory=dict)
    _called: dict[int, str] = field(default_factory=dict)

    def enter(self, number: int, *, host: int, server: bool = False) -> None:
        """A process is to be started."""
        self._where[number] = host
        if server:
            self._servers.add(number)

    def call(self, number: int, name: str) -> None:
        """What has this number is no process, but is compared with some."""
        self._called[number] = name

    def title(self, number: int) -> str:
        """Its role and number."""
        return self._called.get(number) or self.all([number])

    def placed(self, number: int) -> str:
        """The same, and where it is or was, once there was more than one host."""
        where = self._where.get(number)
        return self.title(number) + (self.hosts.on([where]) if where is not None else "")

    def serves(self, number: int) -> bool:
        """Is it, or was it, a server?"""
        return number in self._servers

    def all(self, numbers: Collection[int]) -> str:
        """Several of them."""
        return titled(numbers, self._servers)
