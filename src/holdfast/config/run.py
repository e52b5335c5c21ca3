"""RunConfig: everything a run is told, as one frozen tree, and the rules its values must keep.

Rules of this file: values and sentences only. Where a value comes from (default, file, flag) is the
business of `sources`; no value is read from the environment. `lanes`, `seed` and `threads` fix the
result: `None` means that nobody overrode them, so the script's own `join()` decides.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.errors import ConfigError

__all__ = ["DEFAULTS_OF_JOIN", "MAX_LANES", "CrewConfig", "RunConfig", "check"]

#: What `hf.join()` takes when neither the script nor the command line says anything.
DEFAULTS_OF_JOIN = {"lanes": 4, "seed": 0, "threads": 1}

#: The wake-up descriptors of a whole crew travel in one message, and the kernel takes 253 of them.
MAX_LANES = 250

_SYNC = ("exact", "bounded:S", "async", "local:H")
_ENGINES = ("local", "ray", "slurm", "kubernetes")


class CrewConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How patient the run is with its crew. All times are seconds (`--set crew.settle=30s` works too)."""

    #: After the first worker is ready, wait this long for the others before training without them.
    join_grace: float = 5.0
    #: Workers that may be lost in a row, by bad luck, without one step of progress.
    luck_budget: int = 5
    #: Workers that may be lost at one unit before it is called bad.
    unit_attempts: int = 3
    #: A worker stopped by the system (SIGSTOP) for longer than this, and than 5 units, is replaced.
    frozen_limit: float = 1.0
    #: A unit may take at least this long before its worker counts as hung ...
    hang_limit: float = 30.0
    #: ... and at least so many times the slowest unit seen.
    hang_factor: float = 20.0
    #: The same outside of a unit (start-up, evaluation, saving), where we know less.
    idle_limit: float = 600.0
    #: Least time between two changes made only for speed.
    settle: float = 1.0
    #: An unanswered message is said again after this.
    repeat: float = 0.5
    #: How long identical failures are gathered, so that they are told once.
    gather: float = 0.3
    #: How long a worker may take to leave after its script has ended.
    exit_grace: float = 10.0


class RunConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One run."""

    script: str
    args: tuple[str, ...] = ()
    #: 0 means: one per CPU, at most one per lane.
    workers: int = 0
    lanes: int | None = None
    seed: int | None = None
    threads: int | None = None
    sync: str = "exact"
    owners: str = "workers"
    servers: int = 0
    #: Empty means: a new directory under runs/.
    dir: str = ""
    on: str = "local"
    #: Write down which samples each unit used (DIR/audit); `holdfast explain DIR --samples` judges it.
    audit: bool = False
    crew: CrewConfig = CrewConfig()

    def overrides(self) -> dict[str, int]:
        """What was said about the result, beyond what the script says itself."""
        said = {"lanes": self.lanes, "seed": self.seed, "threads": self.threads}
        return {name: value for name, value in said.items() if value is not None}


def check(config: RunConfig, sources: Mapping[str, str]) -> None:
    """Raise the first ConfigError that `config` deserves; `sources` says who set each value."""

    def wrong(field: str, value: object, problem: str, fix: str = "") -> ConfigError:
        return ConfigError(field, value, problem, source=sources.get(field, "default"), fix=fix)

    if config.workers < 1 and "workers" in sources:
        raise wrong("workers", config.workers, "must be 1 or more", "Use --workers 1.")
    if config.lanes is not None and not 1 <= config.lanes <= MAX_LANES:
        raise wrong("lanes", config.lanes, f"must be 1 to {MAX_LANES}", "Use --lanes 4.")
    if config.threads is not None and config.threads < 1:
        raise wrong("threads", config.threads, "must be 1 or more", "Use --threads 1.")
    if config.seed is not None and not 0 <= config.seed < 2**63:
        raise wrong("seed", config.seed, "must be 0 to 2**63 - 1", "Use --seed 0.")
    if config.workers > (most := MAX_LANES if config.lanes is None else config.lanes):
        raise wrong(
            "workers", config.workers, f"more than lanes = {most}, and a lane has one worker at a time",
            f"Use --workers {most} or fewer, or --lanes {config.workers} "
            "(the number of lanes changes the result, the number of workers does not).",
        )
    if config.servers < 0:
        raise wrong("servers", config.servers, "must be 0 or more", "Use --servers 0.")
    if config.servers > 0:
        raise wrong(
            "servers", config.servers, "this build has no servers; the workers own the parameters themselves",
            "Leave --servers out.",
        )
    if config.owners != "workers":
        raise wrong("owners", config.owners, "this build knows only owners = workers", "Leave it out.")
    if config.sync != "exact":
        raise wrong("sync", config.sync, _sync_problem(config.sync), "Use --sync exact, or leave it out.")
    if config.on != "local":
        known = config.on in _ENGINES
        raise wrong(
            "on", config.on,
            "this build starts workers only on this machine" if known else f"unknown; there is {', '.join(_ENGINES)}",
            "Use --on local.",
        )
    for field in msgspec.structs.fields(CrewConfig):
        value = getattr(config.crew, field.name)
        if value <= 0:
            raise wrong(f"crew.{field.name}", value, "must be more than 0", f"The default is {field.default}.")


def _sync_problem(sync: str) -> str:
    if sync.partition(":")[0] in ("bounded", "async", "local"):
        return "this build knows only sync = exact"
    return f"unknown; there is {', '.join(_SYNC)}, of which this build knows only exact"
