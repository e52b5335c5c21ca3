"""A host's memory, for tests of what becomes of it when the mode changes."""

from __future__ import annotations

import mmap
import os

import torch

from holdfast.control.protocol.messages import Reached
from holdfast.dataplane.memory.arena_view import ArenaView
from holdfast.dataplane.memory.host_memory import HostMemory
from holdfast.dataplane.relaxed.inner_state import InnerState
from tests.unit.dataplane.members import LANES, Worker, install, work_of

__all__ = ["Ground", "Stepped", "inner_of", "make_a_round", "parameters_of", "state_of"]


class Ground:
    """The memory of a host with one worker, in a run that was started in `exact`."""

    def __init__(self, worker: Worker | None = None) -> None:
        self.worker = worker or Worker(0, 0)
        source = self.worker.arena._map
        self.fd = os.memfd_create("test")
        os.ftruncate(self.fd, len(source))
        self.map = mmap.mmap(self.fd, len(source))
        self.map[:] = source[:]
        self.host_memory = HostMemory(self.map, self.fd)


class Stepped(Ground):
    """The same, a step of Adam into the run."""

    def __init__(self) -> None:
        worker = Worker(0, 0)
        install([worker], [0] * LANES)
        while worker.turn(work_of(0)) != "done":
            pass
        super().__init__(worker)

    def turn(self, serial: int, sync: str, version: int) -> ArenaView:
        view = self.host_memory.view(Reached(serial, sync, version, 10 * version))
        assert view is not None
        return view


def inner_of(view: ArenaView) -> InnerState:
    return InnerState(view.section, view.manifest.owners())


def state_of(view: ArenaView) -> dict[str, bytes]:
    return {name: bytes(view.section(name)) for name in view.manifest.owners()}


def parameters_of(view: ArenaView) -> bytes:
    return b"".join(bytes(view.section(name)) for name in view.manifest.sections if name.startswith("parameters/"))


def make_a_round(view: ArenaView, version: int) -> None:
    """All lanes have made a round: each leaves the state that it began with, times its number and one."""
    inner = inner_of(view)
    for lane in range(LANES):
        before, after = inner.at(lane, version), inner.after(lane, version)
        for name, data in before.items():
            after[name][:] = data
            if name.startswith("state/"):
                numbers = torch.frombuffer(after[name], dtype=torch.float32)
                numbers.mul_(lane + 1.0)
    for index in range(len(view.manifest.slices)):
        view.board.publish(index, version + 1)
