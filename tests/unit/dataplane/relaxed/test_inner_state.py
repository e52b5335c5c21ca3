"""What lanes' own optimizers keep: where it lies, and what the owners make of it when local steps are over."""

from __future__ import annotations

import os
import threading

import pytest
import torch

from holdfast.core.sync.modes import parse
from holdfast.dataplane.memory import board as cells
from holdfast.dataplane.memory.sections import lay_out_mode, passing
from holdfast.dataplane.relaxed.inner_state import merge
from holdfast.dataplane.relaxed.pushes import Pushes
from holdfast.dataplane.wire.state_transfer import fetch, serve_mirror
from holdfast.transport.stream import PlainStream
from tests.unit.dataplane.members import LANES
from tests.unit.dataplane.memories import Stepped, inner_of, make_a_round, parameters_of, state_of

# ---------------------------------------------------------------- the mean


def bytes_of(values: torch.Tensor) -> memoryview:
    return memoryview(bytearray(values.view(torch.uint8).numpy().tobytes()))


def merged(kind: torch.dtype, states: list[torch.Tensor], ready: list[bytes], pieces: list[tuple[str, int, int]]):
    """(the owners' numbers, their flags, their counts)."""
    space = str(kind).removeprefix("torch.")
    names = {f"state/mean/{space}": space, f"scalar/step/{space}": "float32"}
    lanes = [
        {
            f"state/mean/{space}": bytes_of(state), "ready": memoryview(flags),
            f"scalar/step/{space}": bytes_of(torch.full((len(pieces),), 1.0 + n)),
        }
        for n, (state, flags) in enumerate(zip(states, ready, strict=True))
    ]  # fmt: skip
    owners = {name: memoryview(bytearray(len(data))) for name, data in lanes[0].items()}
    merge(lanes, owners, names, pieces)
    numbers = torch.frombuffer(owners[f"state/mean/{space}"], dtype=kind)
    steps = torch.frombuffer(owners[f"scalar/step/{space}"], dtype=torch.float32)
    return numbers, bytes(owners["ready"]), steps.tolist()


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_the_owners_go_on_with_the_mean_of_all_lanes(kind: torch.dtype) -> None:
    source = torch.Generator().manual_seed(1)
    states = [(torch.randn(40, generator=source) * 3).to(kind) for _ in range(3)]
    space = str(kind).removeprefix("torch.")
    found, ready, steps = merged(kind, states, [b"\1\1"] * 3, [(space, 0, 25), (space, 25, 40)])
    wide = torch.promote_types(kind, torch.float32)
    wanted = ((states[0].to(wide) + states[1].to(wide) + states[2].to(wide)) / 3).to(kind)
    assert torch.equal(found, wanted), "in the order of lanes, and rounded once"
    assert (ready, steps) == (b"\1\1", [1.0, 1.0]), "counts of steps are the first lane's"


def test_numbers_that_are_not_finite_stay_so_in_bfloat16() -> None:
    state = torch.tensor([float("nan"), float("inf"), 3.3e38, 1.0]).to(torch.bfloat16)
    found, _, _ = merged(torch.bfloat16, [state, state], [b"\1", b"\1"], [("bfloat16", 0, 4)])
    assert found.isnan().tolist() == [True, False, False, False] and found[1:3].isinf().all() and found[3] == 1.0


def test_a_lane_without_a_state_does_not_count() -> None:
    """It never had a gradient for this parameter: its zeros are no state."""
    states = [torch.zeros(6), torch.full((6,), 4.0), torch.full((6,), 2.0)]
    pieces = [("float32", 0, 2), ("float32", 2, 4), ("float32", 4, 6)]
    found, ready, steps = merged(torch.float32, states, [b"\0\0\1", b"\1\0\1", b"\1\0\1"], pieces)
    assert found.tolist() == [3.0, 3.0, 0.0, 0.0, 2.0, 2.0]
    assert (ready, steps) == (b"\1\0\1", [2.0, 0.0, 1.0])


def test_whole_numbers_are_the_first_lanes() -> None:
    found, _, _ = merged(torch.int32, [torch.tensor([3, 4]).int(), torch.tensor([9, 9]).int()], [b"\1"] * 2,
                         [("int32", 0, 2)])  # fmt: skip
    assert found.tolist() == [3, 4]


# ---------------------------------------------------------------- what a host does with it


