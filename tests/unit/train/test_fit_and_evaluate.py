"""`hf.fit` and `run.evaluate`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset

import holdfast as hf
from holdfast.errors import ConfigError, UsageError
from holdfast.quantities import Duration
from holdfast.train import evaluation
from tests.unit.train.problems import assert_close, batches_of, loader_of, loss_of, net, plain, points

EVALUATION = {"batch_size": 7}


def fit(model: nn.Module, **options: Any) -> Any:
    optimizer = optim.SGD(model.parameters(), lr=0.05)
    return hf.fit(model, loader_of(points()), loss=nn.functional.mse_loss, optimizer=optimizer, **options)


def held_out() -> DataLoader[Any]:
    return DataLoader(points(30), **EVALUATION)


def test_fit_trains_as_a_loop_does(join) -> None:
    fitted, expected = fit(net(), epochs=2), net()
    plain(expected, optim.SGD(expected.parameters(), lr=0.05), batches_of(points()))
    assert_close(fitted.model, expected, rtol=1e-3, atol=1e-5)
    assert (fitted.reason, [e.epoch for e in fitted.epochs], fitted.run.step) == ("all epochs are done", [0, 1], 8)
    assert fitted.metrics == {}


def test_metrics_and_callbacks(join) -> None:
    seen: list[Any] = []
    far = {"far": lambda prediction, target: (prediction - target).abs().max()}
    fitted = fit(net(), epochs=2, evaluate=held_out(), metrics=far, callbacks=[seen.append])
    assert seen == fitted.epochs and set(fitted.metrics) == {"loss", "far"}
    assert fitted.epochs[1].loss != fitted.epochs[0].loss
    with torch.no_grad():
        rows = [(loss_of(fitted.model, batch).item(), len(batch[0])) for batch in held_out()]
    assert fitted.metrics["loss"] == pytest.approx(sum(v * n for v, n in rows) / 30)


def test_accuracy_is_known_by_name(join) -> None:
    model = net()
    data = [(x, y.argmax()) for x, y in points()]
    fitted = hf.fit(
        model, loader_of(data), loss=nn.functional.cross_entropy, optimizer=optim.Adam(model.parameters(), lr=0.05),
        epochs=30, evaluate=DataLoader(data, batch_size=16), metrics=["accuracy"], until="accuracy >= 0.8",
    )  # fmt: skip
    assert fitted.metrics["accuracy"] >= 0.8 and fitted.reason.startswith("accuracy >= 0.8 is reached (")
    assert all(e.metrics["accuracy"] < 0.8 for e in fitted.epochs[:-1]) and len(fitted.epochs) < 30


@pytest.mark.parametrize("limit", ["0s", 0.0, Duration(0)])
def test_time_limit(join, limit: Any) -> None:
    fitted = fit(net(), epochs=5, time_limit=limit)
    assert (len(fitted.epochs), fitted.reason) == (1, "the time limit of 0s is over")


def test_clip_norm_and_schedulers(join) -> None:
    model = net()
    optimizer = optim.SGD(model.parameters(), lr=0.05)
    plateau = optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=9)
    scheduler = optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    fitted = hf.fit(
        model, loader_of(points()), loss=nn.functional.mse_loss, optimizer=optimizer, epochs=2, clip_norm=0.1,
        schedulers=[scheduler, plateau], evaluate=held_out(),
    )  # fmt: skip
    assert optimizer.param_groups[0]["lr"] == 0.05 * 0.25 and fitted.run.grad_norm > 0.1
    moved = sum((a - b).square().sum() for a, b in zip(model.parameters(), net().parameters(), strict=True)).sqrt()
    assert 0 < moved < 0.05 * 0.1 * 8 + 1e-6, "eight steps of at most lr * clip_norm"


def test_fit_in_a_run_of_ones_own(join) -> None:
    run = join(lanes=2, seed=9)
    assert fit(net(), run=run).run is run


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"metric": 1}, r"metric = 1: no option of fit \(set by fit\). Did you mean metrics?"),
        ({"zzz": 1}, r"zzz = 1: no option of fit \(set by fit\). There are evaluate, metrics, until"),
        ({"metrics": ["f1"]}, "metrics = f1: not one of accuracy"),
        ({"until": "accuracy 0.9"}, "until = 'accuracy 0.9': not of the form 'metric >= number'"),
        ({"until": "loss < 1"}, "until = 'loss < 1': names 'loss'; measured is nothing, because evaluate is missing"),
        ({"until": "accuracy > 1", "evaluate": held_out()}, "names 'accuracy'; measured is loss"),
    ],
)
def test_options_that_cannot_be(join, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        fit(net(), **options)


def test_a_plateau_without_an_evaluation_is_refused_at_once(join) -> None:
    model = net()
    optimizer = optim.SGD(model.parameters(), lr=0.05)
    plateau = optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    with pytest.raises(ConfigError, match="schedulers = ReduceLROnPlateau: needs the loss of an evaluation"):
        hf.fit(model, loader_of(points()), loss=loss_of, optimizer=optimizer, schedulers=[plateau])


# ---------------------------------------------------------------- evaluate


def ready(run: hf.Run) -> nn.Module:
    model = net()
    run.prepare(model, optim.SGD(model.parameters(), lr=0.05), loader_of(points()))
    return model


@pytest.mark.parametrize("rows", [4096, 2])
@pytest.mark.parametrize("lanes", [1, 3])
def test_evaluate_equals_a_plain_loop(join, monkeypatch: pytest.MonkeyPatch, rows: int, lanes: int) -> None:
    """Also where there are more batches than the table has rows."""
    monkeypatch.setattr(evaluation, "ROWS", rows)
    run = join(lanes=lanes)
    model = ready(run)

    def measure(x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        assert not torch.is_grad_enabled()
        return {"z": loss_of(model, (x, y)), "a": float(x.mean())}

    with torch.no_grad():
        plainly = [(measure(*batch), len(batch[0])) for batch in held_out()]
    result = run.evaluate(measure, held_out())
    assert list(result) == ["a", "z"]
    for name, value in result.items():
        assert value == pytest.approx(sum(float(v[name]) * n for v, n in plainly) / 30)
    assert run.evaluate(measure, held_out()) == result


class Seen(Dataset[Any]):
    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.tensor(float(index)), "noise": torch.rand(())}


def test_batches_that_are_no_tuples_and_random_transforms(join) -> None:
    run = join()
    ready(run)

    def measure(batch: dict[str, torch.Tensor]) -> dict[str, Any]:
        return {"x": batch["x"].mean(), "noise": batch["noise"].mean(), "drop": torch.rand(())}

    first = run.evaluate(measure, DataLoader(Seen(), batch_size=4))
    assert first["x"] == 4.0
    assert run.evaluate(measure, DataLoader(Seen(), batch_size=4)) == first, "the same random numbers every time"
    assert run.evaluate(measure, DataLoader(Seen(), batch_size=4, num_workers=2)) == first


def test_an_evaluation_starts_its_fetching_processes_once(join, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.data import batches

    started: list[int] = []
    original = batches._Stream.__init__
    monkeypatch.setattr(batches._Stream, "__init__", lambda self, *a: (started.append(1), original(self, *a))[1])
    run = join()
    ready(run)
    run.evaluate(lambda batch: {"x": batch["x"].mean()}, DataLoader(Seen(), batch_size=2, num_workers=1))
    assert started == [1]


def test_agree(join) -> None:
    run = join()
    ready(run)
    assert run.agree(0.1) == 0.1


@pytest.mark.parametrize(
    ("measure", "text"),
    [
        (lambda batch: 3.0, "measure returned float instead of a dict of means over its batch. Return for example"),
        (lambda batch: {}, "measure returned dict instead of a dict of means"),
        (lambda batch: {str(i): 0.0 for i in range(31)}, "measure returned 31 numbers. Return at most 30, with short"),
        (
            lambda batch: {"a": 1.0} if 0.0 in batch["x"] else {"b": 1.0},
            "measure returned b for one batch and a for another. Return the same names for every batch",
        ),
    ],
)
def test_what_measure_must_not_return(join, measure: Any, text: str) -> None:
    run = join()
    ready(run)
    with pytest.raises(UsageError, match=text):
        run.evaluate(measure, DataLoader(Seen(), batch_size=4))


def test_a_prepared_loader_is_refused(join) -> None:
    run, model = join(), net()
    _, _, loader = run.prepare(model, optim.SGD(model.parameters(), lr=0.05), loader_of(points()))
    with pytest.raises(UsageError, match=r"run.evaluate got a prepared loader. Hand it an ordinary DataLoader"):
        run.evaluate(lambda x, y: {"loss": 0.0}, loader)
