"""`join` and `Run`: what a script sees of Holdfast.

Under plain `python` a run is one process that drives all lanes in private memory. Under `holdfast run`
the same script is one worker of a crew; the worker process sets `_enlisted` before the script's first
line, and nothing else differs. Under `torchrun`, or any launcher that sets RANK, WORLD_SIZE and MASTER_ADDR, `join`
itself makes the process a worker (see `rank_worker`).
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from holdfast.config.limits import CONTROL, STORE
from holdfast.config.training_folder import of_training
from holdfast.config.worker_spec import OUTER, WorkerSpec
from holdfast.core.endings import TURN_ENDED
from holdfast.core.sync.modes import Mode, advised, parse
from holdfast.core.sync.staleness import COMPENSATION, Staleness, used
from holdfast.core.verify import SHARE
from holdfast.data.batches import Batches
from holdfast.dataplane.memory.board import units
from holdfast.dataplane.reduce.several_optimizers import together
from holdfast.dataplane.relaxed import ages
from holdfast.errors import CheckpointError, ConfigError, NotExact, UsageError
from holdfast.train import seeding
from holdfast.train.audit_trail import AuditTrail
from holdfast.train.control_link import ControlLink
from holdfast.train.evaluation import agree, by_lead, evaluate
from holdfast.train.lane_batches import check_batches
from holdfast.train.loop.keeping import Stateful
from holdfast.train.loop.plain.passes import Pass
from holdfast.train.loop.scalers import Scalers
from holdfast.train.loop.scheduler_order import number_schedulers
from holdfast.train.loop.steps import Steps
from holdfast.train.loss_reduction import MEAN, SUM, LossCheck
from holdfast.train.numerics import keep_freed_memory
from holdfast.train.patches import refuse_lane_clipping
from holdfast.train.torchrun import ranks
from holdfast.train.training import Training
from holdfast.train.trainings import Trainings
from holdfast.train.weights.final_weights import save_weights, write_final
from holdfast.train.weights.loaded_weights import Loaded, load_weights

if TYPE_CHECKING:  # loaded by those who use it
    from holdfast.checkpoint.ended_trainings import EndedTraining
    from holdfast.store.client.store import Store
    from holdfast.store.handlers import Handler
    from holdfast.train.run_store import RunStore

__all__ = ["Loader", "Run", "enlist", "join"]

_NEVER_PREPARED = (
    "The script came to its end after hf.join() without run.prepare(...), so nothing was shared: each worker ran "
    "all of it by itself. Hand over what is trained: model, optimizer, loader = run.prepare(model, optimizer, loader)."
)
_enlisted: tuple[WorkerSpec, ControlLink] | None = None
_trainings: Trainings | None = None
_current: Run | None = None
_watcher: Callable[[Run, Sequence[nn.Module]], None] | None = None


def trainings() -> Trainings:
    """Those of this worker's script."""
    assert _trainings is not None
    return _trainings


def enlist(spec: WorkerSpec, steered: ControlLink) -> None:
    """Make `join` in this process join a crew. Called by the worker process, before the script."""
    global _enlisted, _trainings
    _enlisted, _trainings = (spec, steered), Trainings(spec, steered)


def watch_models(watcher: Callable[[Run, Sequence[nn.Module]], None]) -> None:
    """Have the models of this process shown once they are prepared; for who looks on how a script uses them."""
    global _watcher
    _watcher = watcher


def current() -> Run | None:
    """The run this process has joined, if it has, and has a part in."""
    return None if _current is None or _current.past is not None else _current


