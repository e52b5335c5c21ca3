"""A prediction: reads blocks, has them computed by the replicas of a model, and writes what came, in order.

Which replicas there are, which computes what, and what happens when one is lost is `ModelService`'s to see to: a block
is a request to it. A block that fails is cut in halves until the rows are known that it fails for. Reading and writing
have a thread each, so that replicas are heard at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from holdfast.config.limits import SERVING
from holdfast.errors import BadRow, CrewLost, ModelError, RunError, UsageError
from holdfast.model.manifest import ModelManifest
from holdfast.observe.progress import short_number, short_time
from holdfast.observe.screen import Screen
from holdfast.serve.dispatch.dispatcher import DispatchLimits
from holdfast.serve.dispatch.rollout import RolloutLimits
from holdfast.serve.models.answers import Unanswered
from holdfast.serve.models.library_watch import first_version
from holdfast.serve.models.model_service import ModelService
from holdfast.serve.models.replica_processes import ReplicaProcesses
from holdfast.serve.predict.blocks import Block, Window, block, block_count, block_size
from holdfast.serve.predict.columns import Feed, feeds, inputs
from holdfast.serve.predict.formats import Format, format_of, make_format
from holdfast.serve.predict.outputs import Column, Outputs, Piece, arrays, layout
from holdfast.serve.predict.record import BadRowFound, Record
from holdfast.serve.predict.source import Array, Source, UnreadableRows, open_source
from holdfast.serve.protocol.requests import InferInput

__all__ = ["Outcome", "PredictJob", "PredictOptions", "progress_line"]

_SAMPLE = 32  #: rows that are looked at before anything is computed
_FOR_EVER = 1e9
#: A block is one request and one batch: nothing is refused, nothing is computed together with it.
_LIMITS = DispatchLimits(objective=_FOR_EVER, batch=1, items=1 << 62, bytes=1 << 62, tries=4)
T = TypeVar("T")


class PredictOptions(NamedTuple):
    """What `holdfast predict` was asked for."""

    model: Path
    data: str
    out: Path
    workers: int = 1
    batch: int = 0  #: rows of a block; 0: by the size of a row
    format: str = ""  #: empty: by the ending of `out`
    columns: tuple[str, ...] = ()
    top: int = 1  #: classes of each row
    numbered: bool = False  #: with the row's number
    skip: bool = False  #: leave out rows that fail
    fresh: bool = False  #: begin again, whatever is there
    threads: int = 1
    hang: float = 60.0


class Outcome(NamedTuple):
    """How it ended."""

    rows: int  #: of the data set
    written: int
    bad: int
    resumed: int  #: of those that are done, how many were done before
    seconds: float  #: all of it
    computing: float  #: seconds of it since replicas were ready
    bytes: int = 0
    sha256: str = ""
    stopped: int = 0  #: the signal that has ended it before its end


class _Plan(NamedTuple):
    """What is done, and what fixes the bytes of the file."""

    source: Source
    feeds: tuple[Feed, ...]
    size: int
    columns: tuple[Column, ...]
    format: Format
    settings: dict[str, Any]


class _Failed(Exception):
    """These rows cannot be computed together."""


class PredictJob:
    """One prediction; use `run`."""

    def __init__(self, options: PredictOptions, screen: Screen) -> None:
        self._options, self._screen = options, screen
        found, passed_over = first_version(options.model)
        for sentence in passed_over:
            screen.say(f"holdfast: warning: {sentence}")
        self._version, self._manifest = found, found.manifest
        if not self._manifest.idempotent:
            raise UsageError(
                f"{options.model} says that its requests may not be computed twice, and a block is computed again when "
                "its replica is lost. Export it without that, or send its requests to `holdfast serve`."
            )
        self._format = format_of(options.out, options.format)
        self._stop = asyncio.Event()
        self._signal = 0
        self._said: set[str] = set()
        self._last_said = ""

    async def run(self) -> Outcome:
        """Predict all there is, or until a signal ends it."""
        options, loop, began = self._options, asyncio.get_running_loop(), time.monotonic()
        async with contextlib.AsyncExitStack() as stack:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                loop.add_signal_handler(number, self._asked_to_end, number)
                stack.callback(loop.remove_signal_handler, number)
            self._record = Record.take(options.out, fresh=options.fresh)
            stack.callback(self._record.close)
            # One thread for each: what is read and what is written have an order.
            self._reading = stack.enter_context(ThreadPoolExecutor(1, "read"))
            self._writing = stack.enter_context(ThreadPoolExecutor(1, "write"))
            processes = ReplicaProcesses(self._record.folder, "", options.threads)
            stack.callback(processes.close)
            self._service = ModelService(
                self._manifest.name, processes, self._note, replicas=options.workers,
                limits=_LIMITS._replace(hang=options.hang), rollout=RolloutLimits(),
            )  # fmt: skip
            stack.callback(self._service.close)
            self._service.offer(self._version)  # replicas load while the data is looked at
            self._plan = plan = await self._in(self._reading, self._make_plan)
            blocks = block_count(len(plan.source), plan.size)
            await self._in(self._writing, self._record.begin, plan.settings, plan.format.head(), blocks)
            done = self._rows_done
            self._tell_resumed(done)
            computing = time.monotonic()
            if len(self._record.done) < blocks:
                await self._until_ready()
                computing = time.monotonic()
                if not self._stop.is_set():
                    await self._compute(computing, done)
            computed, ended = time.monotonic() - computing, time.monotonic
            self._screen.end()
            if len(self._record.done) < blocks:
                await self._in(self._writing, self._record.commit)
                return self._outcome(done, ended() - began, computed, stopped=self._signal)
            self._check_unchanged()
            outcome = self._outcome(done, 0.0, computed)
            await self._in(self._writing, self._record.finish, plan.format.finish)
            digest = await self._in(self._writing, _sha256, options.out)
            return outcome._replace(
                seconds=ended() - began, sha256=digest, bytes=options.out.stat().st_size
            )

    # ------------------------------------------------------------ before

    def _make_plan(self) -> _Plan:
        options, manifest = self._options, self._manifest
        self._identity = _identity(options.data)
        source = open_source(options.data)
        if not len(source):
            raise UsageError(f"--data {options.data} has no rows. Look at the file, or name another one.")
        sample = _sample(source, options.data)
        feeding = feeds(manifest.signature, sample, options.columns)
        bytes_of_row = sum(sample[name].nbytes // len(sample[name]) for feed in feeding for name in feed.columns)
        size = options.batch or block_size(bytes_of_row, batched=manifest.signature.batched)
        columns = layout(manifest, options.top, numbered=options.numbered)
        settings = {
            "model": f"{manifest.name} version {manifest.version}", "model_sha256": _hash_of(manifest),
            "data_sha256": source.fingerprint, "rows": len(source), "batch": size,
            "columns": {feed.spec.name: list(feed.columns) for feed in feeding}, "format": self._format,
            "written": [column.name for column in columns], "threads": options.threads,
            "versions": _versions(self._format), "replace": options.fresh and options.out.exists(),
        }  # fmt: skip
        return _Plan(source, feeding, size, columns, make_format(self._format, columns), settings)

    def _check_unchanged(self) -> None:
        """Was what is read another file in the end? Raises UsageError."""
        if _identity(self._options.data) != self._identity:
            raise UsageError(
                f"--data {self._options.data} was changed while it was read, so rows may be of the one or of the "
                "other. Let nobody write to it, and run the same command with --fresh."
            )

    def _tell_resumed(self, done: int) -> None:
        if self._record.lost:
            self._screen.say(
                f"holdfast: warning: {self._record.lost} blocks in {self._record.folder} are not as they were written; "
                "they are computed again"
            )
        if done:
            self._screen.say(f"holdfast: goes on after {done:,} of {len(self._plan.source):,} rows")

    async def _until_ready(self) -> None:
        """Wait for the replicas. Raises ModelError where there are none."""
        service = self._service
        while not service.ready and not self._stop.is_set():
            if service.refused_versions:
                number, reason = max(service.refused_versions.items())
                raise ModelError(f"Version {number} of {service.name} cannot be used: {reason}.")
            service.changed.clear()
            await self._first([asyncio.ensure_future(service.changed.wait())])

    # ------------------------------------------------------------ computing

    async def _compute(self, began: float, resumed: int) -> None:
        """All blocks that are left, until a signal comes. Raises BadRow, CrewLost, ResourceError, RunError."""
        rows, options = len(self._plan.source), self._options
        done = self._record.done
        window: Window[tuple[list[Piece], list[BadRowFound]]] = Window(
            rows, self._plan.size, done=len(done), most=3 * options.workers + 2
        )
        outputs = Outputs(self._manifest, self._plan.columns, options.top, done[-1].given if done else None)
        tasks: dict[asyncio.Task[tuple[list[Piece], list[BadRowFound]]], Block] = {}
        committed, alive = began, began
        try:
            while not window.over and not self._stop.is_set():
                while (one := window.begin()) is not None:
                    tasks[asyncio.create_task(self._pieces(one.begin, one.end))] = one
                finished = await self._first(tasks, seconds=SERVING.job_look)
                for task in [task for task in tasks if task in finished]:
                    ready = window.finish(tasks.pop(task).number, task.result())
                    for written, (pieces, bad) in ready:
                        await self._in(self._writing, self._write, written, outputs, pieces, bad)
                now = time.monotonic()
                if now - committed > SERVING.commit:
                    committed = now
                    await self._in(self._writing, self._record.commit)
                alive = now if self._service.ready else alive
                if now - alive > SERVING.no_replica:
                    raise CrewLost(
                        f"No replica of {self._service.name} has been ready for {SERVING.no_replica:.0f} s. The last "
                        f"that was heard: {self._last_said or 'nothing'}. What they printed is in "
                        f"{self._record.folder / 'logs'}; run the same command again to go on."
                    )
                told = progress_line(self._rows_done, rows, self._rows_done - resumed, now - began)
                self._screen.progress(told, now - began)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pieces(self, begin: int, end: int) -> tuple[list[Piece], list[BadRowFound]]:
        """What these rows give, and those of them that give nothing. The same for the same rows, whoever computes."""
        several = end - begin > 1
        if self._manifest.signature.batched or not several:
            try:
                return [Piece(begin, await self._one(begin, end))], []
            except _Failed as failed:
                if not several:
                    return [], [BadRowFound(begin, str(failed))]
        middle = (begin + end) // 2
        left, right = await self._pieces(begin, middle), await self._pieces(middle, end)
        return left[0] + right[0], left[1] + right[1]

    async def _one(self, begin: int, end: int) -> dict[str, Array]:
        """These rows as one batch. Raises _Failed."""
        signature = self._manifest.signature
        try:
            given = await self._in(self._reading, self._read, begin, end)
            # Who says how long it will wait is not turned away because others are waiting.
            answer = await self._service.infer(given, end - begin, deadline=time.monotonic() + _FOR_EVER)
            return arrays(signature.outputs, answer.outputs, batched=signature.batched)
        except UnreadableRows as error:
            raise _Failed(str(error)) from None
        except Unanswered as error:
            if error.status == 503:  # nothing is wrong with the rows
                raise RunError(f"{error} Run the same command again to go on.") from None
            raise _Failed(error.detail or str(error)) from None

    def _read(self, begin: int, end: int) -> Sequence[InferInput]:
        plan = self._plan
        rows = plan.source.rows(begin, end, [name for feed in plan.feeds for name in feed.columns])
        return inputs(plan.feeds, rows, batched=self._manifest.signature.batched)

    def _write(self, one: Block, outputs: Outputs, pieces: list[Piece], bad: list[BadRowFound]) -> None:
        """Add a block to the file. Raises BadRow, ResourceError."""
        if bad and not self._options.skip:
            self._record.commit()
            raise BadRow(bad[0].row, bad[0].reason, self._options.out, one.begin)
        for found in bad:
            self._screen.say(f"holdfast: row {found.row} is left out: {found.reason}")
        data = self._plan.format.encode(outputs.columns(pieces))
        self._record.add(data, one.end - one.begin - len(bad), bad, given=outputs.given)

    # ------------------------------------------------------------ small steps

    @property
    def _rows_done(self) -> int:
        """Rows of all blocks that are done."""
        done = len(self._record.done)
        return block(done - 1, len(self._plan.source), self._plan.size).end if done else 0

    def _outcome(self, resumed: int, seconds: float, computing: float, stopped: int = 0) -> Outcome:
        written = sum(one.rows for one in self._record.done)
        return Outcome(
            len(self._plan.source), written, len(self._record.bad), resumed, seconds, computing, stopped=stopped
        )

    def _asked_to_end(self, number: int) -> None:
        self._signal = self._signal or number
        self._stop.set()

    def _note(self, sentence: str) -> None:
        """What happens to replicas. One thing said of many blocks is said once."""
        self._last_said = sentence
        if sentence not in self._said:
            self._said.add(sentence)
            self._screen.say(f"holdfast: {sentence}")

    async def _in(self, thread: ThreadPoolExecutor, act: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(thread, act, *args)

    async def _first(self, waiting: Any, seconds: float | None = None) -> set[asyncio.Future[Any]]:
        """Those of these that are done, once one is, or a signal has come, or the time is over."""
        stop = asyncio.ensure_future(self._stop.wait())
        try:
            done, _ = await asyncio.wait([*waiting, stop], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
        return done


def progress_line(done: int, rows: int, now: int, seconds: float) -> str:
    """How far it is. `now` rows were done in the last `seconds`, since it began or went on.

    >>> progress_line(15_000, 60_000, 15_000, 2.0)
    '15,000 of 60,000 rows (25%)  7.5k rows/s  eta 0:06'
    """
    told = f"{done:,} of {rows:,} rows ({100 * done // max(1, rows)}%)"
    if not now or seconds <= 0:
        return told
    rate = now / seconds
    return f"{told}  {short_number(rate)} rows/s  eta {short_time((rows - done) / rate)}"


def _sample(source: Source, name: str) -> dict[str, Array]:
    """A few rows, to see what columns there are. Raises UsageError."""
    few = min(_SAMPLE, len(source))
    try:
        return source.rows(0, few)
    except UnreadableRows as error:
        reason = error
    for row in range(few):
        try:
            return source.rows(row, row + 1)
        except UnreadableRows:
            continue
    raise UsageError(f"--data {name}: none of its first {few} rows can be read: {reason}. Look at the file.")


def _identity(data: str) -> tuple[int, ...]:
    """What another file of this name, or other bytes in it, change; nothing where it is no file."""
    try:
        found = os.stat(data)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _hash_of(manifest: ModelManifest) -> str:
    """Of everything about a version: its manifest has the hashes of all its files."""
    return hashlib.sha256(msgspec.json.encode(manifest)).hexdigest()


def _versions(written: str) -> dict[str, str]:
    """Of what makes the bits: other versions may compute others."""
    found = {}
    for name in ("torch", "numpy", *(["pyarrow"] if written == "parquet" else [])):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
