"""A worker without torch: it speaks the whole protocol, shows a row on the board, and trains nothing.

What it does is said by the script's arguments, as `name=value` words:

    steps=40 pace=0.01 lanes=4      40 steps of 10 ms each
    raise=3 exit=3 hang=3 die=3     at step 3: raise, sys.exit(7), hang in a unit, kill itself
    first=raise                     fail before the first step
    only=1                          the fault is worker 1's alone
    linger=5                        take 5 s to leave after the end
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import sys
import time
import traceback

from holdfast.config.worker_spec import WorkerSpec
from holdfast.control.protocol.messages import (
    Failed,
    Finished,
    FromWorker,
    Install,
    Leave,
    Leaving,
    Pause,
    Paused,
    Ready,
    Refuse,
    Seeded,
    Stop,
    Welcome,
    decode_to_worker,
    encode,
)
from holdfast.dataplane.memory import board as cells
from holdfast.dataplane.memory.board import Board, board_bytes
from holdfast.dataplane.memory.board_snapshot import read_rows
from holdfast.transport.link import Link


class Worker:
    def __init__(self, spec: WorkerSpec, link: Link) -> None:
        self.spec, self.link = spec, link
        self.said = dict(word.split("=", 1) for word in spec.args)
        self.lanes = spec.lanes or int(self.said.get("lanes", "4"))
        self.steps = int(self.said.get("steps", "20"))
        self.pace = float(self.said.get("pace", "0.01"))
        self.generation = self.step = 0
        self.mine: list[int] = []
        self.leaving = self.stop = False
        self.board: Board | None = None
        self.size = board_bytes(self.lanes, 2 * self.lanes, 1)

    def say(self, message: FromWorker) -> None:
        self.link.send(encode(message))

    def hear(self, seconds: float) -> bool:
        """Take in one message, if one comes in time."""
        poll = select.poll()
        poll.register(self.link.fileno(), select.POLLIN)
        if not poll.poll(seconds * 1000):
            return False
        frame = self.link.recv()
        if frame is None:
            os._exit(1)
        message = decode_to_worker(frame.data)
        if isinstance(message, Welcome):
            self.welcome(message, frame.fds[0])
        elif isinstance(message, Pause):
            self.pause(message.generation)
        elif isinstance(message, Install):
            self.install(message)
        elif isinstance(message, (Leave, Stop, Refuse)):
            sys.exit(0)
        for fd in frame.fds:
            os.close(fd)
        return True

    def welcome(self, message: Welcome, arena: int) -> None:
        if self.board is None:
            memory = memoryview(mmap.mmap(arena, self.size))
            self.board = Board(memory, self.lanes, 2 * self.lanes, 1)
        if message.seed:
            self.board.format()
            self.board.put_plan(self.steps, 1, 32)
            self.say(Seeded(self.spec.worker))

    def pause(self, generation: int) -> None:
        while self.generation < generation:
            self.say(Paused(self.spec.worker, generation, self.step))
            self.hear(0.2)

    def install(self, message: Install) -> None:
        assert self.board is not None
        if self.generation == 0:
            self.board.claim(self.spec.row, self.spec.worker, os.getpid())
            self.step = max((row.step for row in read_rows(self.board.words.cast("B"))), default=0)
        self.generation, self.stop = message.generation, bool(message.stop)
        self.mine = [lane for lane, driver in enumerate(message.drivers) if driver == self.spec.worker]

    def fault(self, name: str) -> bool:
        here = self.said.get(name) == str(self.step) and self.said.get("only") in (None, str(self.spec.worker))
        return here

    def train(self) -> None:
        if self.said.get("first") == "raise":
            raise ValueError("nothing works")
        while self.generation == 0:
            self.say(Ready(self.spec.worker, {}, "golden", "model", self.size, self.lanes))
            self.hear(0.2)
        assert self.board is not None
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "leaving", True))
        while self.step < self.steps and not self.stop:
            for lane in self.mine:
                self.unit(lane)
            self.step += 1
            self.board.put(cells.R_STEP, self.step)
            self.board.publish(0, max(self.step, *self.board.versions()))
            if self.spec.worker == 0 and self.step == 1:
                print("the first step is done")
            if self.leaving:
                self.say(Leaving(self.spec.worker, "SIGTERM"))
            while self.hear(0 if self.mine else self.pace):
                pass

    def unit(self, lane: int) -> None:
        assert self.board is not None
        self.board.put(cells.R_UNIT_STEP, self.step)
        self.board.put(cells.R_UNIT_LANE, lane)
        if self.fault("die"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault("raise"):
            raise ValueError("bad sample")
        if self.fault("exit"):
            sys.exit(7)
        while self.fault("hang"):
            time.sleep(0.05)
        time.sleep(self.pace / max(1, len(self.mine)))
        self.board.put(cells.R_UNIT_LANE, -1)
        self.board.add(cells.R_UNITS, 1)
        self.board.add(cells.R_SAMPLES, 8)
        self.board.put(cells.R_UNIT_NS, int(self.pace / max(1, len(self.mine)) * 1e9))
        self.board.add(cells.R_BUSY_NS, int(self.pace * 1e9))
        self.board.put_loss(1.0 / (1 + self.step))


def main(spec: WorkerSpec, link_fd: int) -> None:
    worker = Worker(spec, Link.from_fd(link_fd))
    try:
        worker.train()
    except Exception as error:
        unit = None if worker.board is None or not worker.generation else (worker.step, worker.mine[0])
        worker.say(
            Failed(
                spec.worker, worker.generation, type(error).__name__, str(error), "fake_worker.py:1",
                traceback.format_exc(), unit, step=worker.step,
            )
        )
        raise
    result = {"steps": worker.step, "epochs": 1, "samples": 32 * worker.step, "weights_sha256": "0" * 64, "loss": 0.5}
    worker.say(Finished(spec.worker, worker.generation, {**result, "lanes": worker.lanes}))
    time.sleep(float(worker.said.get("linger", "0")))
