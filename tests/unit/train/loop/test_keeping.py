"""What a script keeps: two copies in the arena, nothing pickled, and what cannot be stored is named."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Mapping
from typing import Any

import numpy
import pytest
import torch
from torch import nn, optim

from holdfast.dataplane.memory.arena import Arena, Sections, grow
from holdfast.errors import UsageError
from holdfast.train.loop.keeping import Keeping
from tests.unit.train.problems import loader_of, loss_of, net, plain, points


class Thing:
    """Something with a state."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.state = state


def keeping(*things: Any, **values: Any) -> Keeping:
    kept, sections = Keeping(), Sections()
    kept.add(things, values)
    sections.add("kept", kept.nbytes())
    kept.attach(Arena(sections))
    return kept


STATE = {
    "numbers": [1, 2.5, None, True], "pair": (1, ("a", b"b")), 7: {"deep": torch.arange(5)},
    "half": torch.ones(3, dtype=torch.bfloat16), "scalar": torch.tensor(3.0), "none": torch.empty(0, 4),
    "flags": torch.tensor([True, False]), "counted": numpy.int64(4),
}  # fmt: skip


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return type(one) is type(other) and all(map(same, one, other))
    return bool(one == other)


def test_what_was_written_comes_back() -> None:
    thing, linear = Thing(dict(STATE)), nn.Linear(3, 2)
    kept = keeping(thing, linear, best=0.5, seen=[1, 2], pair=(3, 4))
    kept.write(11, 5)
    weights = linear.weight.detach().clone()
    with torch.no_grad():
        linear.weight.zero_()
    thing.state, kept.values.best, kept.values.seen = {}, 9.0, []
    assert not kept.load(12)
    assert kept.load(11)
    assert same(thing.state, {**STATE, "counted": 4})
    assert torch.equal(linear.weight, weights)
    assert (kept.values.best, kept.values.seen, kept.values.pair) == (0.5, [1, 2], (3, 4))


def test_a_copy_takes_the_place_of_the_older_one_only() -> None:
    kept = keeping(Thing({"x": 1}), n=0)
    for tag in (1, 2, 3):
        kept.values.n = tag
        kept.write(tag, 10 * tag)
    assert kept.newest() == 3 and kept.tags(30) == {2, 3} and kept.tags(29) == {2}
    assert not kept.load(1)
    assert kept.load(2) and kept.values.n == 2


def test_what_has_no_room_any_more_is_said() -> None:
    thing = Thing({"x": torch.ones(4)})
    kept = keeping(thing)
    kept.write(1, 0)
    kept.write(2, 1)
    thing.state = {"x": torch.ones(4), "y": torch.ones(1 << 20)}  # more than there is room for
    text = (
        r"What run\.keep holds has grown to \d+ bytes, and 262144 were set aside when training began; most of all "
        r"Thing \(0\) in run\.keep, from \d+ to \d+\. Keep what has about its final size then, or less of it\."
    )
    with pytest.raises(UsageError, match=text):
        kept.write(3, 2)
    assert kept.tags(9) == {1, 2}, "what is there stays"


def test_what_grows_is_told_once_before_there_is_no_room(recwarn: pytest.WarningsRecorder) -> None:
    kept = keeping(Thing({"x": torch.ones(4)}), history=[], told="", best=0.0)
    for tag in range(1, 21):
        kept.values.history += [float(tag)] * 1000
        kept.write(tag, tag)
        assert len(recwarn) == (tag > 14), tag
    (warning,) = recwarn
    assert str(warning.message) == (
        "What run.keep holds has grown to 135211 bytes, of the 262144 that were set aside when training began; most of "
        "all run.keep(history=...), from 1 to 135003. A run ends where it needs more. Keep what has about its final "
        "size then, or less of it: the last values of a list, say, and the others in a file of run.lead."
    )
    assert kept.load(20) and len(kept.values.history) == 20_000


def test_a_large_module_that_does_not_grow_leaves_room_for_what_does(recwarn: pytest.WarningsRecorder) -> None:
    kept = keeping(nn.Linear(512, 512), history=[0.0] * 10_000)
    kept.values.history += [1.0] * 4_000
    kept.write(1, 0)
    assert not recwarn
    kept.values.history += [1.0] * 100_000
    kept.write(2, 1)
    assert len(recwarn) == 1


