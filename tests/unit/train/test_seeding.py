"""The seed of a run: what `holdfast run`, `join` and a script's own `torch.manual_seed` say of it, in this order."""

from __future__ import annotations

import random
import warnings

import numpy
import pytest
import torch

from holdfast.config.worker_spec import WorkerSpec
from holdfast.train import run as runs


def drawn() -> tuple[float, float, float]:
    return torch.rand(1).item(), float(numpy.random.rand()), random.random()


def test_what_the_script_has_seeded_torch_with_is_the_seed_and_torch_goes_on_from_there(join) -> None:
    torch.manual_seed(7)
    torch.rand(3)
    expected = torch.rand(1).item()
    torch.manual_seed(7)
    torch.rand(3)
    run = join()
    first = drawn()
    assert run.seed == 7 and first[0] == expected
    run.close()
    again = join(seed=7)
    assert drawn()[1:] == first[1:], "NumPy's and Python's generators follow from the seed"
    again.close()
    assert join().seed == 7, "it counts for all that the process joins"


def test_without_it_the_seed_is_0(join) -> None:
    run = join()
    first = drawn()
    assert run.seed == 0
    run.close()
    run = join(seed=0)
    assert drawn() == first


def test_a_seed_for_join_counts_before_it_and_that_is_said(join) -> None:
    torch.manual_seed(7)
    text = (
        r"^torch\.manual_seed\(7\) was called before hf\.join\(\), and the run's seed is 3 \(set by hf\.join\): that "
        r"counts, for torch's generator as well\. Leave one of the two out\.$"
    )
    with pytest.warns(UserWarning, match=text):
        run = join(seed=3)
    first = drawn()
    assert run.seed == 3
    run.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.manual_seed(3)
        run = join(seed=3)
    assert drawn() == first


def test_a_seed_on_the_command_line_counts_before_both(join, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(7)
    monkeypatch.setattr(runs, "_enlisted", (WorkerSpec(0, 0, "script.py", (), "", seed=5), None))
    with pytest.warns(UserWarning, match=r"the run's seed is 5 \(set by holdfast run\): that counts"):
        run = join()
    assert run.seed == 5


def test_what_torch_begins_with_is_no_seed_of_the_script(join) -> None:
    torch.manual_seed(17198746522651781429)
    assert join().seed == 0
