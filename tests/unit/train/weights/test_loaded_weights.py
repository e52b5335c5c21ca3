"""Weights that models take over by name, and files that scripts save."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn, optim
from torch.utils.data import DataLoader

import holdfast as hf
from holdfast.checkpoint.forms.weights import TensorKind, Weights, open_weights
from holdfast.errors import NoWeights, OtherModel, ResourceError, UsageError
from holdfast.train.weights.final_weights import save_weights
from holdfast.train.weights.loaded_weights import Loaded, named_tensors, take_over, tell
from tests.unit.train.problems import loader_of, loss_of, net, points, turn


class Tied(nn.Module):
    """One tensor with two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2, bias=False)
        self.last = nn.Linear(2, 2, bias=False)
        self.last.weight = self.first.weight


def of(path: Path, *models: nn.Module) -> Weights:
    """The weights of these models, out of a file."""
    save_weights(path / "w.safetensors", models)
    return open_weights(path / "w.safetensors")


def filled(model: nn.Module, value: float) -> nn.Module:
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.fill_(value)
    return model


def test_all_of_several_models(tmp_path: Path) -> None:
    models = [nn.Linear(2, 2), nn.BatchNorm1d(3)]
    weights = of(tmp_path, *(filled(model, 3) for model in models))
    assert set(weights.kinds) == {
        "0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked",
    }  # fmt: skip
    others = [nn.Linear(2, 2), nn.BatchNorm1d(3)]
    loaded = take_over(others, weights)
    assert loaded == Loaded()
    assert all(bool((tensor == 3).all()) for _, tensor in named_tensors(others))
    assert tell(loaded, others, weights) == [
        f"weights: 7 of the 7 tensors of the models are those of {tmp_path / 'w.safetensors'}"
    ]


def test_what_does_not_fit_is_told_one_by_one(tmp_path: Path) -> None:
    def model(hidden: int, last: str) -> nn.Module:
        return nn.ModuleDict({"in": nn.Linear(2, 3), "mid": nn.Linear(3, hidden), last: nn.Linear(1, 1, bias=False)})

    weights, ours = of(tmp_path, filled(model(4, "old"), 1)), filled(model(5, "new"), 2)
    ours["in"].bias.data = ours["in"].bias.data.double()
    loaded = take_over([ours], weights)
    assert loaded == Loaded(("new.weight",), ("old.weight",), ("in.bias", "mid.weight", "mid.bias"))
    assert loaded.missing == ("new.weight",)
    assert [float(tensor.detach().flatten()[0]) for _, tensor in named_tensors([ours])] == [1, 2, 2, 2, 2]
    assert tell(loaded, [ours], weights)[1:] == [
        "weights: new.weight is not in the file; it stays as the script has made it",
        "weights: in.bias is float64 [3] here and float32 [3] in the file; it stays as the script has made it",
        "weights: mid.weight is float32 [5, 3] here and float32 [4, 3] in the file; it stays as the script has made it",
        "weights: mid.bias is float32 [5] here and float32 [4] in the file; it stays as the script has made it",
        "weights: old.weight of the file is not in the models",
    ]


def test_the_first_ten_and_a_count(tmp_path: Path) -> None:
    small, large = nn.ModuleList([nn.PReLU()]), nn.ModuleList([nn.PReLU() for _ in range(14)])
    weights = of(tmp_path, small)
    lines = tell(take_over([large], weights), [large], weights)
    assert len(lines) == 12 and lines[0].startswith("weights: 1 of the 14 tensors")
    assert lines[-2].startswith("weights: 10.weight") and lines[-1] == "weights: and so are 3 more (13 in all)"


def test_nothing_in_common(tmp_path: Path) -> None:
    model = nn.PReLU()
    with pytest.raises(OtherModel) as error:
        take_over([model, nn.PReLU()], of(tmp_path, model))
    assert str(error.value) == (
        f"{tmp_path / 'w.safetensors'} has nothing in common with the models of this script: here they are called "
        "0.weight, 1.weight, there weight. Give the weights of such a model, or rename them as the model's "
        "state_dict() names them."
    )
    with pytest.raises(OtherModel, match=r"weight is float32 \[2\] here and float32 \[1\] there"):
        take_over([nn.PReLU(2)], of(tmp_path, model))


def test_tied_weights(tmp_path: Path) -> None:
    weights, tied = of(tmp_path, filled(Tied(), 4)), Tied()
    assert take_over([tied], weights) == Loaded()
    assert bool((tied.last.weight == 4).all()) and tied.last.weight is tied.first.weight
    one = nn.ModuleDict({"last": nn.Linear(2, 2, bias=False)})  # as the safetensors library writes tied ones
    assert take_over([tied], of(tmp_path, filled(one, 5))) == Loaded()
    assert bool((tied.first.weight == 5).all())
    apart = nn.ModuleDict({name: nn.Linear(2, 2, bias=False) for name in ("first", "last")})
    filled(apart["first"], 6)
    weights = of(tmp_path, apart)
    loaded = take_over([tied], weights)
    assert loaded == Loaded(differing=("last.weight",)) and bool((tied.last.weight == 6).all())
    assert tell(loaded, [tied], weights)[1] == (
        "weights: last.weight is another name of one tensor here, and in the file it has other numbers: not taken"
    )


def test_nothing_is_changed_by_what_cannot_be_read() -> None:
    def read(name: str) -> memoryview:
        if name == "bias":
            raise NoWeights("here", "it was cut off")
        return memoryview(bytearray(16))

    model = filled(nn.Linear(2, 2), 1)
    kinds = {"weight": TensorKind("float32", (2, 2)), "bias": TensorKind("float32", (2,))}
    weights = Weights(Path("here"), kinds, read)
    with pytest.raises(NoWeights):
        take_over([model], weights)
    assert bool((model.weight == 1).all())


