"""The worker's side of the protocol: what is said again, and what a script cannot swallow."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.config.worker_spec import WorkerSpec
from holdfast.control.protocol import messages as say
from holdfast.core.sync.modes import parse
from holdfast.errors import RunError, ScriptFailed, Stopped
from holdfast.train import control_link, run, worker
from holdfast.train.control_link import ControlLink, LetGo
from holdfast.transport.link import Link


class Coordinator:
    """The other end, spoken for by the test."""

    def __init__(self, link: Link) -> None:
        self.link = link
        link.setblocking(False)

    def send(self, message: say.ToWorker) -> None:
        with open(os.devnull) as arena:
            fds = [arena.fileno()] if isinstance(message, say.Welcome) else []
            assert self.link.send(say.encode(message), fds)

    def heard(self) -> list[say.FromWorker]:
        messages: list[say.FromWorker] = []
        try:
            while (frame := self.link.recv()) is not None:
                messages.append(say.decode_from_worker(frame.data))
        except BlockingIOError:
            pass
        return messages


@pytest.fixture
def pair() -> Iterator[tuple[Coordinator, ControlLink]]:
    before = signal.getsignal(signal.SIGTERM)
    ours, theirs = Link.pair()
    with ours, theirs:
        yield Coordinator(ours), ControlLink(3, theirs)
    signal.signal(signal.SIGTERM, before)


READY = say.Ready(3, {}, "golden", "model", 64)


def test_seeded_is_said_again_when_it_was_not_heard(pair: tuple[Coordinator, ControlLink]) -> None:
    coordinator, steered = pair
    coordinator.send(say.Welcome(3, True))
    _, arena = steered.enlist(READY)
    os.close(arena)
    coordinator.send(say.Welcome(3, True))
    steered.look()
    assert coordinator.heard() == [READY], "while it fills the arena it has nothing to say"
    steered.seeded()
    coordinator.send(say.Welcome(3, True))
    coordinator.send(say.Welcome(3, False))
    steered.look()
    assert coordinator.heard() == [say.Seeded(3), say.Seeded(3)]


def test_leaving_is_said_again_until_it_is_let_go(
    pair: tuple[Coordinator, ControlLink], monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator, steered = pair
    now = 100.0
    monkeypatch.setattr(control_link.time, "monotonic", lambda: now)
    steered.look()
    assert coordinator.heard() == []
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(3):
        steered.look()
    assert coordinator.heard() == [say.Leaving(3, "SIGTERM")]
    now += 1.0
    os.kill(os.getpid(), signal.SIGTERM)
    steered.look()
    steered.look()
    assert coordinator.heard() == [say.Leaving(3, "SIGTERM")]
    coordinator.send(say.Leave(3, "SIGTERM"))
    with pytest.raises(LetGo):
        steered.look()
    now += 1.0
    with pytest.raises(LetGo):
        steered.look()
    assert coordinator.heard() == []


@pytest.mark.parametrize(
    ("message", "kind"),
    [(say.Leave(3, "why"), LetGo), (say.Refuse(3, "why"), RunError), (say.Stop("why"), Stopped)],
)
@pytest.mark.parametrize(
    "act",
    [
        ControlLink.look, lambda it: it.rest(1), lambda it: it.wait(lambda: True),
        lambda it: it.send(say.Finished(3, 1, {})), lambda it: it.seeded(),
    ],
    ids=["look", "rest", "wait", "send", "seeded"],
)  # fmt: skip
def test_who_was_told_to_end_is_told_again(
    pair: tuple[Coordinator, ControlLink], message: say.ToWorker, kind: type[BaseException],
    act: Callable[[ControlLink], None],
) -> None:  # fmt: skip
    coordinator, steered = pair
    coordinator.send(message)
    with pytest.raises(kind):
        steered.look()
    for _ in range(2):
        with pytest.raises(kind, match="why"):
            act(steered)
    assert coordinator.heard() == []


SWALLOWS = """
from holdfast.train import run
try:
    run._enlisted[1].look()
except BaseException:
    print("I go on")
"""


@pytest.mark.parametrize(
    ("message", "status", "said"),
    [
        (say.Leave(3, "scaled down"), None, ""),
        (say.Stop("Hang: worker 1 stands still"), 1, "failed elsewhere. Hang: worker 1 stands still"),
        (say.Refuse(3, "another model"), 1, "another model"),
    ],
)
def test_a_script_that_swallows_its_dismissal_has_not_finished(
    message: say.ToWorker, status: int | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    script = tmp_path / "train.py"
    script.write_text(SWALLOWS)
    for name in ("argv", "path"):
        monkeypatch.setattr(sys, name, list(getattr(sys, name)))
    monkeypatch.setattr(run, "_enlisted", None)
    before = signal.getsignal(signal.SIGTERM)
    ours, theirs = Link.pair()
    coordinator = Coordinator(ours)
    coordinator.send(message)
    spec = WorkerSpec(worker=3, row=0, script=str(script), args=(), dir=str(tmp_path))
    ended: object = None
    with ours:
        try:
            worker.main(spec, theirs.detach())
        except SystemExit as end:
            ended = end.code
        finally:
            signal.signal(signal.SIGTERM, before)
        assert not any(isinstance(heard, say.Finished) for heard in coordinator.heard())
    assert ended == status
    out, err = capsys.readouterr()
    assert out == "I go on\n" and said in err


@pytest.mark.parametrize(
    ("relaxed", "advice"),
    [
        (None, "or leave the loop with `break` on run.step."),
        (
            object(),
            "or end the run from outside (Ctrl-C); with sync = async there is no step at which all workers could "
            "leave the loop. With --sync exact `break` on run.step does it.",
        ),
    ],
)  # fmt: skip
def test_sys_exit_in_a_unit_is_answered_with_what_works_in_this_mode(
    relaxed: object, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = SimpleNamespace(relaxed=relaxed, mode=parse("async"))
    training = SimpleNamespace(_bound=bound, bound=bound)
    monkeypatch.setattr(run, "_current", SimpleNamespace(past=None, unit=(5, 0, []), step=5, _training=training))
    with pytest.raises(ScriptFailed) as caught:
        worker._left(SystemExit(0))
    assert str(caught.value) == (
        "The script called sys.exit(0) in the middle of step 5. Let every worker reach the script's end, " + advice
    )
