"""Runs that go from mode to mode, by two scripts that can say in the end whether anything was lost.

    with Counted(tmp_path, syncs, "--workers", 2, epochs=8) as run:
        run.through(syncs[1:], lambda: strike_somebody(run, chance))
        assert run.end() == 0, run.err
    run.judge()

`Counted` (`scripts/tally.py`) says of every push how often it counted, and how much, whatever the modes. `Computed`
(`scripts/adam.py`) has an optimizer that keeps something; its weights are computed once more in plain torch, by modes
whose result does not depend on timing.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import torch

from holdfast.control.protocol.requests import Set
from holdfast.control.shell.control_client import ask
from tests.process.byhand import STEPS, by_hand
from tests.process.counted import TALLY, applied_once, arguments, settings
from tests.process.harness import SCRIPTS, Launch
from tests.process.joined import LOOPBACK, Joined, joining
from tests.process.trail import AUDITED, samples_of_steps

__all__ = ["LOCALS", "Computed", "Counted", "Judged", "Machines", "drawn", "modes", "strike_somebody", "turn"]

LOCALS = ("local:1", "local:3", "local:7")


def turn(run: Launch, sync: str, struck: Callable[[], object] = lambda: None) -> int:
    """Have another mode, and wait for it. The step from which it counts."""
    ask(run.dir, Set(sync))
    struck()
    run.wait(lambda s: s.get("sync") == sync, f"sync = {sync}")
    return int(re.findall(rf"lanes keep step by {sync} from step (\d+) on", "\n".join(run.story))[-1])


def modes(run: Launch) -> list[str]:
    """The modes that it went through."""
    return [mode["sync"] for mode in run.summary["modes"]]


def drawn(chance: random.Random, number: int, syncs: Sequence[str], first: str = "") -> list[str]:
    """So many modes of these, none twice in a row."""
    found = [first or chance.choice(syncs)]
    while len(found) < number:
        found.append(chance.choice([sync for sync in syncs if sync != found[-1]]))
    return found


def strike_somebody(run: Launch, chance: random.Random) -> None:
    """Kill a worker or a server, a random moment from now."""
    run.go_on_for(chance.random() * 0.3)
    status = run.status()
    if pids := [one["pid"] for one in (*status["workers"], *status["servers"]) if one["state"] == "member"]:
        run.strike(chance.choice(pids))


# ---------------------------------------------------------------- runs that are judged


class Judged(Launch):
    """A run that is slow until it may `go`, on this machine or on several `hosts`."""

    script: ClassVar[Path]

    def __init__(
        self, tmp_path: Path, syncs: Sequence[str], *options: object, epochs: int, pace: float, hosts: int = 0,
        args: str = "",
    ) -> None:  # fmt: skip
        self.epochs, self._go = epochs, tmp_path / "go"
        where = (*LOOPBACK, "--hosts", hosts) if hosts else ()
        args = f"{self.arguments(tmp_path, epochs)} --pace {pace} {args}"
        super().__init__(tmp_path, self.script, *where, *options, *self.settings(syncs), args=args)
        self._traced = True

    def __enter__(self) -> Judged:
        return self

    @staticmethod
    def arguments(tmp_path: Path, epochs: int) -> str:
        """What the script is told: how long it is, and the files that it leaves and looks for."""
        raise NotImplementedError

    @staticmethod
    def settings(syncs: Sequence[str]) -> tuple[object, ...]:
        """Options of a run that begins with the first of these modes, and has the others later."""
        raise NotImplementedError

    def judge(self) -> None:
        """Nothing was lost, and nothing counted twice."""
        raise NotImplementedError

    def through(self, syncs: Sequence[str], struck: Callable[[], object] = lambda: None, steps: int = 0) -> None:
        """Have one mode after the other, and so many steps of each; then the run may end."""
        self.at_step(2)
        for sync in syncs:
            turn(self, sync, struck)
            if steps:
                self.at_step(self.trace.read().step + steps)
        self.go()

    def go(self) -> None:
        """From now on it is as fast as it can be."""
        self._go.touch()


class Counted(Judged):
    """Every push was applied once, with the weight that is its due. Stale ones count as any others."""

    script = TALLY

    @staticmethod
    def arguments(tmp_path: Path, epochs: int) -> str:
        return arguments(tmp_path, epochs)

    @staticmethod
    def settings(syncs: Sequence[str]) -> tuple[object, ...]:
        return ("--set", "staleness=plain", *settings(*syncs))

    def judge(self) -> None:
        applied_once(self, self.epochs, plain=True)


class Computed(Judged):
    """The weights are those that plain torch comes to, with these samples, through these modes."""

    script = SCRIPTS / "adam.py"
    loaded = (0, 0.0, 0.0)  #: what the optimizer went on from

    @staticmethod
    def arguments(tmp_path: Path, epochs: int) -> str:
        return f"--epochs {epochs} --go {tmp_path}/go --trace {tmp_path}/trace-run"

    @staticmethod
    def settings(syncs: Sequence[str]) -> tuple[object, ...]:
        return (*AUDITED, "--sync", syncs[0])

    def judge(self) -> None:
        steps = self.epochs * STEPS
        samples = samples_of_steps(self)
        for epoch in range(self.epochs):
            used = [number for step in range(epoch * STEPS, (epoch + 1) * STEPS) for number in samples[step]]
            assert sorted(used) == list(range(64)), f"epoch {epoch}: {len(used)} samples of 64\n{self.err}"
        assert self.summary["steps"] == steps and self.summary["samples"] == self.epochs * 64
        line = next(line for line in self.out.splitlines() if line.startswith("weights "))
        found = torch.tensor([float.fromhex(word) for word in line.split()[1:]], dtype=torch.float64)
        wanted = by_hand(self.trace.units, samples, self.summary["modes"], steps, self.loaded)
        assert torch.allclose(found, wanted, rtol=1e-9, atol=1e-12), (found, wanted, self.summary["modes"])


# ---------------------------------------------------------------- several machines


class Machines:
    """Machines 1, 2 and 3 of a run. Where one is lost by chance, another one takes its place."""

    def __init__(self, tmp_path: Path, run: Launch, stack: contextlib.ExitStack) -> None:
        self._run, self._join = run, lambda number: stack.enter_context(joining(tmp_path, run, number))
        self._numbers = itertools.count(4)
        self._joined = {number: self._join(number) for number in (1, 2, 3)}

    @property
    def primary(self) -> int:
        """The machine that holds the state; where all of them do, the first one."""
        return next((h["host"] for h in self._run.status()["hosts"] if h["role"] == "home"), min(self._joined))

    def lose(self, number: int) -> Joined:
        """This machine is gone."""
        lost = self._joined.pop(number)
        lost.kill_all()
        return lost

    def lose_the_primary(self) -> None:
        """The machine that holds the state is gone, and the run has seen it."""
        number = self.primary
        self.lose(number)
        self._run.told(f"host {number} lost")

    def calm(self) -> None:
        """Wait until all three work, and have done so for some steps."""
        run = self._run
        calm = run.wait(lambda s: len({w["host_number"] for w in s["workers"] if w["lanes"]}) == 3, "three hosts")
        run.wait(lambda s: s["generation"] > calm["generation"] or s["step"] > calm["step"] + 1, "steps")

    def strike(self, chance: random.Random) -> None:
        """The primary, another machine, or somebody's worker is lost, a random moment from now."""
        self._run.go_on_for(chance.random() * 0.4)
        status, primary = self._run.status(), self.primary
        what = chance.choice(("home", "home", "host", "worker"))
        lost = primary if what == "home" else chance.choice(sorted(self._joined))
        pids = [w["pid"] for w in status["workers"] if w["state"] == "member" and w["host_number"] == lost]
        if what != "worker":
            self.lose(lost)
            number = next(self._numbers)
            self._joined[number] = self._join(number)
        elif pids:
            self._run.strike(chance.choice(pids))
