"""WorkerSpec: what one worker process is told when it starts. It travels to the forkserver as msgpack."""

from __future__ import annotations

import msgspec

from holdfast.core.sync.staleness import COMPENSATION

__all__ = ["OUTER", "WorkerSpec"]

#: Learning rate and momentum of the outer step of `local:H`, unless somebody says otherwise.
OUTER = (0.8, 0.3)


class WorkerSpec(msgspec.Struct, frozen=True):
    """One worker. `lanes`, `seed`, `threads` and `verify` are overrides; None leaves them to the script's `join()`.

    `crew` is how many workers were asked for by name, so that `join()` can refuse more workers than
    lanes in its first line; 0 means that nobody asked for a number. `scratch` is where short-lived files go.
    `training` is how many trainings of the script are over, and `single` why there cannot be another one, if so.
    """

    worker: int
    row: int
    script: str
    args: tuple[str, ...]
    dir: str
    crew: int = 0
    lanes: int | None = None
    seed: int | None = None
    threads: int | None = None
    verify: float | None = None
    sync: str = "exact"
    staleness: str = "auto"
    compensation: float = COMPENSATION
    outer: tuple[float, float] = OUTER
    audit: bool = False
    scratch: str = ""
    init_from: str = ""
    training: int = 0
    single: str = ""
