"""The life of a worker process: run the script from its top, and tell the coordinator how it ended.

Called by the spawner in a fresh process, with a link to the coordinator. The script's own exception is
what the user wants to see: it is reported with the script's frames first and ours left out. A death that
cannot be reported (a signal) is seen by the launcher, which reaps the process.
"""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from pathlib import Path
from types import TracebackType

from holdfast.config.worker_spec import WorkerSpec
from holdfast.control.protocol import messages as say
from holdfast.core.keys import STREAM_START, key
from holdfast.errors import ScriptFailed, Stopped
from holdfast.train import run as runs
from holdfast.train.control_link import ControlLink, LetGo
from holdfast.train.loop.scheduler_order import number_schedulers
from holdfast.transport.link import MAX_MESSAGE, Link

__all__ = ["main", "warm_up"]

_TRACE = MAX_MESSAGE - 16 * 1024  # what of a trace fits into a message beside the rest
_OURS = str(Path(__file__).resolve().parents[1])


def warm_up() -> None:
    """Import what every worker needs, once, before workers are forked.

    Also what torch puts off until the first optimizer is made (its compiler: two seconds of imports).
    """
    import numpy.random
    import torch._dynamo
    import torch.optim.lr_scheduler
    import torch.utils.data

    import holdfast.data.batches
    import holdfast.train.fit

    assert all((numpy.random, torch._dynamo, torch.utils.data, holdfast.train.fit))


def main(spec: WorkerSpec, link_fd: int) -> None:
    """Run the script as worker `spec.worker`. Ends the process by returning or by SystemExit."""
    steered = ControlLink(spec.worker, Link.from_fd(link_fd))
    runs.enlist(spec, steered)
    sys.argv = [spec.script, *spec.args]
    sys.path.insert(0, str(Path(spec.script).resolve().parent))
    _seed(spec)
    number_schedulers()
    try:
        try:
            runpy.run_path(spec.script, run_name="__main__")
        except SystemExit as leaving:
            _left(leaving)
        steered.send(say.Finished(spec.worker, steered.generation, _result()))
    except LetGo:
        return
    except Stopped as stopped:
        print(f"This worker ends because the run has failed elsewhere. {stopped}", file=sys.stderr)
        raise SystemExit(1) from None
    except BaseException as error:
        runs.trainings().unmute()
        steered.say_last(_failure(spec, steered, error))
        traceback.print_exc()
        sys.stderr.flush()
        raise SystemExit(getattr(error, "exit_code", 1)) from None
    finally:
        runs.trainings().unmute()
        sys.stdout.flush()


def _seed(spec: WorkerSpec) -> None:
    """Before the script's first line, as `join` does again: a script may draw numbers before it joins."""
    from holdfast.data.randomness import seed_everything

    seed_everything(key(spec.seed or 0, STREAM_START))


def _left(leaving: SystemExit) -> None:
    """`sys.exit()`: the script's end if it says success and stands at no unfinished step, else a failure."""
    run = runs.current()
    unfinished = run is not None and run.unit is not None
    if leaving.code in (None, 0) and not unfinished:
        return
    where = f" in the middle of step {run.step}" if run is not None and unfinished else ""
    raise ScriptFailed(
        f"The script called sys.exit({leaving.code!r}){where}. Let every worker reach the script's end, or "
        f"{_instead(run)}."
    ) from leaving


def _instead(run: runs.Run | None) -> str:
    """How a script can end a loop early."""
    training = run._training if run is not None else None
    if training is None or training._bound is None or training.bound.relaxed is None:
        return "leave the loop with `break` on run.step"
    return (
        f"end the run from outside (Ctrl-C); with sync = {training.bound.mode.name} there is no step at which all "
        "workers could leave the loop. With --sync exact `break` on run.step does it"
    )


def _result() -> dict[str, str | int | float | bool | list[int] | None]:
    run = runs.current()
    if run is not None:
        run.check_used()
    else:
        runs.trainings().check_come()
    told = run.end() if run is not None else runs.trainings().result  # the script may have closed it
    return {"joined": told is not None, **(told or {})}


def _failure(spec: WorkerSpec, steered: ControlLink, error: BaseException) -> say.Failed:
    run = runs.current()
    training = run._training if run is not None else None
    rehearses = training is not None and (training.turns.rehearses or training.shares is not None)
    unit = run.unit if run is not None and not rehearses else None  # a share is not tried again by another worker
    message = str(error)
    # torch has no class of its own for this, on the CPU.
    short = isinstance(error, MemoryError) or "can't allocate memory" in message
    kind = "MemoryError" if short else type(error).__name__
    # `sys.exit()` became an error of ours on its way here: what counts is where it was called.
    origin = error.__cause__ if isinstance(error.__cause__, SystemExit) else error
    frames = _script_frames(origin.__traceback__)
    where = f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else spec.script
    trace = "".join(traceback.format_list(frames)) + "".join(traceback.format_exception_only(error)).strip()
    return say.Failed(
        worker=spec.worker, generation=steered.generation, kind=kind, message=message[:4096], where=where,
        trace=trace[-_TRACE:], unit=unit[:2] if unit else None, samples=list(unit[2][:64]) if unit else [],
        step=run.step if run is not None else -1, idle=training is not None and training.idle,
    )  # fmt: skip


def _script_frames(trace: TracebackType | None) -> list[traceback.FrameSummary]:
    """The frames that are the user's: not ours, not runpy's, not torch's."""
    frames = traceback.extract_tb(trace)
    skipped = (_OURS, os.path.dirname(runpy.__file__), "<frozen", f"{os.sep}torch{os.sep}")
    theirs = [f for f in frames if not any(part in f.filename for part in skipped)]
    return theirs or list(frames)
