"""RunConfig: everything a run is told, as one frozen tree, and the rules its values must keep.

Rules of this file: values and sentences only. Where a value comes from (default, file, flag) is the
business of `resolve`; no value is read from the environment. `lanes`, `seed` and `threads` fix the
result: `None` means that nobody overrode them, so the script's own `join()` decides; it does for `verify`, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Annotated

import msgspec

from holdfast.config import ray_config
from holdfast.config.checkpoint_interval import parse as parse_interval
from holdfast.config.cluster_config import KubernetesConfig, SlurmConfig
from holdfast.config.limits import CONTROL, CrewConfig
from holdfast.config.ray_config import RayConfig
from holdfast.config.worker_spec import OUTER
from holdfast.core.sync import modes
from holdfast.core.sync.staleness import COMPENSATION, TREATMENTS, treatment
from holdfast.core.verify import SHARE
from holdfast.errors import ConfigError

__all__ = [
    "DEFAULTS_OF_JOIN", "ENGINES", "SAID_BY_JOIN", "SECTIONS", "LocalSgdConfig", "RunConfig", "Share",
    "board_rows", "check",
]  # fmt: skip

#: A part of something. People write off for 0.
Share = Annotated[float, msgspec.Meta(title="share")]

#: What `hf.join()` takes when neither the script nor the command line says anything.
DEFAULTS_OF_JOIN = {"lanes": 4, "seed": 0, "threads": 1}
#: The same, with what does not change the result.
SAID_BY_JOIN: dict[str, float] = {**DEFAULTS_OF_JOIN, "verify": SHARE}

#: What a run can be on (`cli.launch.engine_table`).
ENGINES = ("local", "ray", "slurm", "kubernetes")


def board_rows(lanes: int) -> int:
    """Rows on the board: twice as many as there may be processes, so that successors have one before the lost give
    theirs up.
    """
    return 2 * (lanes + CONTROL.max_servers)


class LocalSgdConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The outer step of `local:H`: SGD with Nesterov momentum on how far the lanes have gone.

    DiLoCo's authors use 0.7 and 0.9, with AdamW inside. With SGD and momentum inside that overshoots: neither on
    handwritten digits nor on Fashion-MNIST did it settle. These were the best of three tried there.
    """

    lr: float = OUTER[0]
    momentum: float = OUTER[1]


class RunConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One run."""

    script: str
    args: tuple[str, ...] = ()
    #: On this machine. None means: one per CPU, at most one per lane; 0, with `listen`: it only coordinates.
    workers: int | None = None
    lanes: int | None = None
    seed: int | None = None
    threads: int | None = None
    #: Of how many steps of a loop by steps a unit is computed twice and compared; 0 (`off`): of none.
    verify: Share | None = None
    sync: str = "exact"
    #: What becomes of a push that was computed from older parameters (`core.sync.staleness`): "plain" (it counts like
    #: any other), "scale" (the less the staler), "compensate" (it is moved to where the parameters are now), or "auto":
    #: scaled with bounded:S and async; quorum:K has weights of its own.
    staleness: str = "auto"
    #: How far a push is moved with staleness = compensate: the factor lambda of DC-ASGD.
    compensation: float = COMPENSATION
    #: Processes on one machine that own the parameters and run the optimizer; 0: the workers do.
    servers: int = 0
    #: Who runs the optimizer where there are servers: they do, or with "workers" they only sum the gradients.
    optimizer: str = "servers"
    #: Other machines that hold a copy of the state in relaxed modes; with exact all machines do.
    replicas: int = 0
    #: Empty means: a new directory under runs/.
    dir: str = ""
    on: str = "local"
    #: Where other machines can join, as ADDRESS or ADDRESS:PORT; empty means: nowhere.
    listen: str = ""
    #: Machines that must be there before the first step, this one included.
    hosts: int = 1
    #: Encrypt what goes over a network, with certificates made for this run.
    tls: bool = False
    #: A file with the secret that lets machines in; empty means: a new one, in the run's directory.
    token_file: str = ""
    #: Write down which samples each unit used (DIR/audit); `holdfast explain DIR --samples` judges it.
    audit: bool = False
    #: How far apart checkpoints are: a time, a number of steps ("200steps"), or "off".
    checkpoint: str = "5m"
    #: Checkpoints that stay.
    keep: int = 3
    #: What tells that this machine is about to be taken away (`cli.launch.notice`); empty means: nothing does.
    notice: str = ""
    #: Where each is copied to besides: any URL that fsspec knows; empty means: nowhere.
    checkpoint_to: str = ""
    #: A run's directory, or a checkpoint in it, that this run goes on from.
    resume: str = ""
    #: Weights to begin with: a run's directory, a checkpoint, or a .safetensors file. Empty: what the script makes.
    init_from: str = ""
    #: May the script be another one than when the checkpoint was written?
    changed_script: str = "refuse"
    crew: CrewConfig = CrewConfig()
    local: LocalSgdConfig = LocalSgdConfig()
    slurm: SlurmConfig = SlurmConfig()
    kubernetes: KubernetesConfig = KubernetesConfig()
    ray: RayConfig = RayConfig()

    def overrides(self) -> dict[str, int]:
        """What was said about the result, beyond what the script says itself."""
        said = {"lanes": self.lanes, "seed": self.seed, "threads": self.threads}
        return {name: value for name, value in said.items() if value is not None}


#: The parts of the tree that have a name of their own: `crew.settle`.
SECTIONS: dict[str, type[msgspec.Struct]] = {
    "crew": CrewConfig, "local": LocalSgdConfig, "slurm": SlurmConfig, "kubernetes": KubernetesConfig, "ray": RayConfig,
}  # fmt: skip


def check(config: RunConfig, sources: Mapping[str, str]) -> None:
    """Raise the first ConfigError that `config` deserves; `resolve` says who set each value."""

    def wrong(field: str, value: object, problem: str, fix: str = "") -> ConfigError:
        return ConfigError(field, value, problem, source=sources.get(field, "default"), fix=fix)

    if config.workers is not None and config.workers < (0 if config.listen else 1):
        least = "must be 0 (this machine only coordinates) or more" if config.listen else "must be 1 or more"
        raise wrong("workers", config.workers, least, "Use --workers 1.")
    if config.lanes is not None and not 1 <= config.lanes <= CONTROL.max_lanes:
        raise wrong("lanes", config.lanes, f"must be 1 to {CONTROL.max_lanes}", "Use --lanes 4.")
    if config.threads is not None and config.threads < 1:
        raise wrong("threads", config.threads, "must be 1 or more", "Use --threads 1.")
    if config.seed is not None and not 0 <= config.seed < 2**63:
        raise wrong("seed", config.seed, "must be 0 to 2**63 - 1", "Use --seed 0.")
    if config.verify is not None and not 0.0 <= config.verify <= 1.0:
        raise wrong("verify", config.verify, "must be a share of the steps, 0 to 1", "Use --verify 0.01, or off.")
    if (config.workers or 0) > (most := CONTROL.max_lanes if config.lanes is None else config.lanes):
        raise wrong(
            "workers", config.workers, f"more than lanes = {most}, and a lane has one worker at a time",
            f"Use --workers {most} or fewer, or --lanes {config.workers} "
            "(the number of lanes changes the result, the number of workers does not).",
        )
    if config.servers < 0:
        raise wrong("servers", config.servers, "must be 0 or more", "Use --servers 0.")
    if config.servers > CONTROL.max_servers:
        raise wrong("servers", config.servers, f"must be 0 to {CONTROL.max_servers}", "Use --servers 1.")
    try:
        mode = modes.parse(config.sync, config.lanes)
    except ValueError as error:
        fix = f"Use --sync {modes.advised(config.sync, config.lanes)}, or leave it out."
        raise wrong("sync", config.sync, str(error), fix) from None
    if config.optimizer not in ("servers", "workers"):
        raise wrong("optimizer", config.optimizer, "must be servers or workers", "Leave it out.")
    if config.optimizer == "workers" and not config.servers:
        raise wrong(
            "optimizer", config.optimizer, "without servers the workers run it anyway",
            "Leave it out, or add --servers 1.",
        )
    if config.optimizer == "workers" and not mode.exact:
        raise wrong(
            "optimizer", config.optimizer, f"with sync = {mode.name} servers apply pushes as they come, so they have "
            "to run the optimizer", "Leave it out, or use --sync exact.",
        )
    if config.replicas < 0:
        raise wrong("replicas", config.replicas, "must be 0 or more", "Use --replicas 1.")
    if config.replicas and not config.listen and config.on == "local":
        raise wrong(
            "replicas", config.replicas, "replicas are on other machines, and none can join a run that does not listen",
            "Say where: --listen 0.0.0.0, or an address of this machine.",
        )
    try:
        stale = treatment(config.staleness, mode)
    except ValueError as error:
        fix = ", or use --sync bounded:4" * (config.staleness in TREATMENTS)
        raise wrong("staleness", config.staleness, str(error), f"Leave it out{fix}.") from None
    if not 0.0 <= config.compensation < inf:
        raise wrong(
            "compensation", config.compensation, "must be a number of at least 0", f"The default is {COMPENSATION}."
        )
    if config.compensation != COMPENSATION and not stale.compensates:
        raise wrong(
            "compensation", config.compensation, f"nothing is compensated with staleness = {config.staleness}",
            "Leave it out, or add --set staleness=compensate.",
        )
    if not config.local.lr > 0.0:
        raise wrong("local.lr", config.local.lr, "must be more than 0", "The default is 0.8.")
    if not 0.0 <= config.local.momentum < 1.0:
        raise wrong("local.momentum", config.local.momentum, "must be 0 or more and less than 1", "The default is 0.3.")
    try:
        parse_interval(config.checkpoint)
    except ValueError as error:
        raise wrong("checkpoint", config.checkpoint, str(error), "The default is 5m.") from None
    if config.keep < 1:
        raise wrong("keep", config.keep, "the newest checkpoint always stays", "The default is 3.")
    if config.checkpoint_to and "://" not in config.checkpoint_to:
        raise wrong("checkpoint_to", config.checkpoint_to, "must be a URL", "Write file:///... or s3://bucket/name.")
    if config.checkpoint_to and config.checkpoint == "off":
        raise wrong("checkpoint_to", config.checkpoint_to, "there are none with checkpoint = off", "Leave it out.")
    if config.changed_script not in ("refuse", "ok"):
        raise wrong("changed_script", config.changed_script, "must be refuse or ok", "Leave it out.")
    if config.changed_script == "ok" and not config.resume:
        raise wrong("changed_script", config.changed_script, "no run is resumed", "Leave it out, or add --resume DIR.")
    if config.init_from and config.resume:
        raise wrong(
            "init_from", config.init_from, f"{config.resume} is resumed, with the weights that it had",
            "Leave one of them out: --resume goes on with a run, --init-from begins another one.",
        )
    if config.resume and config.on not in ("local", "ray"):
        raise wrong(
            "resume", config.resume, f"a run on {config.on} cannot be resumed there yet", "Resume it with --on local."
        )
    if config.on not in ENGINES:
        from difflib import get_close_matches  # rarely needed

        near = get_close_matches(config.on, ENGINES, 1) or ["local"]
        raise wrong("on", config.on, f"unknown; there is {', '.join(ENGINES)}", f"Use --on {near[0]}.")
    if config.hosts < 1:
        raise wrong("hosts", config.hosts, "must be 1 or more", "Use --hosts 1.")
    if config.on == "ray":
        if config.workers == 0:
            raise wrong("workers", 0, "every host of the cluster has 1 or more", "Use --workers 1.")
        ray_config.check(config.ray, sources)
        if 0 < config.ray.most < config.hosts:
            raise wrong(
                "ray.most", config.ray.most, f"fewer than hosts = {config.hosts}, which the first step waits for",
                f"Use --set ray.most={config.hosts}, or --hosts {config.ray.most}.",
            )
    for name, source in sources.items():
        # A file may serve several clusters; what is typed for one and given to another was meant otherwise.
        section, _, key = name.partition(".")
        if source == "--set" and section in ENGINES and section not in ("local", config.on):
            value = getattr(getattr(config, section), key)
            problem = f"this run is on {config.on}, which does not look at it"
            raise wrong(name, value, problem, f"Add --on {section}, or leave it out.")
    if config.on == "local" and not config.listen:
        if config.hosts > 1:
            raise wrong(
                "hosts", config.hosts, "other machines cannot join a run that does not listen",
                "Say where: --listen 0.0.0.0, or an address of this machine.",
            )
        if config.tls:
            raise wrong(
                "tls", config.tls, "there is no connection to encrypt in a run that does not listen",
                "Say where: --listen 0.0.0.0, or leave --tls out.",
            )
        if config.token_file:
            raise wrong(
                "token_file", config.token_file, "nobody is let in by a token in a run that does not listen",
                "Say where: --listen 0.0.0.0, or leave --token-file out.",
            )
    for field in msgspec.structs.fields(CrewConfig):
        value = getattr(config.crew, field.name)
        if value <= 0:
            raise wrong(f"crew.{field.name}", value, "must be more than 0", f"The default is {field.default}.")