def join(
    *, lanes: int = 4, seed: int | None = None, threads: int | None = None, finite: bool = True,
    reduction: str | None = None, verify: float | None = None,
) -> Run:  # fmt: skip
    """Join the run: alone under plain `python`, as one worker of the crew under `holdfast run` or `torchrun`.

    >>> run = join(lanes=2)          # doctest: +SKIP
    >>> model, optimizer, loader = run.prepare(model, optimizer, loader)   # doctest: +SKIP

    Args:
        lanes: into how many parts every step is cut. Together with `seed` and `threads` it fixes the
            result; the number of workers does not.
        seed: of data order, dropout and augmentation. Without it, the number that the script has called
            `torch.manual_seed` with before, if it has (below 2**32); else 0.
        threads: torch threads per worker, 1 unless you say; part of the result, because sums depend on it. A plain
            loop of a run of one process has the script's own number unless you say.
        finite: do not use a loss or gradient that is NaN or infinite. Its unit is computed once more by another
            worker, where there is one; then the run stops, and says where.
        reduction: "sum" where the script's losses are sums over their batches: the gradients of lanes are then added
            up, and `step.loss` is the sum. "mean", as without it, averages them; said, no loss is taken for a sum.
        verify: in which share of the later steps of a loop by steps a unit is computed twice and compared, as in some
            of the first ones; 0: in none at all. By default in 0.01 of them, as long as all of it takes no more than
            1% of the time.

    Raises:
        ConfigError: a value that cannot be.
        UsageError: the run before is not closed, or there cannot be another training.

    A script may join again once it has closed the run, for another training. `holdfast run` overrides `lanes`, `seed`,
    `threads` and `verify` where its options say so.
    """
    global _current
    if _current is not None:
        raise UsageError(
            "hf.join() was called twice in one process. Keep the run it returned and use that; for another training, "
            "end it first with run.close()."
        )
    spec, steered = _enlisted if _enlisted is not None else (None, None)
    past = trainings().begin() if steered is not None else None
    if past is not None:
        steered = None
    world = ranks.world(os.environ, os.getpid()) if spec is None else None
    found = seeding.by_hand()
    taken = seed is None and found is not None and getattr(spec, "seed", None) is None
    own_seed = (found or 0) if seed is None else seed
    said = {"lanes": lanes, "seed": own_seed, "threads": 1 if threads is None else threads}
    source = dict.fromkeys(said, "hf.join")
    for name in said:
        override = getattr(spec, name, None)
        if override is not None:
            said[name], source[name] = override, "holdfast run"
    for name, least in (("lanes", 1), ("seed", 0), ("threads", 1)):
        if not isinstance(said[name], int) or said[name] < least:
            raise ConfigError(name, said[name], f"must be a whole number of at least {least}", source=source[name])
    if spec is not None and spec.verify is not None:
        verify = spec.verify
    if verify is not None and not 0.0 <= verify <= 1.0:
        raise ConfigError("verify", verify, "must be a share of the steps, 0 to 1", source="hf.join")
    if said["lanes"] > CONTROL.max_lanes:
        most = f"more than {CONTROL.max_lanes}, the most a crew can have"
        raise ConfigError("lanes", said["lanes"], most, source=source["lanes"])
    _check_reduction(reduction, spec)
    if not taken:
        seeding.refused_by_hand(said["seed"], source["seed"])
    crew = world.size if world is not None else spec.crew if spec is not None else 0
    if crew > said["lanes"]:
        fix = f"Use --workers {said['lanes']} or fewer, or --lanes {crew}."
        if world is not None:
            fix = f"Start {said['lanes']} ranks or fewer, or use hf.join(lanes={crew}) (this changes the result)."
        raise ConfigError(
            "workers", crew,
            f"more than lanes = {said['lanes']} (set by {source['lanes']}), so some would have no work",
            source="holdfast run" if world is None else "WORLD_SIZE", fix=fix,
        )  # fmt: skip
    rank_exit = None
    if world is not None:  # one of the ranks of another launcher, such as torchrun
        from holdfast.train.torchrun.rank_worker import adopt

        spec, steered, rank_exit = adopt(world, said)
        enlist(spec, steered)
    own = torch.get_num_threads() if threads is None and spec is None else said["threads"]
    seeding.start(said["seed"], taken=taken)
    number_schedulers()
    _current = Run(
        said["lanes"], said["seed"], said["threads"], finite=finite, reduction=reduction, verify=verify, spec=spec,
        steered=steered, past=past,
    )  # fmt: skip
    _current.own_threads = own
    if rank_exit is not None:
        rank_exit.watch()
    return _current


def _check_reduction(reduction: str | None, spec: WorkerSpec | None) -> None:
    if reduction not in (None, MEAN, SUM):
        raise ConfigError("reduction", reduction, 'must be "mean" or "sum"', source="hf.join")
    if reduction == SUM and spec is not None and spec.sync != "exact":
        problem = f"with sync = {spec.sync} a push counts by its samples, which only a mean can"
        fix = "Make the loss a mean over its batch, or use --sync exact."
        raise ConfigError("reduction", reduction, problem, source="hf.join", fix=fix)


