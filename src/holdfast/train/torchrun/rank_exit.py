"""How an adopted rank ends: it tells the coordinator how its script ended, and leaves when the run has.

A worker of `holdfast run` is called as a function, and whoever called it sees how it ends. A rank runs its script at
the top of its process, so it is told by Python itself: by `sys.excepthook` of an exception that nobody caught, and
by `atexit` of the end. What `sys.exit` was called with is not to be had there; the launcher sees it.

Who has finished waits for the end of the run, and of the helper, which writes the summary: others may still need what
lies in the memory of this node, and many launchers end everything when rank 0 does. The run itself watches over those
who are awaited, so this wait has an end.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import select
import signal
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType

from holdfast.config.limits import TORCHRUN
from holdfast.config.worker_spec import WorkerSpec
from holdfast.control.protocol import messages
from holdfast.errors import Stopped
from holdfast.hosts.torchrun import rank_messages as say
from holdfast.train import worker
from holdfast.train.control_link import ControlLink, LetGo
from holdfast.transport.link import Link

__all__ = ["RankExit"]



class RankExit:
    """One rank's end. `watch` begins, once the run is there.

    Resources: owns `helper`, the connection to this node's helper.
    """

    def __init__(self, spec: WorkerSpec, steered: ControlLink, helper: Link, rank: int) -> None:
        self._spec, self._steered, self._helper, self._rank = spec, steered, helper, rank
        self._pid = os.getpid()
        self._told = False
        self._hook = sys.excepthook

    def watch(self) -> None:
        """Be told of the script's end. After everything that is to be done before it was registered."""
        atexit.register(self._ended)
        self._hook, sys.excepthook = sys.excepthook, self._raised
        if signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL:  # which would end us, when a hang is looked into
            with contextlib.suppress(OSError):
                path = Path(self._spec.dir, "logs", f"worker-{self._spec.worker}.stack")
                stacks = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
                faulthandler.register(signal.SIGUSR2, file=stacks, all_threads=True)

    def _raised(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Nobody caught it: the script has failed, or this rank was told to end."""
        if os.getpid() != self._pid or self._told:
            self._hook(kind, error, trace)
            return
        self._told = True
        if isinstance(error, LetGo):
            self._part()
            raise SystemExit(0)
        if isinstance(error, Stopped):
            self._stopped(error)
            raise SystemExit(Stopped.exit_code)
        self._steered.say_last(worker._failure(self._spec, self._steered, error))
        self._part()
        self._hook(kind, error, trace)
        sys.stderr.flush()
        self._see_the_end(TORCHRUN.failure)

    def _ended(self) -> None:
        """The script has ended, well as far as can be seen."""
        if os.getpid() != self._pid or self._told:
            return
        self._told = True
        try:
            result = {**worker._result(), "joined": True}  # also where the script has closed the run itself
            self._steered.send(messages.Finished(self._spec.worker, self._steered.generation, result))
        except LetGo:
            self._part()
        except Stopped as stopped:
            self._stopped(stopped)
            _leave(Stopped.exit_code)
        except BaseException as error:
            self._steered.say_last(worker._failure(self._spec, self._steered, error))
            self._part()
            traceback.print_exc()
            self._see_the_end(TORCHRUN.failure)
            _leave(getattr(error, "exit_code", 1))
        else:
            self._part()
            self._see_the_end(None)

    def _stopped(self, error: Stopped) -> None:
        print(f"Rank {self._rank} ends because the run has failed elsewhere. {error}", file=sys.stderr, flush=True)
        self._part()
        self._see_the_end(TORCHRUN.failure)

    def _part(self) -> None:
        """From here on this process has nothing to do with the run, and signals mean what they always do."""
        for number, usual in ((signal.SIGTERM, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
            if getattr(signal.getsignal(number), "__self__", None) is self._steered:
                signal.signal(number, usual)
        self._helper.send(say.encode(say.Parted()))

    def _see_the_end(self, seconds: float | None) -> None:
        """Wait until the run has ended (`seconds` at most), and then for the helper to end."""
        until = None if seconds is None else time.monotonic() + seconds
        poll = select.poll()
        poll.register(self._helper.fileno(), select.POLLIN)
        over = False
        while poll.poll(None if until is None else max(0.0, until - time.monotonic()) * 1000):
            frame = self._helper.recv()
            if frame is None:
                return
            if not over and isinstance(say.decode_to_rank(frame.data), say.RunOver):
                over, until = True, time.monotonic() + TORCHRUN.summary


def _leave(status: int) -> None:
    """End with this status: at exit, Python has settled on another one already."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)
