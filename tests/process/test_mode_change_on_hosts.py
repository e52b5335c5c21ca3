"""`holdfast set DIR sync=MODE` on several machines: every host is in one mode, and the state in the right place."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from holdfast.control.protocol.requests import Set
from holdfast.control.shell.control_client import ask
from tests.process.counted import TALLY, applied_once, arguments, settings
from tests.process.harness import Launch, golden
from tests.process.joined import Joined
from tests.process.test_mode_change import SLOW, audited, modes, turn
from tests.process.test_modes_on_hosts import LOOPBACK, first, going, joining

pytestmark = [pytest.mark.process, pytest.mark.sharing]


@pytest.mark.parametrize(
    ("model", "servers"),
    [("normed", 1), *(pytest.param(m, s, marks=pytest.mark.chaos) for m in ("normed", "transformer") for s in (0, 1))],
)
def test_there_and_back_has_the_bits_of_exact(tmp_path: Path, model: str, servers: int) -> None:
    """By bounded:0. In between a worker of another host is lost, and a machine joins in the mode that counts then."""
    options = (*LOOPBACK, "--hosts", 2, "--workers", 1, "--servers", servers)
    with Launch(tmp_path, model, *options, args=SLOW.format(tmp_path)) as run, \
            Joined(tmp_path, run, workers=1, name="a") as other:  # fmt: skip
        run.at_step(3)
        start = turn(run, "bounded:0")
        away = run.wait(lambda s: [w for w in s["workers"] if w["host_number"] == 1 and w["pid"]], "one over there")
        run.strike(next(w["pid"] for w in away["workers"] if w["host_number"] == 1))
        run.wait(lambda s: s["workers_lost"] == 1, "the loss")
        with Joined(tmp_path, run, name="b") as third:
            run.wait(lambda s: any(w["host_number"] == 2 and w["lanes"] for w in s["workers"]), "a third host's work")
            end = turn(run, "exact")
            run.wait(lambda s: len({w["host_number"] for w in s["workers"] if w["lanes"]}) == 3, "three hosts")
            (tmp_path / "go").touch()
            assert run.end() == 0, run.err
            assert (other.end(), third.end()) == (0, 0), (other.err, third.err)
    assert run.summary["modes"] == [
        {"step": 0, "sync": "exact"}, {"step": start, "sync": "bounded:0"}, {"step": end, "sync": "exact"},
    ]  # fmt: skip
    audited(run)
    assert run.sha256 == golden(model, 4, "--epochs", "6")


@contextlib.contextmanager
def counting(tmp_path: Path, *options: object, hosts: int, epochs: int = 16) -> Iterator[Launch]:
    """A run of the audit model, which is slow until the file `go` is there."""
    options = (*LOOPBACK, "--hosts", hosts, "--set", "staleness=plain", *options)
    with Launch(tmp_path, TALLY, *options, args=f"{arguments(tmp_path, epochs)} --pace 0.05") as run:
        yield run


@pytest.mark.chaos
def test_every_push_is_applied_once_though_workers_and_hosts_are_lost_meanwhile(tmp_path: Path) -> None:
    with counting(tmp_path, "--workers", 1, "--servers", 1, hosts=3) as run, \
            Joined(tmp_path, run, name="a") as a, Joined(tmp_path, run, name="b") as b:  # fmt: skip
        going(run, tmp_path)
        pids = run.crew_of(3)
        turn(run, "async", lambda: run.strike(pids[2]))
        run.crew_of(3)
        turn(run, "bounded:2", a.kill_all)
        turn(run, "exact")
        (tmp_path / "go").touch()
        assert run.end() == 0, run.err
        assert b.end() == 0, b.err
    assert modes(run) == ["exact", "async", "bounded:2", "exact"]
    applied_once(run, 16, plain=True)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(20))
def test_every_push_is_applied_once_under_many_schedules(tmp_path: Path, seed: int) -> None:
    """Random modes, and somebody, or a whole machine, is lost a random moment after each is asked for. Others join."""
    chance = random.Random(seed)
    syncs = ["exact"]
    while len(syncs) < 5:
        syncs.append(chance.choice([m for m in ("exact", "bounded:0", "bounded:3", "async") if m != syncs[-1]]))
    with contextlib.ExitStack() as stack:
        run = stack.enter_context(counting(tmp_path, "--workers", 1, "--servers", seed % 3, hosts=3, epochs=24))
        joined = [stack.enter_context(Joined(tmp_path, run, name=f"j{n}")) for n in range(2)]
        going(run, tmp_path)
        for number, sync in enumerate(syncs[1:]):

            def strike(number: int = number) -> None:
                run.go_on_for(chance.random() * 0.3)
                everybody = [*run.status()["workers"], *run.status()["servers"]]
                pids = [one["pid"] for one in everybody if one["state"] == "member"]
                if chance.random() < 0.4:
                    joined.pop(chance.randrange(len(joined))).kill_all()
                    joined.append(stack.enter_context(Joined(tmp_path, run, name=f"again{number}")))
                elif pids:
                    run.strike(chance.choice(pids))

            turn(run, sync, strike)
        (tmp_path / "go").touch()
        assert run.end(120) == 0, run.err
    assert modes(run) == syncs
    applied_once(run, 24, plain=True)


@pytest.mark.chaos
@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.1, 0.2, 0.4])
@pytest.mark.parametrize("sync", ["bounded:0", "bounded:2"])
def test_the_primary_is_lost_while_the_mode_changes(tmp_path: Path, sync: str, seconds: float) -> None:
    """From exact: until the others have given up what they hold, the run goes on from there; later it is lost."""
    with counting(tmp_path, "--workers", 0, hosts=2, epochs=8) as run, \
            first(tmp_path, run) as primary, Joined(tmp_path, run, name="b"):  # fmt: skip
        run.wait(lambda s: s["step"] and s["step"] >= 2, "some steps")
        ask(run.dir, Set(sync))
        run.go_on_for(seconds)
        primary.kill_all()
        (tmp_path / "go").touch()
        code = run.end(60)
    if code == 0:
        assert modes(run) in (["exact", sync], ["exact"])
        applied_once(run, 8, plain=True)
    else:
        assert "The state of the run is lost at step" in run.err
        assert f"lanes keep step by {sync}" in run.err


@pytest.mark.chaos
def test_a_host_that_follows_when_the_mode_changes_is_taken_in(tmp_path: Path) -> None:
    """And one that joins a run which was started in another mode follows it in `exact`."""
    with counting(tmp_path, "--workers", 2, "--sync", "bounded:1", hosts=1, epochs=24) as run:
        going(run, tmp_path)
        turn(run, "exact")
        with Joined(tmp_path, run, name="a") as a:
            run.told("host 1 has caught up")
            run.wait(lambda s: any(w["host_number"] == 1 and w["lanes"] for w in s["workers"]), "its work")
            with Joined(tmp_path, run, name="b") as b:
                run.told("host 2 (")
                turn(run, "async")
                run.wait(lambda s: any(w["host_number"] == 2 and w["lanes"] for w in s["workers"]), "its work")
                turn(run, "exact")
                (tmp_path / "go").touch()
                assert run.end() == 0, run.err
                assert (a.end(), b.end()) == (0, 0)
    applied_once(run, 24, plain=True)


# ---------------------------------------------------------------- with replicas


def lose_the_primary(run: Launch, joined: Sequence[Joined]) -> None:
    """The machine that holds the state is gone; where all of them do, the first one."""
    roles = {host["role"]: host["host"] for host in reversed(run.status()["hosts"])}
    primary = roles.get("home", roles.get(None))
    joined[primary - 1].kill_all()
    run.told(f"host {primary} lost")


@pytest.mark.parametrize(
    "syncs",
    [
        ("async", "exact", "bounded:2"),
        *(pytest.param(s, marks=pytest.mark.chaos) for s in (("exact", "async"), ("bounded:2", "quorum:2", "async"))),
    ],
    ids=lambda syncs: "-".join(syncs),
)
def test_with_a_replica_the_primary_may_be_lost_right_after_a_change(tmp_path: Path, syncs: tuple[str, ...]) -> None:
    """Of three machines one is left in the end: nothing is lost with the primary of a mode, nor in exact."""
    options = ("--workers", 0, "--replicas", 2, "--sync", syncs[0])
    with counting(tmp_path, *options, hosts=3) as run, contextlib.ExitStack() as stack:
        joined = [stack.enter_context(joining(tmp_path, run, number)) for number in (1, 2, 3)]
        going(run, tmp_path)
        for sync in syncs[1:]:
            turn(run, sync)
            lose_the_primary(run, joined)
        (tmp_path / "go").touch()
        assert run.end() == 0, run.err
    assert modes(run) == list(syncs)
    assert "made again" not in run.err
    applied_once(run, 16, plain=True)


class Machines:
    """Three machines of a run. Others take the place of those that are lost."""

    def __init__(self, tmp_path: Path, run: Launch, stack: contextlib.ExitStack) -> None:
        self._run, self._join = run, lambda number: stack.enter_context(joining(tmp_path, run, number))
        self._numbers = itertools.count(4)
        self._joined = {number: self._join(number) for number in (1, 2, 3)}

    def calm(self) -> None:
        """Wait until all three work, and have done so for some steps."""
        run = self._run
        calm = run.wait(lambda s: len({w["host_number"] for w in s["workers"] if w["lanes"]}) == 3, "three hosts")
        run.wait(lambda s: s["generation"] > calm["generation"] or s["step"] > calm["step"] + 1, "steps")

    def strike(self, chance: random.Random) -> None:
        """The primary, another machine, or somebody's worker is lost, a random moment from now."""
        self._run.go_on_for(chance.random() * 0.4)
        status = self._run.status()
        primary = next((h["host"] for h in status["hosts"] if h["role"] == "home"), min(self._joined))
        what = chance.choice(("home", "home", "host", "worker"))
        lost = primary if what == "home" else chance.choice(sorted(self._joined))
        pids = [w["pid"] for w in status["workers"] if w["state"] == "member" and w["host_number"] == lost]
        if what != "worker":
            self._joined.pop(lost).kill_all()
            number = next(self._numbers)
            self._joined[number] = self._join(number)
        elif pids:
            self._run.strike(chance.choice(pids))

    def go_through(self, syncs: Sequence[str], chance: random.Random) -> None:
        """Each of these modes is asked for, with a strike each time, and nothing that was shown is made again."""
        run = self._run
        for sync in syncs[1:]:
            self.calm()
            turn(run, sync, lambda: self.strike(chance))
        (run.dir.parent / "go").touch()
        assert run.end(120) == 0, run.err
        assert modes(run) == list(syncs)
        assert "made again" not in run.err


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(24))
def test_with_replicas_nothing_is_lost_under_many_schedules(tmp_path: Path, seed: int) -> None:
    """Random modes; the primary, another machine, or a worker is lost a random moment after each is asked for."""
    chance = random.Random(1000 + seed)
    syncs = [chance.choice(("exact", "bounded:2", "async", "quorum:2", "local:3"))]
    while len(syncs) < 4:
        others = ("exact", "exact", "bounded:0", "bounded:3", "async", "quorum:2", "local:1", "local:3")
        syncs.append(chance.choice([sync for sync in others if sync != syncs[-1]]))
    options = ("--workers", 0, "--replicas", 1 + seed % 2, "--servers", int(seed % 3 == 0), *settings(*syncs))
    with contextlib.ExitStack() as stack:
        run = stack.enter_context(counting(tmp_path, *options, hosts=3, epochs=40))
        machines = Machines(tmp_path, run, stack)
        going(run, tmp_path)
        machines.go_through(syncs, chance)
    applied_once(run, 40, plain=True)