# ------------------------------------------------------------ run.save and run.load


def prepared(run: hf.Run) -> tuple[nn.Module, optim.Optimizer, hf.train.run.Loader]:  # type: ignore[name-defined]
    model = net()
    return run.prepare(model, optim.SGD(model.parameters(), lr=0.05), loader_of(points()))  # type: ignore[no-any-return]


def test_saved_and_loaded(join, tmp_path: Path, capfd) -> None:
    run = join()
    model, optimizer, loader = prepared(run)
    best = tmp_path / "new" / "best.safetensors"
    for step in run.steps(loader):
        for batch in step:
            loss_of(model, batch).backward()
        if step.number == 1:
            assert run.save(str(best)) == best  # in the turn, before its step
            assert os.listdir(best.parent) == ["best.safetensors"]
            before = run.weights_sha256()
        optimizer.step()
        optimizer.zero_grad()
        if step.number == 2:
            after = run.save(tmp_path / "after.safetensors")
            now = run.weights_sha256()
    run.close()
    for file, sha256 in ((best, before), (after, now)):
        run = join(seed=5)
        model, optimizer, loader = prepared(run)
        assert run.load(file) == Loaded()
        assert run.weights_sha256() == sha256
        assert capfd.readouterr().err == f"holdfast: weights: 4 of the 4 tensors of the models are those of {file}\n"
        turn(next(iter(run.steps(loader))), model, optimizer)
        assert run.step == 1
        run.close()


def test_saved_in_a_plain_loop_and_around_it(join, tmp_path: Path) -> None:
    run = join()
    model, optimizer, loader = prepared(run)
    file = tmp_path / "w.safetensors"
    with pytest.raises(UsageError, match=r"before the first loop, run.evaluate, run.agree or run.save"):
        run.save(file)
        run.load(file)
    for number, batch in enumerate(loader):
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        if number == 2:
            run.save(file)
            inside = run.weights_sha256()
    run.close()
    run = join()
    prepared(run)
    run.load(file)
    assert run.weights_sha256() == inside


def test_saving_changes_nothing_of_the_training(join, tmp_path: Path) -> None:
    ends = []
    for saving in (False, True):
        run = join()
        model, optimizer, loader = prepared(run)
        for _ in run.epochs(2):
            for step in run.steps(loader):
                turn(step, model, optimizer)
                if saving:
                    run.save(tmp_path / "w.safetensors")
        ends.append(run.weights_sha256())
        run.close()
    assert ends[0] == ends[1]


def test_where_neither_can_be_called(join, tmp_path: Path) -> None:
    run = join()
    with pytest.raises(UsageError, match="Nothing is prepared yet"):
        run.load(tmp_path)
    with pytest.raises(UsageError, match="Nothing is prepared yet"):
        run.save(tmp_path)
    model, optimizer, loader = prepared(run)
    with pytest.raises(UsageError, match=r"Let the name end in .safetensors"):
        run.save("best.pt")
    step = next(steps := iter(run.steps(loader)))
    units = iter(step)
    loss_of(model, next(units)).backward()
    with pytest.raises(UsageError) as error:
        run.save("w.safetensors")
    assert str(error.value) == (
        "run.save('w.safetensors') was called inside of the loop over the units of step 0, where workers are apart. "
        "Call it before that loop or after it."
    )
    with pytest.raises(UsageError, match=r"run.load\('w.safetensors'\) was called after training had begun, when the"):
        run.load("w.safetensors")
    for batch in units:
        loss_of(model, batch).backward()
    optimizer.step()
    assert steps


def test_a_plain_turn_before_its_step(join, tmp_path: Path) -> None:
    run = join()
    _, _, loader = prepared(run)
    next(turns := iter(loader))
    with pytest.raises(UsageError, match=r"run.save was called in a turn of the loop over the loader, before the opt"):
        run.save(tmp_path / "w.safetensors")
    assert turns


def test_a_disk_that_does_not_take_it(join, tmp_path: Path) -> None:
    run = join()
    prepared(run)
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match=r"w.safetensors could not be written: File exists. Make room there, or"):
        run.save(tmp_path / "file" / "w.safetensors")
    old = tmp_path / "old.safetensors"
    old.mkdir()
    with pytest.raises(ResourceError, match="Is a directory"):
        run.save(old)
    assert sorted(os.listdir(tmp_path)) == ["file", "old.safetensors"]


def test_what_a_killed_writer_has_left_is_swept(tmp_path: Path) -> None:
    (tmp_path / ".w.safetensors.new-0a1b").write_text("half")
    of(tmp_path, net())
    assert os.listdir(tmp_path) == ["w.safetensors"]


def test_buffers_are_those_of_the_version(join, tmp_path: Path) -> None:
    """Those that all lanes have come to, whatever this worker's last unit has left in its own."""
    run, model = join(lanes=2), nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = optim.SGD(model.parameters(), lr=0.05)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(points(), batch_size=12))
    for step in run.steps(loader):
        turn(step, model, optimizer)
        run.save(tmp_path / "w.safetensors")
        break
    sha256 = run.weights_sha256()
    run.close()
    run, model = join(), nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    run.prepare(model, optim.SGD(model.parameters(), lr=0.05))
    run.load(tmp_path / "w.safetensors")
    assert run.weights_sha256() == sha256