def test_an_object_without_a_state_keeps_nothing_and_that_is_said(join) -> None:
    class Metric(nn.Module):
        """As torchmetrics has them: what it counts is not in its state_dict."""

        seen = 0

    run, model = join(lanes=2), net()
    run.prepare(model, optim.SGD(model.parameters(), lr=0.1), loader_of(points()))
    text = (
        r"run\.keep got a Metric whose state_dict\(\) is empty, so nothing of it is kept: a worker that comes late has "
        r"it as it was made\. Let its state_dict\(\) hold what changes \(torchmetrics: metric\.persistent\(True\)\), "
        r"or keep values by name: run\.keep\(count=0\)\."
    )
    with pytest.warns(UserWarning, match=text) as told:
        run.keep(Metric())
    assert [warning.filename for warning in told] == [__file__], "the line of the script"


def test_a_worker_writes_alone_and_what_is_newer_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of a loop one worker writes what it ended with, and another one what the next epoch begins with."""
    made, memory = Sections(), os.memfd_create("kept")
    made.add("before", 100)
    made.add("kept", 2 << 16)
    grow(memory, made.size)

    def one(value: float) -> Keeping:
        kept = Keeping()
        kept.add([], {"value": value, "many": torch.full((100,), value)})
        kept.attach(Arena(made, fd=memory))
        return kept

    (begun, begins), mine = os.pipe(), one(2.0)
    mine.write(2, 2)
    child = os.fork()
    if not child:
        monkeypatch.setattr(torch.Tensor, "copy_", lambda *_: (os.write(begins, b"."), signal.pause()))
        one(3.0).write(3, 3)
        os._exit(1)
    try:
        assert os.read(begun, 1) == b".", "it is in the middle of that"
        with pytest.raises(BlockingIOError):
            fcntl.lockf(memory, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, made.spans["kept"][0])
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert mine.tags(9) == {2}
    one(5.0).write(5, 5)
    one(4.0).write(4, 4)
    assert mine.tags(9) == {2, 5}, "that came too late"
    assert mine.load(5) and mine.values.value == 5.0 and mine.values.many.tolist() == [5.0] * 100
    for descriptor in (memory, begun, begins):
        os.close(descriptor)


def test_a_copy_that_was_not_finished_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = keeping(Thing({"x": torch.ones(4)}))
    kept.write(1, 0)
    kept.write(2, 1)

    def dies(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(torch.Tensor, "copy_", dies)
    with pytest.raises(KeyboardInterrupt):
        kept.write(3, 2)
    assert kept.tags(9) == {2}, "the older one was being written over"


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"a": object()}, r"object 0 \(Thing\)\['a'\]: a object"),
        ({"a": [1, {2}]}, r"object 0 \(Thing\)\['a'\]\[1\]: a set"),
        ({"a": torch.ones(2).to_sparse()}, r"object 0 \(Thing\)\['a'\]: a tensor that is torch\.sparse_coo on cpu"),
    ],
)
def test_what_cannot_be_stored_is_named_at_once(value: Any, where: str) -> None:
    with pytest.raises(UsageError, match=r"run\.keep cannot store " + where):
        Keeping().add([Thing(value)], {})


def test_what_has_no_state_is_refused() -> None:
    with pytest.raises(UsageError, match=r"run\.keep got a int, which has no state_dict and load_state_dict"):
        Keeping().add([3], {})  # type: ignore[list-item]


def test_names_are_known() -> None:
    kept = keeping(best=1.0).values
    assert repr(kept) == "Kept(best=1.0)"
    for act in (lambda: kept.bets, lambda: setattr(kept, "bets", 2.0)):
        with pytest.raises(AttributeError, match=r"nothing is kept under the name 'bets': run\.keep\(bets=\.\.\.\)"):
            act()


def test_in_a_script(join) -> None:
    run, model = join(lanes=2), net()
    model, optimizer, loader = run.prepare(model, optim.SGD(model.parameters(), lr=0.1), loader_of(points()))
    thing, kept = run.keep(Thing({"n": 0}), steps=0)
    assert run.keep(Thing({"a": 1})).state == {"a": 1}
    for step in run.steps(loader):
        for batch in step:
            loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        kept.steps += 1
        thing.state["n"] += 2
    assert (kept.steps, thing.state) == (4, {"n": 8})
    with pytest.raises(UsageError, match=r"run\.keep was called after training had begun"):
        run.keep(more=1)
    for batch in loader:
        plain(model, optimizer, [batch])
        kept.steps += 1
    assert kept.steps == 8
