"""A replica: a process that holds one version of a model and computes batches, one at a time.

It is forked by a forkserver that has imported torch (`hosts.forkserver`), is told over its link what to serve, and ends
with the front door. It listens to nobody else. While it loads a version it yields the machine to replicas that answer.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.config.limits import SERVING
from holdfast.config.worker_spec import WorkerSpec
from holdfast.errors import HoldfastError
from holdfast.serve.replica import messages as say
from holdfast.serve.replica.batch_memory import BatchReader, BatchWriter
from holdfast.serve.replica.example import batches_of
from holdfast.serve.replica.tensors import Array, arrays, not_finite, pack, place
from holdfast.transport.link import MAX_MESSAGE, Link

if TYPE_CHECKING:
    from holdfast.model.loading import LoadedModel

__all__ = ["main", "warm_up"]

_NICE = 15  # of the thread that loads
_PR_SET_NO_NEW_PRIVS = 38


def warm_up() -> None:
    """Import what every replica needs, once, before replicas are forked."""
    import holdfast.model.loading
    from holdfast.model.kinds import program

    assert holdfast.model.loading
    program.warm_up()
    with contextlib.suppress(ImportError):  # it looks for the place of the title, which is only found before
        import setproctitle  # the environment has changed

        assert setproctitle.getproctitle()


def main(spec: WorkerSpec, link_fd: int) -> None:
    """Serve until the front door says that there is nothing more, or is gone."""
    _drop_privileges()
    replica = _Replica(Link.from_fd(link_fd))
    signal.signal(signal.SIGTERM, lambda *_: replica.leave())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is the front door's to hear
    import torch

    torch.set_num_threads(spec.threads or 1)
    torch.set_grad_enabled(False)
    replica.serve()


def _drop_privileges() -> None:
    """A model is somebody's code: nothing that it starts gets more rights than it has. (The environment that its
    process was started with has no secrets: `door.replica_processes`.)"""
    with contextlib.suppress(OSError):
        ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump would hold what clients have sent


class _Replica:
    """The loop, and what it has."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._inputs, self._outputs = BatchReader(), BatchWriter()
        self._model: LoadedModel | None = None

    def leave(self) -> None:
        """Somebody has asked this process to end: the front door decides when."""
        self._link.send(say.encode(say.Leaving()))

    def serve(self) -> None:
        """Read what the front door says, and do it."""
        while (frame := self._link.recv()) is not None:
            self._inputs.take(frame.fds)
            message = say.decode_to_replica(frame.data)
            if isinstance(message, say.Compute):
                self._compute(message)
            elif isinstance(message, say.Load):
                if not self._load(message):
                    return
            else:
                return

    # ------------------------------------------------------------ loading

    def _load(self, wanted: say.Load) -> bool:
        _entitle(wanted.title)
        if wanted.memory:
            resource.setrlimit(resource.RLIMIT_DATA, (wanted.memory, wanted.memory))
        outcome: list[say.Loaded | say.CannotLoad] = []
        # Niceness is a thread's: this one yields to replicas that answer, and the one that will answer does not.
        loader = threading.Thread(target=lambda: outcome.append(self._try_to_load(wanted)), name="load")
        loader.start()
        loader.join()
        self._link.send(say.encode(outcome[0]))
        return isinstance(outcome[0], say.Loaded)

    def _try_to_load(self, wanted: say.Load) -> say.Loaded | say.CannotLoad:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        try:
            from holdfast.model.loading import load

            self._model = load(Path(wanted.path))
            return say.Loaded(self._measure(wanted), _resident())
        except HoldfastError as error:
            return say.CannotLoad(str(error)[:4096])
        except BaseException as error:  # what a model's own code raises, `sys.exit` too
            print(f"{wanted.path} cannot be loaded", file=sys.stderr)
            sys.excepthook(type(error), error, error.__traceback__)
            return say.CannotLoad(f"{type(error).__name__}: {error}"[:4096])

    def _measure(self, wanted: say.Load) -> tuple[tuple[int, float], ...]:
        """Compute some batches, twice each: the second time tells what they take. Raises ValueError: wrong outputs."""
        assert self._model is not None
        measured: list[tuple[int, float]] = []
        until = time.perf_counter() + SERVING.warm
        for items, inputs in batches_of(self._model.manifest, Path(wanted.path), wanted.most):
            for _ in range(2):
                began = time.perf_counter()
                packed = self._pack(self._model.predict(inputs), items)
                seconds = time.perf_counter() - began
            if self._model.manifest.finite and not_finite(packed, batched=self._model.manifest.signature.batched):
                raise ValueError("its outputs for the example have values that are not finite")
            measured.append((items, seconds))
            if time.perf_counter() > until:
                break
        return tuple(measured)

    # ------------------------------------------------------------ computing

    def _compute(self, wanted: say.Compute) -> None:
        assert self._model is not None
        signature, began = self._model.manifest.signature, time.perf_counter()
        try:
            inputs = arrays(signature.inputs, wanted.inputs, self._inputs.memory)
            items = wanted.inputs[0].shape[0] if signature.batched else 1
            packed = self._pack(self._model.predict(inputs), items)
        except Exception as error:
            if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
                raise  # what is left of this process is of no use: another one is started, and tries it again
            print(f"batch {wanted.number} failed:", file=sys.stderr)
            sys.excepthook(type(error), error, error.__traceback__)
            sys.stderr.flush()
            self._raised(wanted, type(error).__name__, str(error))
            return
        placed, size = place(packed)
        fds = self._outputs.room(size)
        for (data, _), one in zip(packed, placed, strict=True):
            raw = data if isinstance(data, bytes) else data.reshape(-1).view("u1").data
            self._outputs.memory[one.begin : one.begin + one.size] = raw
        bad = not_finite(packed, batched=signature.batched) if self._model.manifest.finite else ()
        seconds = time.perf_counter() - began
        answer = say.encode(say.Computed(wanted.number, seconds, tuple(placed), bad, _resident()))
        if len(answer) > MAX_MESSAGE:  # where each of thousands of strings ends
            self._raised(wanted, "ValueError", f"its outputs have too many strings for one batch: {items} items", fds)
            return
        self._link.send(answer, fds)

    def _raised(self, wanted: say.Compute, kind: str, message: str, fds: tuple[int, ...] = ()) -> None:
        self._link.send(say.encode(say.Raised(wanted.number, kind[:200], message[:2048])), fds)

    def _pack(self, given: Mapping[str, Any], items: int) -> list[tuple[Array | bytes, say.Placed]]:
        assert self._model is not None
        signature = self._model.manifest.signature
        missing = [spec.name for spec in signature.outputs if spec.name not in given]
        if missing:
            raise ValueError(f"the model gave no output {missing[0]}: it gave {', '.join(given) or 'nothing'}")
        return [pack(spec, given[spec.name], items, batched=signature.batched) for spec in signature.outputs]


def _entitle(title: str) -> None:
    """Show people what this process is, where that can be done."""
    with contextlib.suppress(ImportError):
        import setproctitle

        setproctitle.setproctitle(title)


_statm = -1


def _resident() -> int:
    """Bytes that this process has in memory."""
    global _statm
    if _statm < 0:
        _statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    return int(os.pread(_statm, 128, 0).split()[1]) * os.sysconf("SC_PAGESIZE")
