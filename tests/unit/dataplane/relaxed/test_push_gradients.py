"""Pushes in their slots: delay compensation against its formula, and where it must not change a bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from holdfast.core.sync.modes import parse
from holdfast.dataplane.memory.arena import Arena
from holdfast.dataplane.memory.sections import lay_out_mode
from holdfast.dataplane.memory.space import Space
from holdfast.dataplane.relaxed.push_gradients import Drift, PushGradients, compensated

LANES, FACTOR = 3, 0.3
MODE = parse("bounded:1")


class Case:
    """A model of two slices, and a push of every lane, each computed from other parameters."""

    def __init__(self) -> None:
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(1000, 400), nn.Linear(400, 3))
        self.space = Space([model], torch.optim.SGD(model.parameters(), lr=0.1))
        sections = lay_out_mode(self.space.room(LANES, reads=True), MODE)
        self.pushed = PushGradients(self.space, Arena(sections), LANES)
        self.now = self.flat()
        self.gradients, self.then = [], []
        for lane in range(LANES):
            flat = self.flat()
            self.pushed.fill(lane, self.space.views(flat))
            self.gradients.append(flat)
            self.then.append(self.flat())
            self.pushed.keep(lane, self.then[-1])

    def flat(self) -> dict[str, Tensor]:
        return {name: torch.randn(total) for name, total in self.space.layout.totals.items()}

    def total(self, weights: list[float], drift: Drift | None) -> Tensor:
        out = torch.zeros(sum(self.space.layout.totals.values()))
        for piece in self.space.layout.slices:
            self.pushed.total(piece, range(LANES), dict(enumerate(weights)), out[piece.start : piece.stop], drift)
        return out


def test_the_arithmetic() -> None:
    source = torch.Generator().manual_seed(2)
    gradient, now, then = (torch.randn(1000, dtype=torch.float64, generator=source) for _ in range(3))
    found = compensated(gradient, now, then, FACTOR, torch.empty(1000, dtype=torch.float64))
    assert torch.allclose(found, gradient + FACTOR * gradient * gradient * (now - then), rtol=0, atol=1e-13)


@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0], [1.0, 0.5, 4.0]])
@pytest.mark.parametrize("stale", [{0}, {1, 2}, {0, 1, 2}])
def test_stale_pushes_are_moved_to_where_the_parameters_are_now(stale: set[int], weights: list[float]) -> None:
    case = Case()
    assert len(case.space.layout.slices) > 1
    found = case.total(weights, Drift(frozenset(stale), FACTOR, case.now))
    expected = torch.zeros_like(found)
    for lane, weight in enumerate(weights):
        gradient, then, now = (flat["float32"] for flat in (case.gradients[lane], case.then[lane], case.now))
        moved = gradient + FACTOR * gradient * gradient * (now - then) if lane in stale else gradient
        expected += weight * moved
    inside = case.space.views({"float32": found}), case.space.views({"float32": expected / sum(weights)})
    for one, other in zip(*inside, strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0], [1.0, 0.5, 4.0]])
def test_fresh_pushes_are_summed_to_the_same_bits_as_without_compensation(weights: list[float]) -> None:
    case = Case()
    plain = case.total(weights, None)
    assert torch.equal(case.total(weights, Drift(frozenset(), FACTOR, case.now)), plain)
    still = Drift(frozenset({0}), FACTOR, case.then[0])  # said to be stale, but nothing has moved
    assert torch.equal(case.total(weights, still), plain)


def test_gradients_and_kept_parameters_are_not_written_to() -> None:
    case = Case()
    for _ in range(2):
        found = case.total([1.0, 2.0, 3.0], Drift(frozenset({0, 2}), FACTOR, case.now))
    assert torch.equal(found, case.total([1.0, 2.0, 3.0], Drift(frozenset({0, 2}), FACTOR, case.now)))


def test_copies_of_parameters_are_laid_out_where_they_are_asked_for_only() -> None:
    space, sizes = Case().space, []
    for reads in (False, True):
        sections = lay_out_mode(space.room(LANES, reads=reads), MODE)
        sizes.append(sections.size)
        assert any(name.startswith("read/") for name in sections.spans) == reads
    parameters = 4 * sum(space.layout.totals.values())
    assert LANES * parameters <= sizes[1] - sizes[0] <= LANES * (parameters + 4096)