def test_local_steps_begin_with_the_owners_state_and_copy_nothing() -> None:
    ground = Stepped()
    before, blocks = ground.host_memory.view(), os.fstat(ground.fd).st_blocks
    assert before is not None
    state, parameters = state_of(before), parameters_of(before)
    view = ground.turn(1, "local:4", 1)
    assert view.manifest.rounds and inner_of(view).since == 1
    for lane in range(LANES):
        assert {name: bytes(data) for name, data in inner_of(view).at(lane, 1).items()} == state
    assert parameters_of(view) == parameters and any(any(data) for data in state.values())
    assert not any(view.section("outer/ready")), "the outer optimizer begins anew"
    assert os.fstat(ground.fd).st_blocks < blocks + 100
    sections = lay_out_mode(ground.worker.room, parse("local:4"))
    laid = {
        n: (at - len(ground.map), size) for n, (at, size) in view.manifest.sections.items() if passing(n)
    }
    assert laid == sections.spans, "a worker, which knows the model, lays it out in the same way"


def test_when_they_are_over_the_owners_have_the_mean_and_the_memory_is_given_back() -> None:
    ground = Stepped()
    first, blocks = ground.host_memory.view(), os.fstat(ground.fd).st_blocks
    assert first is not None
    state, parameters = state_of(first), parameters_of(first)
    view = ground.turn(1, "local:4", 1)
    make_a_round(view, 1)
    after = ground.turn(2, "exact", 2)
    for name, data in state_of(after).items():
        if name.startswith("state/"):
            was, now = (torch.frombuffer(bytearray(one), dtype=torch.float32) for one in (state[name], data))
            assert torch.equal(now, (was + was * 2.0 + was * 3.0 + was * 4.0) / 4.0), name
        else:
            assert data == state[name], name
    assert parameters_of(after) == parameters and not after.manifest.rounds
    assert os.fstat(ground.fd).st_blocks <= blocks


def test_without_a_round_the_state_is_as_it_was() -> None:
    ground = Stepped()
    first = ground.host_memory.view()
    assert first is not None
    state = state_of(first)
    ground.turn(1, "local:4", 1)
    assert state_of(ground.turn(2, "bounded:2", 1)) == state


def test_who_mirrors_another_host_has_no_lanes_to_take_the_mean_of() -> None:
    ground = Stepped()
    view = ground.turn(1, "local:4", 1)
    state = state_of(view)
    make_a_round(view, 1)
    view.board.words[cells.H_MIRROR] = 1
    assert state_of(ground.turn(2, "exact", 2)) == state


def test_rounds_of_another_length_go_on_with_what_lanes_and_owners_have() -> None:
    ground = Stepped()
    view = ground.turn(1, "local:4", 1)
    make_a_round(view, 1)
    view.section("outer/ready")[0] = 1
    Pushes(view.section("pushes"), LANES).begin(3, 9, 1, rounds=True)
    kept = [{name: bytes(data) for name, data in inner_of(view).at(lane, 2).items()} for lane in range(LANES)]
    view = ground.turn(2, "local:9", 2)
    assert [{n: bytes(data) for n, data in inner_of(view).at(lane, 2).items()} for lane in range(LANES)] == kept
    assert view.section("outer/ready")[0] == 1 and inner_of(view).since == 1
    told = Pushes(view.section("pushes"), LANES).told(2)
    assert told is not None and (told.op, told.base, told.pushed) == (0, 20, [0] * LANES)
    make_a_round(view, 2)
    assert not ground.turn(3, "exact", 3).manifest.rounds


# ---------------------------------------------------------------- other hosts


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_mirror_gets_what_the_next_round_of_its_lanes_begins_with(rounds: int) -> None:
    """Before the first round is over that is the owners' state; later, it need not come."""
    primary, other = Stepped(), Stepped()
    holds = [ground.turn(1, "local:4", 1) for ground in (primary, other)]
    for name in holds[1].manifest.owners():
        holds[1].section(name)[:] = bytes(holds[1].manifest.sections[name][1])
    if rounds:
        make_a_round(holds[0], 1)
    ours, theirs = PlainStream.pair()
    serving = threading.Thread(target=serve_mirror, args=(holds[0], ours, 5, lambda: False, (1, 2)))
    serving.start()
    got = fetch(holds[1], theirs, 5, (1, 2))
    serving.join()
    ours.close()
    theirs.close()
    assert got.version == 1 + rounds and inner_of(holds[1]).since == 1
    for lane in (1, 2):
        here, there = ({n: bytes(d) for n, d in inner_of(view).at(lane, got.version).items()} for view in holds)
        assert here == there
    came = any(any(data) for data in state_of(holds[1]).values())
    assert came == (not rounds)