def _mode(sync: str, lanes: int) -> Mode:
    try:
        return parse(sync, lanes)
    except ValueError as error:  # the launcher did not know how many lanes the script has
        fix = f"Use --sync {advised(sync, lanes)}."
        raise ConfigError("sync", sync, str(error), source="holdfast run", fix=fix) from None


class Loader:
    """A prepared loader: iterating it gives this worker's units. `len` is the number of steps in a pass."""

    def __init__(self, run: Run, batches: Batches, loader: DataLoader[Any]) -> None:
        self._run, self._batches = run, batches
        self.dataset, self.batch_size = loader.dataset, loader.batch_size

    def __len__(self) -> int:
        return self._batches.steps

    def __iter__(self) -> Pass:
        return self._run._training_or_refuse().new_pass(self._batches)


class Run:
    """One process's part in a run. Made by `join`."""

    def __init__(
        self, lanes: int, seed: int, threads: int, *, finite: bool, reduction: str | None, verify: float | None,
        spec: WorkerSpec | None, steered: ControlLink | None, past: EndedTraining | None,
    ) -> None:  # fmt: skip
        self.past = past  #: a training that is over, and was made by others (`trainings`)
        self._alone = steered is None and past is None
        self.lanes, self.seed, self.threads, self.finite, self.verify = lanes, seed, threads, finite, verify
        self.own_threads = threads  #: of a plain loop in a run of one process
        self.reduction = reduction or MEAN
        self.losses = LossCheck(self.reduction, lanes, trusted=reduction is not None)
        sync = past.checkpoint.manifest.facts.sync if past is not None else spec.sync if spec is not None else "exact"
        self.mode = _mode(sync, lanes)
        self._stale = (spec.staleness, spec.compensation) if spec is not None else ("auto", COMPENSATION)
        self.outer = spec.outer if spec is not None else OUTER
        self.steered = steered
        self.worker, self.row = (spec.worker, spec.row) if spec is not None else (0, 0)
        self._script = spec.script if spec is not None else ""
        self._directory = Path(spec.dir) if spec is not None else None
        self._init_from = spec.init_from if spec is not None else ""
        self._storing: RunStore | None = None
        self._started = time.perf_counter()
        self._training: Training | None = None
        self._models: list[nn.Module] = []
        self._undo: list[Callable[[], None]] = []
        self._trail: AuditTrail | None = None
        if spec is not None and spec.audit and past is None:
            self._trail = AuditTrail(of_training(Path(spec.dir, "audit"), spec.training), spec.worker)
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(threads)
        keep_freed_memory()
        self.scalers = Scalers(lambda: self._training)
        self._undo.append(self.scalers.watch())
        if lanes > 1:
            self._undo.append(refuse_lane_clipping(self._in_a_part))
        atexit.register(self._exit, os.getpid())

    def _in_a_part(self) -> bool:
        """Is `.grad` the gradient of a part of a batch?"""
        return self.unit is not None and (self.steered is not None or not self._has_whole_gradient())

    def set_threads(self, *, own: bool) -> None:
        """Compute with the script's `own` number of threads, or with that of the run's configuration."""
        if torch.get_num_threads() in (self.threads, self.own_threads):  # else the script has chosen since
            torch.set_num_threads(self.own_threads if own else self.threads)

    # ------------------------------------------------------------ facts

    @property
    def lead(self) -> bool:
        """True in exactly one process of the crew: print, save and plot there."""
        if self.past is not None:  # as where it rehearses
            return False
        if self._training is None or self._training._bound is None or self.steered is None:
            return self.worker == 0
        if self._training.turns.rehearses:  # others have printed what it would
            return False
        return self.worker == self._training.bound.member.at.lead

    @property
    def workers(self) -> int:
        """How many workers the crew has now."""
        at = self._training.bound.member.at if self._training and self._training._bound else None
        return len(at.members) - len(at.servers) if at is not None else 1

    @property
    def step(self) -> int:
        """Steps committed so far."""
        return self._training.step if self._training else 0

    @property
    def epoch(self) -> int:
        """The epoch of `epochs` that is under way."""
        return max(self._training.epoch, 0) if self._training else 0

    @property
    def loss(self) -> float:
        """The mean loss over the newest committed step's whole batch; with reduction = "sum" the sum."""
        return self._training.facts.loss if self._training else float("nan")

    @property
    def grad_norm(self) -> float:
        """The gradient's norm, before clipping, of the newest step that was clipped by norm."""
        return self._training.grad_norm if self._training else float("nan")

    @property
    def unit(self) -> tuple[int, int, list[int]] | None:
        """(step, lane, samples) of the unit under way; None where there is none, or nothing of the turn counts."""
        if self._training is None or self._training.unit is None or self._training.turns.rehearses:
            return None
        work, lane, request = self._training.unit
        return work.step, lane, list(request)

    @property
    def stopping(self) -> bool:
        """The run was asked to end: loops over loader and epochs end at the next step boundary."""
        return bool(self._training and self._training._bound and self._training.bound.stopping(self.step))

    # ------------------------------------------------------------ the three verbs

    def prepare(self, *objects: Any) -> Any:
        """Hand over models, optimizers, loaders and LR schedulers, in any order; get them back in that order.

        Models, optimizers and schedulers stay the objects you made. Loaders come back as `Loader`s,
        whose batch size is the global batch.

        Raises:
            NotExact: something among them could not be kept the same for every crew; says what to do.
        """
        if self._training is not None:
            raise UsageError("run.prepare(...) was called twice. Hand everything over in one call.")
        models = [o for o in objects if isinstance(o, nn.Module)]
        optimizers = [o for o in objects if isinstance(o, torch.optim.Optimizer)]
        loaders = [o for o in objects if isinstance(o, DataLoader)]
        schedulers = [o for o in objects if isinstance(o, LRScheduler)]
        known = {id(o) for o in (*models, *optimizers, *loaders, *schedulers)}
        for other in objects:
            if id(other) not in known:
                raise UsageError(
                    f"run.prepare got a {type(other).__name__}. It takes models, optimizers, DataLoaders and "
                    "LR schedulers."
                )
        if not models or not optimizers:
            raise NotExact(
                f"run.prepare got {len(models)} models and {len(optimizers)} optimizers",
                "Hand over at least one of each.",
            )
        if len(optimizers) > 1 and not self.mode.exact:
            raise NotExact(
                f"run.prepare got {len(optimizers)} optimizers with sync = {self.mode.name}",
                "Put all parameters into the groups of one, or use --sync exact and the loop by steps.",
            )
        self._models = models
        training = self._training = Training(models, together(optimizers), schedulers, self)
        try:
            out = [Loader(self, training.add_loader(o), o) if isinstance(o, DataLoader) else o for o in objects]
            for batches in training.loaders:
                check_batches(models, batches)
            if self._init_from:
                load_weights(models, Path(self._init_from))
        except (UsageError, CheckpointError):  # refused as a whole: the script may hand over something else
            self._training = None
            training.close()
            raise
        if _watcher is not None:
            _watcher(self, models)
        return out[0] if len(out) == 1 else tuple(out)

    def steps(self, *loaders: Loader, accumulate: int = 1) -> Steps:
        """The steps of one pass over prepared loaders: `for step in run.steps(loader): for batch in step: ...`.

        One turn is one step, on every crew and through every kill. After the inner loop `.grad` is the gradient of the
        whole batch, the same in every worker and its own to edit; `optimizer.step()` ends the step.

        Several loaders go along, as with `zip`: a turn has a batch of each, and the shortest ends the pass. With
        `accumulate=k` a step has k batches, which the inner loop gives one after the other; the last may have fewer.
        """
        for loader in loaders or (None,):
            if not isinstance(loader, Loader):
                raise UsageError(
                    f"run.steps got {'nothing' if loader is None else f'a {type(loader).__name__}'}. Hand it a loader "
                    "that run.prepare(...) has returned."
                )
        return self._training_or_refuse().turns.begin([loader._batches for loader in loaders], accumulate)

    def keep(self, *objects: Stateful, **values: Any) -> Any:
        """Keep what the script has besides model and optimizer: a worker that comes late is handed all of it.

        >>> ema, best = run.keep(ema), run.keep(loss=float("inf"), patience=3)   # doctest: +SKIP
        >>> if scores["loss"] < best.loss:                                        # doctest: +SKIP
        ...     best.loss = scores["loss"]

        Objects have `state_dict` and `load_state_dict`; values are numbers, strings, lists and dicts, and are read and
        written as attributes of what this returns. Call it after `prepare`, before the first loop.

        Raises:
            UsageError: something among it cannot be stored; says what.
        """
        training = self._training_or_refuse()
        if training.begun:
            raise UsageError("run.keep was called after training had begun. Call it before the first loop.")
        training.turns.keeping.add(objects, values)
        kept = (*objects, *([training.turns.keeping.values] if values else []))
        return kept[0] if len(kept) == 1 else kept

    def epochs(self, number: int) -> Iterator[int]:
        """The epochs 0 ... number - 1; a worker that joins late begins with the crew's current one."""
        return self._training_or_refuse().epochs(number)

    def evaluate(self, measure: Callable[..., Mapping[str, Any]], loader: DataLoader[Any] | Loader) -> dict[str, float]:
        """The mean over a data set of what `measure(*batch)` returns: a dict of means over its batch.

        The crew shares the batches; every worker gets the same result. Call it in every worker, outside
        of the loop over the prepared loader. `loader` is an ordinary DataLoader.
        """
        if isinstance(loader, Loader):
            raise UsageError("run.evaluate got a prepared loader. Hand it an ordinary DataLoader.")
        return evaluate(self._training_or_refuse(), measure, loader, self.seed)

    def agree(self, value: float) -> float:
        """One worker's number, the same in all: for decisions on clocks and the like. Call it in every worker."""
        return agree(self._training_or_refuse(), value)

    def store(
        self, servers: int = 1, *, handler: Handler | str = "holdfast.store.handlers:add",
        memory: str | int | None = None, timeout: float = STORE.timeout,
    ) -> Store:  # fmt: skip
        """The parameter store of this run, shared by all workers: see `holdfast.store`.

        Call it with the same arguments in every worker. Its servers are processes beside the launcher, started when the
        first worker asks; under plain `python` they are threads. This worker's name there is `worker-ROW`, and whoever
        replaces it has the same one. `memory` ("2GiB") is how much each server may use.

        Raises:
            StoreError: it cannot be started, or another worker has asked for another one; says why.
        """
        if self._storing is None:
            from holdfast.train.run_store import RunStore

            if not self._alone:
                trainings().note_store()
            self._storing = RunStore(self.steered, self.worker, self.row, self._script)
        return self._storing.open(servers, handler, memory, timeout)

    # ------------------------------------------------------------ weights in files

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the models' weights into a .safetensors file, whole or not at all, by the names of their state_dict.

        Call it in every worker at the same place, outside of the loop over units: the lead writes, the others wait, and
        if it is lost meanwhile, the next lead writes. An older file of that name is replaced. Returns the path.

        Raises:
            UsageError: it was called where workers are apart.
            ResourceError: the disk does not take it.
        """
        file = Path(path)
        training = self._together(f"run.save({str(path)!r})", "run.save")
        if file.suffix != ".safetensors":
            raise UsageError(
                f"run.save({str(path)!r}): it writes the safetensors format. Let the name end in .safetensors; for "
                "others there is `holdfast checkpoint export`."
            )
        by_lead(training, lambda: save_weights(file, self._models))
        return file

    def export(
        self, model: nn.Module, example: Any, to: str | os.PathLike[str] | None = None, *, name: str = "",
        classes: Sequence[str] = (), variable: Mapping[str, Sequence[int]] | None = None, batched: bool = True,
    ) -> Path:  # fmt: skip
        """Export a model as it is now, so that it can be served: its next version in the folder `to`.

        Call it in every worker at the same place, outside of the loop over units, as `run.save`. `model` is a prepared
        one, a part of it, or a module around it; `example` is what goes in: a tensor, a tuple of arguments, or a dict
        of them by name, with the items in the first dimension. It is traced in eval mode, written, loaded again, and
        has to answer as before. Returns the folder; without `to` it is `model` in the run's directory.

        Args:
            name: of the model, as clients call it; the folder's unless you say.
            classes: what the entries of its output stand for.
            variable: dimensions of inputs, besides the first, that may have any size: {"tokens": [1]}.
            batched: False where one request is one call, and the first dimension does not count items.

        Raises:
            UsageError: it was called where workers are apart, or the example does not fit.
            ModelError: it cannot be traced, answers otherwise than before, or could not be written.
        """
        from holdfast.train.weights.exported_model import export_model, place_of

        training, folder = self._together("run.export", "run.export"), place_of(to, self._directory)
        said = {"name": name, "classes": tuple(classes), "batched": batched}
        said["variable"] = {key: tuple(dimensions) for key, dimensions in (variable or {}).items()}
        step = {"run": self._directory.name if self._directory else "", "step": self.step, "epoch": self.epoch}
        by_lead(training, lambda: export_model(self._models, model, example, folder, {**said, "source": step}))
        return folder

    def _together(self, call: str, name: str) -> Training:
        """Refuse what all workers have to do together, where they are apart."""
        training = self._training_or_refuse()
        if training.turns.in_units or (training.turns.rehearsal is not None and training.unit is not None):
            raise UsageError(
                f"{call} was called inside of the loop over the units of step {self.step}, where workers are apart. "
                "Call it before that loop or after it."
            )
        if training.shares is not None and not training.shares.left:
            training.shares.refuse_inside(name)
        return training

    def load(self, path: str | os.PathLike[str]) -> Loaded:
        """Put weights into the prepared models: of a run's directory, a checkpoint, or any .safetensors file.

        Call it in every worker after `prepare`, before the first loop. What does not fit is told and returned: names
        that are `missing` in the file, `unexpected` in it, or `differing` in shape or dtype. The optimizer begins anew.

        Raises:
            UsageError: training has begun.
            CheckpointError: it cannot be read, is not whole, or has nothing in common with the models.
        """
        training = self._training_or_refuse()
        if training.begun:
            raise UsageError(
                f"run.load({str(path)!r}) was called after training had begun, when the weights are the whole crew's. "
                "Call it right after run.prepare(...), before the first loop, run.evaluate, run.agree or run.save."
            )
        return load_weights(self._models, Path(path))

    # ------------------------------------------------------------ clipping

    def clip_grad_norm_(self, parameters: Iterable[torch.Tensor] | torch.Tensor, max_norm: float) -> None:
        """Clip this step's whole gradient to `max_norm`: in a loop by steps at once, as torch does it.

        In a plain loop once it is summed; the norm is that of all trained parameters, and is known when the step is
        complete (`run.grad_norm`).
        """
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        training = self._check_clip(parameters, "max_norm", max_norm, "clip_grad_norm_")
        training.clip_norm = float(max_norm)
        if self._has_whole_gradient():
            training.grad_norm = float(nn.utils.clip_grad_norm_(parameters, max_norm))

    def clip_grad_value_(self, parameters: Iterable[torch.Tensor] | torch.Tensor, clip_value: float) -> None:
        """Clip every element of this step's summed gradient to [-clip_value, clip_value]."""
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        training = self._check_clip(parameters, "clip_value", clip_value, "clip_grad_value_")
        training.clip_value = float(clip_value)
        if self._has_whole_gradient():
            nn.utils.clip_grad_value_(parameters, clip_value)

    def _check_clip(self, parameters: Sequence[torch.Tensor], name: str, value: float, what: str) -> Training:
        training = self._training_or_refuse()
        if training.turns.in_units:
            raise NotExact(
                f"run.{what} was called inside of the loop over the units of a step",
                "Call it once a turn, after that loop, or torch's own.",
            )
        if not value > 0:
            raise ConfigError(name, value, "must be above 0", source="clip_grad")
        given = {id(p) for p in parameters}
        trained = zip(training.space.names, training.space.trainable, strict=True)
        left_out = [name for name, parameter in trained if id(parameter) not in given]
        if left_out:
            raise NotExact(
                f"clipping was asked for without {', '.join(left_out[:3])}{' ...' if len(left_out) > 3 else ''}",
                "Hand over model.parameters(): the norm is that of all trained parameters.",
            )
        return training

    def _has_whole_gradient(self) -> bool:
        """Is `.grad` the gradient of a whole batch, as it is between the units of a step and its end?"""
        if self._training is None:
            return False
        if self._training.own.used and self._training.turns.turn is None:
            return True
        turns = self._training.turns
        return turns.turn is not None and not turns.in_units

    # ------------------------------------------------------------ results

    def weights_sha256(self) -> str:
        """SHA-256 of all parameters and persistent buffers: name, dtype, shape and raw bytes, in order."""
        if self._training is not None:
            self._training.leave_pass(look=True)
        digest = hashlib.sha256()
        for index, model in enumerate(self._models):
            prefix = f"{index}." if len(self._models) > 1 else ""
            for name, tensor in model.state_dict().items():
                if not isinstance(tensor, torch.Tensor):
                    continue  # a module's extra state: neither parameter nor buffer
                plain = tensor.detach().cpu().contiguous()
                digest.update(f"{prefix}{name}\n{plain.dtype}\n{tuple(plain.shape)}\n".encode())
                digest.update(_raw(plain))
        return digest.hexdigest()

    def result(self) -> dict[str, str | int | float | bool | list[int] | None]:
        """What the summary says of this worker's view of the run."""
        seconds = time.perf_counter() - self._started
        training = self._training
        if training is None or training._bound is None:
            return {"steps": 0, "epochs": 0, "seconds": seconds}
        training.finish()
        samples = training.facts.samples
        if self.lead and self._directory is not None and self._directory.is_dir():  # else it is on another machine
            write_final(self._directory, self._models)
        return {
            "steps": training.step,
            "epochs": training.epoch + 1,
            "samples": samples,
            "weights_sha256": self.weights_sha256(),
            "seconds": seconds,
            "samples_per_second": samples / seconds,
            "loss": training.facts.loss,
            "lanes": self.lanes,
            "seed": self.seed,
            "threads": self.threads,
            "units": units(training.bound.board.words),
            "samples_left_out": training.left_out(),
            "reduction": self.reduction,
            "verify": SHARE if self.verify is None else self.verify,
            **ages.read(training.bound.board.words).facts(),
        }

    def staleness(self, mode: Mode) -> Staleness:
        """What becomes of stale pushes in this mode."""
        return used(self._stale[0], mode, self._stale[1])

    def audit(self, order: int, step: int, lane: int, ids: Sequence[int]) -> None:
        """Note which samples a unit used, where that was asked for."""
        if self._trail is not None:
            self._trail.note(order, step, lane, ids)

    def audit_came(self, step: int, lanes: Sequence[int]) -> None:
        """Note of which shares a step of a plain loop consists, where that was asked for."""
        if self._trail is not None:
            self._trail.came(step, lanes)

    def close(self) -> None:
        """End this run: put back what `prepare` changed on your objects. Done at the script's end by itself.

        The script may then join anew, for another training.
        """
        if self._alone or self._training is None:
            self._close()
            return
        begun = self._training.begun
        result = self.end() if sys.exc_info()[0] is None else None
        self._close()
        trainings().close(result, begun=begun)

    def end(self) -> dict[str, str | int | float | bool | list[int] | None]:
        """Close it, and say what the summary says, and how the newest turn was ended."""
        result = self.result()
        if self._training is not None and self._training.begun:
            result[TURN_ENDED] = list(self._training.bound.member.ends.newest())
        self._close()
        return result

    def _close(self) -> None:
        global _current
        atexit.unregister(self._exit)
        if self._storing is not None:
            storing, self._storing = self._storing, None
            storing.close()
        if self._training is not None:
            training, self._training = self._training, None
            training.close()
        for undo in self._undo:
            undo()
        self._undo.clear()
        if self._alone and torch.get_num_threads() == self.threads:  # else the script has chosen since
            torch.set_num_threads(self._threads_before)
        if self._trail is not None:
            self._trail.close()
        if _current is self:
            _current = None

    def check_used(self) -> None:
        """The script has come to its end: refuse one that has handed over nothing."""
        if self._training is None and self._storing is None:
            raise UsageError(_NEVER_PREPARED)

    def _exit(self, pid: int) -> None:
        """The process ends. Alone, nobody else sees how the script has used the run."""
        unused = self._alone and self._training is None and self._storing is None
        self._close()
        if unused and pid == os.getpid() and not hasattr(sys, "last_type") and not hasattr(sys, "ps1"):
            with contextlib.suppress(OSError, ValueError):
                print(f"holdfast: {_NEVER_PREPARED}", file=sys.stderr, flush=True)
                sys.stdout.flush()
            os._exit(UsageError.exit_code)  # at exit, Python has settled on another status already

    def _training_or_refuse(self) -> Training:
        if self._training is None:
            raise UsageError("Nothing is prepared yet. Call run.prepare(model, optimizer, loader) first.")
        return self._training


def _raw(tensor: torch.Tensor) -> bytes:
    flat = tensor.view(-1) if tensor.dim() else tensor.reshape(1)
    data = cast("numpy.ndarray[Any, Any]", flat.view(torch.uint8).numpy()) if flat.numel() else numpy.empty(0, "u1")
    if sys.byteorder == "big":
        data = data.reshape(-1, tensor.element_size())[:, ::-1]
    return data.tobytes()
