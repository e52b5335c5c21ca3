"""A machine and a clock for tests: say what happens, get the commands."""

from __future__ import annotations

from typing import Any

from holdfast.config.limits import CrewConfig
from holdfast.control.machine import CrewLimits, Machine
from holdfast.control.protocol.commands import Command, Send, StartWorker
from holdfast.control.protocol.events import Event, HostJoined, RunStarted
from holdfast.control.protocol.messages import Failed, Install, Pause, Paused, Ready, Seeded, Welcome


def ready(worker: int, *, threads: str = "1", golden: str = "aa11", model: str = "net") -> Ready:
    return Ready(worker, {"torch": "2.13", "threads": threads}, golden, model, 4096)


def failed(worker: int, unit: tuple[int, int] | None = None, *, kind: str = "ValueError", where: str = "train.py:12",
           message: str = "boom", samples: list[int] | None = None, step: int | None = None) -> Failed:
    return Failed(worker, 1, kind, message, where, f"trace of worker {worker}", unit, samples or [],
                  (unit[0] if unit else -1) if step is None else step)


def install(generation: int, members: list[int], drivers: list[int], rows: list[int] | None = None,
            *, hosts: list[int] | None = None, sources: dict[int, int] | None = None, stop: int = 0) -> Install:
    where = [0] * len(members) if hosts is None else hosts
    return Install(generation, members, members if rows is None else rows, drivers, where, sources or {}, stop)


def to(message: Any, *workers: int) -> list[Command]:
    """The same message to each of these."""
    return [Send(worker, message) for worker in workers]


def welcome(worker: int, *, seed: bool = False) -> Send:
    return Send(worker, Welcome(worker, seed))


class Driven:
    """A machine whose clock goes on by a tenth of a second with every event."""

    def __init__(self, lanes: int = 4, workers: int = 2, **limits: Any) -> None:
        times = {name: limits.pop(name) for name in CrewConfig.__struct_fields__ if name in limits}
        crew = CrewConfig(**{"join_grace": 2.0, **times})
        self.machine = Machine(CrewLimits(lanes=lanes, workers=workers, crew=crew, **limits))
        self.now = 0.0
        self._workers = workers

    def __call__(self, *events: Event, after: float = 0.1) -> list[Command]:
        """Let these happen; the commands that the last one led to."""
        commands: list[Command] = []
        for event in events:
            self.now = round(self.now + after, 3)
            commands = self.machine.handle(event, self.now)
        return commands

    def started(self) -> list[Command]:
        """The launcher is up, and so is its host."""
        return self(RunStarted(), HostJoined(0, "here", self._workers))

    def begun(self) -> Driven:
        """All workers ready, generation 1 installed."""
        commands = self.started()
        workers = [command.worker for command in commands if isinstance(command, StartWorker)]
        self(*map(ready, workers))
        self(Seeded(workers[0]))
        assert self.machine.snapshot().generation == 1
        return self

    def quiet(self, generation: int, *workers: int, step: int = 3) -> list[Command]:
        """These say that they are quiet."""
        return self(*(Paused(worker, generation, step) for worker in workers))

    @property
    def told(self) -> str:
        """The last sentence of the story."""
        return list(self.machine.story)[-1].sentence


def pause(generation: int, *workers: int) -> list[Command]:
    return to(Pause(generation), *workers)
