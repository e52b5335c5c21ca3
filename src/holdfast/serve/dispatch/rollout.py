"""The rollout of a model: which replicas there should be, of which version, and which version answers. Pure.

    starting ──► ready ──► leaving ──► gone        a replica; it may be lost at any point
    offered ──► candidate ──► current ──► previous ──► gone        a version; or refused, or rolled back

A new version is built aside: its replicas are started one after the other while the current ones answer. When all are
ready, all requests go to them at once (`Flip`). The previous replicas stay, idle, until the new version is *proven*: it
has answered for a while without more failures, values that are not finite, or time than the one before. Otherwise it is
rolled back, and not tried again.

A replica that says it has to leave (SIGTERM), or is to be replaced, goes on until its replacement is ready.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Command", "End", "Flip", "Note", "Rejected", "Rollout", "RolloutLimits", "Start", "VersionRecord"]


class RolloutLimits(NamedTuple):
    """How patient a rollout is."""

    prove: float = 10.0  #: seconds that a version answers before the one before it is given up
    answers: int = 20  #: that it gives at the least before anything is concluded from them
    starts: int = 3  #: of a version's replicas that may fail, one after the other, before it is refused
    backoff: float = 0.1  #: seconds before the second try to start a replica; doubled with every further one
    most_backoff: float = 5.0
    slower: float = 3.0  #: times as long as the version before it, and over the objective, is a regression


class Start(NamedTuple):
    """Start a replica of this version."""

    replica: int
    version: int


class End(NamedTuple):
    """End a replica as soon as it computes nothing."""

    replica: int
    reason: str


class Flip(NamedTuple):
    """From now on these replicas, and only these, take requests."""

    version: int
    replicas: tuple[int, ...]


class Rejected(NamedTuple):
    """A version is not used any more."""

    version: int
    reason: str


class Note(NamedTuple):
    """A sentence for the log."""

    sentence: str


Command = Start | End | Flip | Rejected | Note


@dataclass(slots=True)
class VersionRecord:
    """What a version has shown so far."""

    number: int
    since: float = 0.0  #: when it began to answer
    answers: int = 0
    failures: int = 0
    not_finite: int = 0
    seconds: float = 0.0  #: that a request of one item is expected to take

    def share(self, number: int) -> float:
        """Of all requests that it was given."""
        return number / max(1, self.answers + self.failures)


@dataclass(slots=True)
class _Replica:
    version: int
    stage: str = "starting"  # ready, leaving


@dataclass(slots=True)
class _Retry:
    failed: int = 0  # starts, one after the other
    at: float = 0.0  # not before
    reason: str = ""


@dataclass
class Rollout:
    """Versions and replicas of one model."""

    limits: RolloutLimits
    objective: float
    wanted: int
    current: VersionRecord | None = None
    previous: VersionRecord | None = None
    candidate: VersionRecord | None = None
    refused: dict[int, str] = field(default_factory=dict)
    pinned: int = 0  #: the only version that is wanted, and not to be judged; 0: the newest one that was offered
    _replicas: dict[int, _Replica] = field(default_factory=dict)
    _retry: dict[int, _Retry] = field(default_factory=dict)
    _numbers: int = 0

    # ------------------------------------------------------------ what happens

    def offer(self, version: int, now: float) -> list[Command]:
        """There is a version on disk that may be served. The newest one that was offered is wanted."""
        known = {record.number for record in (self.current, self.candidate) if record is not None}
        if version in self.refused or version in known or version != (self.pinned or version):
            return []
        if self.previous is not None and self.previous.number == version:
            self.previous = None  # its replicas stay, and are the candidate's
        done: list[Command] = []
        if self.candidate is not None:
            done += self._drop(self.candidate, f"version {version} is newer")
        self.candidate = VersionRecord(version)
        self._retry[version] = _Retry()
        return done + self.look(now)

    def demand(self, version: int, now: float, *, only: bool) -> list[Command]:
        """An operator wants this version, also an older or a refused one; `only`: and no other from now on."""
        self.refused.pop(version, None)
        self.pinned = version if only else 0
        done: list[Command] = []
        if self.candidate is not None and self.candidate.number != version:
            done += self._drop(self.candidate, f"version {version} is wanted")
            self.candidate = None
        return done + self.offer(version, now)

    def ready(self, replica: int, now: float, seconds: float = 0.0) -> list[Command]:
        """A replica has loaded its version, and would take so long for one item."""
        one = self._replicas.get(replica)
        if one is None or one.stage != "starting":
            return []
        one.stage = "ready"
        self._retry[one.version] = _Retry()
        for record in (self.candidate, self.current):
            if record is not None and record.number == one.version:
                record.seconds = seconds
        done: list[Command] = []
        if self.current is not None and one.version == self.current.number:
            done.append(self._flip())
        return done + self.look(now)

    def lost(self, replica: int, now: float, reason: str) -> list[Command]:
        """A replica is gone, whatever it was at; `reason` says how."""
        one = self._replicas.pop(replica, None)
        if one is None:
            return []
        done: list[Command] = []
        if one.stage == "starting":
            done += self._could_not_start(one.version, reason, now)
        elif self.current is not None and one.version == self.current.number:
            done.append(self._flip())
        return done + self.look(now)

    def leave(self, replica: int, now: float, reason: str) -> list[Command]:
        """A replica was asked to go, or is to be replaced: its replacement is started first."""
        one = self._replicas.get(replica)
        if one is None or one.stage != "ready":
            return []
        one.stage = "leaving"
        note = Note(f"replica {replica} is to leave ({reason}); another is started first")
        return [note, *self.look(now)]

    def want(self, replicas: int, now: float) -> list[Command]:
        """There are to be so many replicas."""
        self.wanted = replicas
        return self.look(now)

    def answered(self, version: int, *, failures: int = 0, answers: int = 0, not_finite: int = 0) -> None:
        """What replicas of a version have given since the last call."""
        for record in (self.current, self.previous):
            if record is not None and record.number == version:
                record.answers += answers
                record.failures += failures
                record.not_finite += not_finite

    def look(self, now: float) -> list[Command]:
        """Do what time and the state ask for. Called after every event, and every now and then."""
        done = self._judge(now)
        done += self._promote(now)
        done += self._fill(now)
        return done

    def next_look(self) -> float | None:
        """When time alone asks for something."""
        times = [retry.at for version, retry in self._retry.items() if retry.at and self._is_served(version)]
        if self.previous is not None and self.current is not None:
            times.append(self.current.since + self.limits.prove)
        return min(times, default=None)

    def of(self, version: int, *stages: str) -> list[int]:
        """The replicas of a version that are at one of these stages; at any, if none is named."""
        return [
            number for number, one in self._replicas.items()
            if one.version == version and (not stages or one.stage in stages)
        ]  # fmt: skip

    def stage(self, replica: int) -> str:
        """At which stage a replica is."""
        return self._replicas[replica].stage if replica in self._replicas else "gone"

    # ------------------------------------------------------------ decisions

    def _fill(self, now: float) -> list[Command]:
        """Start the replicas that are missing, and end those that are too many."""
        done: list[Command] = []
        for record in (self.current, self.candidate):
            if record is None:
                continue
            version = record.number
            if self._retry.setdefault(version, _Retry()).at > now:
                continue
            # Beside a version that answers, one replica at a time is built: it takes the machine's time.
            most = 1 if record is self.candidate and self.current is not None else self.wanted
            starting = len(self.of(version, "starting"))
            missing = self.wanted - len(self.of(version, "starting", "ready"))
            done += [self._start(version) for _ in range(min(missing, most - starting))]
            done += self._end_surplus(version)
        return done

    def _end_surplus(self, version: int) -> list[Command]:
        """End what there is more than wanted of those that could answer; first those that have to leave."""
        leaving, ready = self.of(version, "leaving"), self.of(version, "ready")
        surplus = max(0, len(leaving) + len(ready) - self.wanted)
        ended: list[Command] = [self._end(number, "another has taken its place") for number in leaving[:surplus]]
        more = ready[len(ready) - max(0, surplus - len(leaving)) :]
        ended += [self._end(number, f"{self.wanted} are wanted") for number in more]
        if ended and self.current is not None and self.current.number == version:
            ended.append(self._flip())
        return ended

    def _promote(self, now: float) -> list[Command]:
        """All replicas of the candidate are ready: it answers from now on."""
        record = self.candidate
        if record is None or len(self.of(record.number, "ready")) < self.wanted:
            return []
        done: list[Command] = []
        if self.previous is not None:
            done += self._drop(self.previous, f"version {record.number} follows the one after it")
        self.previous, self.current, self.candidate = self.current, record, None
        record.since = now
        return [*done, self._flip(), Note(f"version {record.number} answers")]

    def _judge(self, now: float) -> list[Command]:
        """Is the current version worse than the one before it? Or proven?"""
        new, old = self.current, self.previous
        if new is None or old is None:
            return []
        if new.number != self.pinned and (reason := self._regression(new, old)):
            self.current, self.previous = old, None
            self.refused[new.number] = reason
            back: list[Command] = [Rejected(new.number, reason), self._flip()]
            return [*back, Note(f"back to version {old.number}: {reason}"), *self._drop(new, reason)]
        if now < new.since + self.limits.prove:
            return []
        self.previous = None
        return self._drop(old, f"version {new.number} is proven")

    def _regression(self, new: VersionRecord, old: VersionRecord) -> str:
        if new.answers + new.failures < self.limits.answers:
            return ""
        for what, ours, theirs in (
            ("requests have failed", new.failures, old.share(old.failures)),
            ("answers had values that are not finite", new.not_finite, old.share(old.not_finite)),
        ):
            if new.share(ours) > max(0.02, 3.0 * theirs):
                of = f"{ours} of {new.answers + new.failures}"
                return f"{of} {what} with version {new.number}, {100 * theirs:.1f}% with version {old.number}"
        if old.seconds and new.seconds > max(self.limits.slower * old.seconds, self.objective):
            took = f"{1000 * new.seconds:.1f} ms an item with version {new.number}"
            return f"{took}, {1000 * old.seconds:.1f} ms with version {old.number}"
        return ""

    def _could_not_start(self, version: int, reason: str, now: float) -> list[Command]:
        retry = self._retry.setdefault(version, _Retry())
        retry.failed += 1
        retry.reason = reason
        wait = min(self.limits.most_backoff, self.limits.backoff * 2 ** (retry.failed - 1))
        retry.at = now + wait
        note = Note(f"a replica of version {version} could not start ({reason}); the next try in {wait:.1f} s")
        record = self.candidate
        if record is None or record.number != version or retry.failed < self.limits.starts:
            return [note]
        self.candidate = None
        self.refused[version] = reason
        return [Rejected(version, reason), *self._drop(record, reason)]

    # ------------------------------------------------------------ small steps

    def _is_served(self, version: int) -> bool:
        return any(one is not None and one.number == version for one in (self.current, self.candidate))

    def _start(self, version: int) -> Start:
        number, self._numbers = self._numbers, self._numbers + 1
        self._replicas[number] = _Replica(version)
        return Start(number, version)

    def _end(self, replica: int, reason: str) -> End:
        del self._replicas[replica]
        return End(replica, reason)

    def _drop(self, record: VersionRecord, reason: str) -> list[Command]:
        """End all replicas of a version."""
        self._retry.pop(record.number, None)
        return [self._end(number, reason) for number in self.of(record.number)]

    def _flip(self) -> Flip:
        assert self.current is not None
        return Flip(self.current.number, tuple(self.of(self.current.number, "ready", "leaving")))
