"""The coordinator's machine: events in, commands out, nothing else.

`Machine.handle(event, now)` is the only method that changes anything. It runs in two halves:

1. the event's handler, here, notes what is now known (a worker is lost, ready, quiet, ...);
2. `reconcile.reconcile` compares what is with what should be, and orders the difference.

The second half looks at levels only, so a message that is lost, doubled or late can at worst cost time.
The other parts: `roster` (who is who), `hosts` (which machines), `crew` (generations), `blame` (whose fault),
`partitions` (which machines cannot reach each other), `fitness` (who may join), `lane_balance` and `slice_balance`
(which lanes and slices move for speed, both by `hysteresis`), `story` (why). All of them are pure; so is this.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast.config.limits import CONTROL
from holdfast.control import catch_up, lane_balance, mode_change, slice_balance, state_holders
from holdfast.control.blame import Blame, lacks, starved, told, told_let_go
from holdfast.control.membership import host_events, partitions
from holdfast.control.membership.crew import Crew
from holdfast.control.membership.fitness import misfit, other_data
from holdfast.control.membership.roster import CrewLimits, CrewStatus, HostStatus, Stage, Worker, WorkerStatus
from holdfast.control.protocol import events, messages
from holdfast.control.protocol.commands import Command, FailRun
from holdfast.control.protocol.events import Event
from holdfast.control.reconcile import reconcile
from holdfast.control.state import RunState, WorkerRefusal
from holdfast.control.story import Story
from holdfast.core import endings
from holdfast.core.endings import TURN_ENDED, Ending
from holdfast.core.sync.modes import parse
from holdfast.errors import ConfigError

__all__ = ["BrokenInvariant", "CrewLimits", "Machine"]


class BrokenInvariant(AssertionError):
    """The machine found itself in a state that must not be. Prints how it got there."""

    def __init__(self, what: str, event: Event, story: Story) -> None:
        super().__init__(f"{what}; after {event!r}. The story so far:\n{story.tail()}")


class Machine:
    """A run's decisions.

    >>> machine = Machine(CrewLimits(lanes=4, workers=2))
    >>> machine.handle(events.RunStarted(), now=0.0)
    []
    >>> machine.handle(events.HostJoined(0, "here", slots=2), now=0.1)
    [StartWorker(worker=0, row=0, host=0), StartWorker(worker=1, row=1, host=0)]
    """

    def __init__(self, limits: CrewLimits) -> None:
        self.story = Story()
        sync = parse(limits.sync).name
        crew = Crew(limits)
        self._run = RunState(
            limits, crew, Blame(limits, crew.cast), servers=limits.servers, sync=sync,
            modes=[messages.Reached(0, sync)],
        )

        run = self._run
        self._handlers: dict[type, Callable[[Any], None]] = {
            events.RunStarted: self._run_started, events.HostJoined: partial(host_events.joined, run),
            events.HostLeaving: partial(host_events.leaving, run), events.HostLost: partial(host_events.lost, run),
            events.HostLevel: self._host_level, events.LinkBroken: partial(host_events.link_broken, run),
            events.CatchUpEnded: partial(host_events.following_ended, run), events.WorkerStarted: self._worker_started,
            events.WorkerLost: self._worker_lost, events.WorkerFrozen: self._worker_frozen,
            events.WorkerHung: self._worker_hung, events.ScaleRequested: self._scale_requested,
            events.ServersRequested: self._servers_requested, events.SyncRequested: partial(mode_change.requested, run),
            events.DrainRequested: self._drain_requested, messages.Seeded: self._seeded_by,
            messages.Paused: self._paused, messages.AtBoundary: self._stands, messages.Leaving: self._leaving,
            messages.Finished: self._finished_by, messages.StaysExact: partial(mode_change.stays_exact, run),
        }
        #: Those that have to know what time it is.
        self._timed_handlers: dict[type, Callable[[Any, float], None]] = {
            events.HostUnreached: partial(partitions.unreached, run), events.Measured: self._measured,
            events.Ticked: self._ticked, messages.Ready: self._ready, messages.Failed: self._failed,
        }

    @property
    def over(self) -> bool:
        """EndRun or FailRun was ordered; nothing leads to anything any more."""
        return self._run.over

    def handle(self, event: Event, now: float) -> list[Command]:
        """Advance the run by one event."""
        run = self._run
        if run.over or (isinstance(event, events.HostLevel) and not host_events.is_news(run, event)):
            return []
        before = run.crew.generation
        run.crew.out, run.happened, run.follows, run.replacing = [], [], [], False
        if timed := self._timed_handlers.get(type(event)):
            timed(event, now)
        else:
            self._handlers[type(event)](event)
        if not run.over:
            reconcile(run, now)
        if run.happened or run.follows:
            parts = ("; ".join(run.happened), "; ".join(run.follows))
            self.story.append(now, type(event).__name__, ": ".join(part for part in parts if part))
        self._check_invariants(event, before)
        return run.crew.out

    def snapshot(self) -> CrewStatus:
        """The crew as it stands, for `holdfast status`."""
        run, crew = self._run, self._run.crew
        lanes: dict[int, list[int]] = {}
        for lane, driver in enumerate(crew.drivers):
            lanes.setdefault(driver, []).append(lane)
        shares = slice_balance.shares(crew.owners, run.sizes) if crew.owners else {}
        people = [
            WorkerStatus(
                w.number, w.pid, w.row, w.shown(), lanes.get(w.number, []), w.host, w.server, shares.get(w.number, 0.0)
            )
            for w in crew.workers.values()
        ]
        hosts = [
            HostStatus(h.number, h.name, h.slots, h.level, h.leaving, crew.role(h.number))
            for h in crew.hosts.live.values()
        ]
        return CrewStatus(
            generation=crew.generation, step=run.blame.step, wanted=run.wanted, members=list(crew.members),
            drivers=list(crew.drivers), people=people, lost=run.lost, changing=crew.change is not None,
            waiting=[w.number for w in crew.waited_for()] if crew.change else [], stopping=run.drain is not None,
            hosts=hosts, hosts_wanted=run.limits.hosts, servers_wanted=run.servers, servers=list(crew.servers),
            sync_wanted=run.sync, modes=tuple((mode.step, mode.sync) for mode in run.modes),
        )

    def holding(self) -> list[int]:
        """The hosts that hold the newest state, or the one before it."""
        return sorted(state_holders.holding(self._run))

    def resumable(self) -> events.Resumed | None:
        """What a checkpoint must say of the run, so that it can go on from there; None before its first step."""
        run = self._run
        if run.first is None or not run.crew.generation:
            return None
        return events.Resumed(run.first, list(run.modes), run.blame.step)

    def _check_invariants(self, event: Event, before: int) -> None:
        run, crew = self._run, self._run.crew
        what = "" if before <= crew.generation <= before + 1 else f"generation {before} turned to {crew.generation}"
        what = what or crew.broken()
        if not what and not run.over and run.gather is None and crew.change is None:
            lost = [m for m in crew.members if m not in run.finished and m not in crew.workers]
            what = f"members {lost} are gone and no change is under way" if lost else ""
        if what:
            raise BrokenInvariant(what, event, self.story)

    # ------------------------------------------------------------ what is known: the shell's events

    def _run_started(self, event: events.RunStarted) -> None:
        run = self._run
        run.running = True
        if event.resumed is not None:
            self._go_on(event.resumed)
        if not run.limits.workers:
            hosts = f"{run.limits.hosts} hosts" if run.limits.hosts > 1 else "a host"
            run.happened.append(f"the run waits for {hosts} to join: this machine has no workers")

    def _go_on(self, resumed: events.Resumed) -> None:
        run = self._run
        run.resumed, run.first, run.modes = True, resumed.first, list(resumed.modes)
        run.ended = resumed.ended
        run.sync = run.modes[-1].sync
        run.learn_lanes(resumed.first.lanes)
        run.crew.arena_bytes = resumed.first.arena_bytes
        run.blame.progressed(resumed.step)
        run.crew.cast.call(resumed.first.worker, "the run's checkpoint")
        run.happened.append(f"the run goes on with the state of step {resumed.step}")

    def _host_level(self, event: events.HostLevel) -> None:
        host = self._run.hosts.live[event.host]
        host.level, host.of, host.given = event.level, event.of, tuple(event.given)
        host.shares = event.shares

    def _worker_started(self, event: events.WorkerStarted) -> None:
        if worker := self._run.crew.workers.get(event.worker):
            worker.pid = event.pid

    def _worker_lost(self, event: events.WorkerLost) -> None:
        run = self._run
        worker = run.crew.workers.pop(event.worker, None)
        if worker is None:
            return
        run.hosts.live[worker.host].vacated()
        if run.seeder == event.worker:
            run.seeder = None
        run.blame.progressed(event.step)
        how = f"{'signal' if event.cause == 'signal' else 'exit status'} {event.code}"
        if worker.stage in (Stage.FINISHED, Stage.DISMISSED, Stage.REFUSED):
            return
        run.lost += 1
        run.replacing = True
        doomed = worker.stage is Stage.DOOMED  # we have killed it, and said why
        run.happened.append(f"{run.crew.cast.placed(worker.number)} {'has ended' if doomed else f'lost ({how})'}")
        judged = doomed or worker.leaving or run.blame.failed(event.worker)
        if judged or run.gather is not None:
            return
        verdict = run.blame.lost_unit(event.worker, event.unit, how, event.samples) if event.unit else None
        verdict = verdict or run.blame.lost(event.worker, how, run.crew.started)
        if verdict:
            run.end(verdict)

    def _worker_frozen(self, event: events.WorkerFrozen) -> None:
        run = self._run
        worker = run.crew.workers.get(event.worker)
        if worker is None or worker.stage in (Stage.FINISHED, Stage.DOOMED):
            return
        if event.seconds < run.limits.crew.frozen_limit:
            return
        how = f"stopped by the system for {event.seconds:.1f} s"
        if worker.stage not in (Stage.DISMISSED, Stage.REFUSED):
            if verdict := run.blame.lost(event.worker, how, run.crew.started):
                run.end(verdict)
                return
            run.replacing = True
        who = run.crew.cast.placed(worker.number)
        run.happened.append(f"{who} is {how} (limit {run.limits.crew.frozen_limit:.1f} s) and is killed")
        run.crew.doom(worker, how)

    def _worker_hung(self, event: events.WorkerHung) -> None:
        run = self._run
        worker = run.crew.workers.get(event.worker)
        if worker is None or worker.stage in (Stage.FINISHED, Stage.DOOMED):
            return
        how = f"no progress for {event.seconds:.1f} s at {event.where}"
        if worker.stage not in (Stage.DISMISSED, Stage.REFUSED):
            verdict = run.blame.hung(event.worker, event.unit, event.seconds, event.where)
            if verdict is None and event.unit is not None:
                verdict = run.blame.lost_unit(event.worker, event.unit, how, event.samples)
            if verdict:
                run.end(verdict)
                return
            run.replacing = True
        run.happened.append(f"{run.crew.cast.placed(worker.number)} makes {how} and is killed")
        run.crew.doom(worker, how)

    def _measured(self, event: events.Measured, now: float) -> None:
        run = self._run
        crew = run.crew
        run.blame.progressed(event.step)
        if crew.change is not None or not crew.generation or run.drain is not None or run.finished:
            return
        run.balance, run.proposal = lane_balance.measured(
            run.balance, now, crew.drivers, [m for m in crew.members if m not in crew.servers], event.unit_seconds,
            run.limits,
        )
        if run.proposal:
            run.happened.append(run.proposal.reason)
        if crew.owners:
            run.owning, run.moving = slice_balance.measured(
                run.owning, now, crew.since, crew.owners, run.sizes, crew.servers, event.applied, run.limits
            )
            if run.moving:
                run.happened.append(run.moving.reason)

    def _scale_requested(self, event: events.ScaleRequested) -> None:
        run, lanes = self._run, self._run.limits.lanes
        asked = f"{event.workers} worker{' was' if event.workers == 1 else 's were'} asked for"
        if event.workers > lanes:
            run.happened.append(f"{asked}, but there are only {lanes} lanes: still {run.wanted}")
        elif event.workers < 1:
            run.happened.append(f"{asked}, but a run needs one: still {run.wanted}")
        elif event.workers > max(1, len(run.hosts.live)) and run.limits.alone:
            run.happened.append(f"{asked}, but {run.limits.alone}: still {run.wanted}")
        elif run.drain is not None:
            run.happened.append(f"{asked}, but the run is ending: still {run.wanted}")
        else:
            wanted = run.wanted
            if not run.hosts.rescale(event.workers):
                offered = sum(host.slots for host in run.hosts.staying())
                run.happened.append(f"{asked}, but the hosts have room for {offered}: still {wanted}")
                return
            before = "as before" if event.workers == wanted else f"instead of {wanted}"
            run.happened.append(f"{asked} {before}")
            run.refused.clear()

    def _servers_requested(self, event: events.ServersRequested) -> None:
        run, wanted = self._run, event.servers
        asked = f"{wanted} server{' was' if wanted == 1 else 's were'} asked for"
        if why := self._no_servers(wanted):
            run.happened.append(f"{asked}, but {why}: still {run.servers}")
        else:
            before = "as before" if wanted == run.servers else f"instead of {run.servers}"
            run.happened.append(f"{asked} {before}")
            run.servers = wanted

    def _no_servers(self, wanted: int) -> str:
        """Why there cannot be so many; empty where there can."""
        run = self._run
        if not 0 <= wanted <= CONTROL.max_servers:
            return f"there can be 0 to {CONTROL.max_servers}"
        if run.drain is not None or run.finished:
            return "the run is ending"
        if wanted and not any(host.refills and host.share for host in run.hosts.live.values()):
            return "no machine has workers beside which they could be"
        return run.limits.alone if wanted else ""

    def _drain_requested(self, event: events.DrainRequested) -> None:
        run = self._run
        if run.drain is None:
            run.drain, run.signal = event.reason, event.signal
            run.happened.append(f"the run is to end at its next step ({event.reason})")

    def _ticked(self, event: events.Ticked, now: float) -> None:
        run = self._run
        due = now - run.limits.crew.repeat
        if run.crew.change is not None:
            run.crew.pause(now, since=due)
        if run.seeder is not None:
            worker = run.crew.workers[run.seeder]
            if worker.stage is Stage.SEEDING and worker.sent <= due:
                run.crew.welcome(worker, now, seed=True)

    # ------------------------------------------------------------ what is known: messages of workers

    def _ready(self, event: messages.Ready, now: float) -> None:
        crew = self._run.crew
        worker = crew.workers.get(event.worker)
        if worker is None:
            return
        if worker.stage is Stage.STARTING:
            self._admit(worker, event, now)
        elif worker.stage is Stage.REFUSED:
            crew.send(worker, messages.Refuse(event.worker, worker.leaving))
        elif worker.stage is Stage.DISMISSED:
            crew.send(worker, messages.Leave(event.worker, worker.leaving))
        elif worker.stage in (Stage.WAITING, Stage.MEMBER):
            crew.welcome(worker, now, seed=False)
            told = crew.hosts.live[worker.host].told
            if worker.stage is Stage.MEMBER and crew.change is None:
                crew.send(worker, crew.installation())
            elif worker.stage is Stage.WAITING and told is not None and worker.number in told.members:
                crew.send(worker, told)

    def _admit(self, worker: Worker, event: messages.Ready, now: float) -> None:
        run = self._run
        if run.first is None:
            if event.lanes > CONTROL.max_lanes:
                wrong = ConfigError(
                    "lanes", event.lanes, f"must be 1 to {CONTROL.max_lanes}", source="hf.join",
                    fix="Use hf.join(lanes=4).",
                )
                run.end(FailRun("ConfigError", str(wrong)))
                return
            run.first = event
            run.learn_lanes(event.lanes)
            run.crew.arena_bytes = event.arena_bytes
        elif run.ended and other_data(run.first, event):
            run.first = event
            run.happened.append("the script reads other data than the run did before")
        run.ended = False
        if why := misfit(run.first, event, run.crew.cast):
            worker.stage, worker.leaving = Stage.REFUSED, why[1]
            if worker.server:
                run.servers -= 1  # another one would not fit either
            else:
                run.refused[event.worker] = WorkerRefusal(*why, worker.host)
            run.happened.append(f"{run.crew.cast.placed(worker.number)} is refused ({why[1]})")
            run.crew.send(worker, messages.Refuse(event.worker, why[1]))
            return
        if all(other.stage is Stage.STARTING for other in run.crew.joining() if other.host == worker.host):
            run.first_ready = now
        worker.stage = Stage.READY
        run.happened.append(f"{run.crew.cast.title(worker.number)} is ready")

    def _seeded_by(self, event: messages.Seeded) -> None:
        run = self._run
        if run.seeder != event.worker or run.crew.workers[event.worker].stage is not Stage.SEEDING:
            return
        run.seeded, run.seeder = True, None
        worker = run.crew.workers[event.worker]
        worker.stage = Stage.WAITING
        run.hosts.live[worker.host].level = max(run.hosts.live[worker.host].level, 0)
        held = "the state of the checkpoint" if run.resumed else f"the weights of {run.crew.cast.placed(event.worker)}"
        run.happened.append(f"the arena holds {held}")

    def _paused(self, event: messages.Paused) -> None:
        run, crew = self._run, self._run.crew
        worker = crew.workers.get(event.worker)
        if worker is None:
            return
        run.blame.progressed(event.step)
        if worker.stage is Stage.DISMISSED:
            crew.send(worker, messages.Leave(event.worker, worker.leaving))
        if crew.change is not None and event.generation == crew.change.generation:
            worker.quiet = event.generation
        elif event.generation == crew.generation and worker.stage is Stage.MEMBER and crew.change is None:
            crew.send(worker, crew.installation())

    def _stands(self, event: messages.AtBoundary) -> None:
        if worker := self._run.crew.workers.get(event.worker):
            worker.stands = event

    def _leaving(self, event: messages.Leaving) -> None:
        run = self._run
        worker = run.crew.workers.get(event.worker)
        if worker is None or worker.leaving or worker.stage in (Stage.FINISHED, Stage.REFUSED, Stage.DOOMED):
            return
        worker.leaving = event.reason
        run.replacing = True
        run.happened.append(f"{run.crew.cast.placed(worker.number)} is to leave ({event.reason})")

    def _finished_by(self, event: messages.Finished) -> None:
        run, crew = self._run, self._run.crew
        worker = crew.workers.get(event.worker)
        if worker is not None and catch_up.follows(run, worker):  # the crew has come to its end, and it close behind
            worker.stage = Stage.FINISHED
            run.ended_on[event.worker] = worker.host
            return
        if worker is None or worker.stage is not (Stage.MEMBER if crew.generation else Stage.STARTING):
            return  # before the first generation, a script may end without ever having trained
        worker.stage = Stage.FINISHED
        run.finished[event.worker] = {name: value for name, value in event.result.items() if name != TURN_ENDED}
        if sentence := self._ended_apart(event):
            run.end(FailRun("OutOfSync", sentence))
            return
        through = "the script" if event.again is None else "a training, and begins another one"
        run.happened.append(f"{run.crew.cast.title(worker.number)} has finished {through}")
        if worker.server:
            return
        if sentence := self._goes_on_apart(event):
            run.end(FailRun("OutOfSync", sentence))
            return
        run.ended_on[event.worker] = worker.host
        if run.lead is None and crew.members and event.worker == min(set(crew.members).difference(crew.servers)):
            run.lead = event.worker

    def _goes_on_apart(self, event: messages.Finished) -> str | None:
        """The sentence for a script that joins again, for another training, in some workers and not in others."""
        run, goes_on = self._run, event.again is not None
        others = [number for number in run.ended_on if (number in run.again) is not goes_on]
        if event.again is not None:
            run.again[event.worker] = event.again
        if not others:
            return None
        title = run.crew.cast.title
        again, ended = (event.worker, others[0]) if goes_on else (others[0], event.worker)
        return (
            f"{title(again).capitalize()} calls hf.join() again, for another training, where {title(ended)} has ended "
            "the script. Every worker must make the same trainings: let their number follow from the script and its "
            "arguments, or from run.evaluate and what run.keep holds."
        )

    def _ended_apart(self, event: messages.Finished) -> str | None:
        """The sentence for a script that has ended its last turn otherwise than another one, of another host say."""
        run, said = self._run, event.result.get(TURN_ENDED)
        if not isinstance(said, list):
            return None
        version, step, how, line = said
        run.endings[event.worker] = version, step, Ending(how, line)
        same = {number: ending for number, (at, _, ending) in run.endings.items() if at == version}
        return endings.apart(step, same, run.crew.cast.title)

    def _failed(self, event: messages.Failed, now: float) -> None:
        run = self._run
        worker = run.crew.workers.get(event.worker)
        settled = worker is not None and worker.stage in (Stage.FINISHED, Stage.DISMISSED, Stage.REFUSED)
        known = run.blame.failed(event.worker) or (event.unit is not None and event.unit[0] < run.blame.step)
        if event.kind == "Stopped" or settled or known:
            return
        short = starved(event, run.blame.step)
        if worker is not None and worker.stage is Stage.DOOMED and (lacks(event) or short):
            return
        if worker is not None and short and run.gather is None:
            self._starved(worker, event)
            return
        if worker is not None and lacks(event) and self._can_do_without(worker):
            self._let_go(worker, event)
            return
        run.happened.append(f"{run.crew.cast.placed(event.worker)} failed with {told(event)}")
        verdict = run.blame.raised(event)
        if isinstance(verdict, FailRun):
            run.end(verdict)
        elif run.gather is not None:
            run.failures.append(event)
        elif verdict:
            run.gather, run.failures = now + run.limits.crew.gather, run.blame.failures()
        elif worker is not None and worker.stage is not Stage.DOOMED:
            run.replacing = True
            run.crew.doom(worker, f"its script failed with {told(event)}")

    def _starved(self, worker: Worker, event: messages.Failed) -> None:
        """Its machine has no memory left for it: bad luck, as if the system had killed it for that."""
        run, how = self._run, f"out of memory at {event.where}"
        run.blame.progressed(event.step)
        run.happened.append(f"{run.crew.cast.placed(worker.number)} is {how}")
        if verdict := run.blame.lost(worker.number, how, run.crew.started):
            run.end(verdict)
            return
        run.replacing = True
        run.crew.doom(worker, how)

    def _can_do_without(self, worker: Worker) -> bool:
        """Whether somebody else drives lanes, will, or has ended the script."""
        run = self._run
        others = [other for other in run.crew.able() if other is not worker and not other.leaving]
        return run.gather is None and bool(others or run.lead is not None)

    def _let_go(self, worker: Worker, event: messages.Failed) -> None:
        """The script cannot go on in this process, and could not in another one that took its place."""
        run = self._run
        run.blame.progressed(event.step)
        why, story = told_let_go(event, run.crew.cast.placed(worker.number), server=worker.server)
        if worker.server:
            run.servers -= 1
        else:
            run.refused[worker.number] = WorkerRefusal("ScriptFailed", why, worker.host)
        run.happened.append(story)
        run.crew.doom(worker, f"its script failed with {told(event)}")
