"""Several trainings in one script, as in cross-validation: each joins anew when the one before was closed."""

from __future__ import annotations

import pytest
from torch import nn, optim
from torch.utils.data import Subset

from holdfast.errors import UsageError
from tests.unit.train.problems import loader_of, loss_of, net, points


def fold(join, number: int) -> str:
    run, model = join(lanes=2, seed=3), net()
    chosen = Subset(points(), [sample for sample in range(48) if sample % 4 != number])
    optimizer = optim.SGD(model.parameters(), lr=0.05)
    schedule = optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    model, optimizer, loader = run.prepare(model, optimizer, loader_of(chosen))
    kept = run.keep(turns=0)
    for _ in run.epochs(2):
        for step in run.steps(loader):
            for batch in step:
                loss_of(model, batch).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            kept.turns += 1
        schedule.step()
    held_out = loader_of(Subset(points(), range(number, 48, 4)), shuffle=False)
    run.evaluate(lambda x, y: {"loss": loss_of(model, (x, y))}, held_out)
    assert run.step == kept.turns == 6 and optimizer.param_groups[0]["lr"] == pytest.approx(0.0125)
    digest = run.weights_sha256()
    run.close()
    return digest


def test_each_fold_is_a_training_of_its_own(join) -> None:
    together = [fold(join, number) for number in range(4)]
    assert len(set(together)) == 4
    assert [fold(join, number) for number in reversed(range(4))] == together[::-1]


def test_a_run_has_to_be_closed_first(join) -> None:
    join()
    with pytest.raises(UsageError, match=r"hf\.join\(\) was called twice in one process\. Keep the run it returned"):
        join()
