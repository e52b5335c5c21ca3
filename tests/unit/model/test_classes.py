"""What the entries of an output stand for: as it was said, or as the data set has it where that fits."""

from pathlib import Path

import pytest
import torch

from holdfast.errors import UsageError
from holdfast.model.export import ExportOptions, export_module


def classes(root: Path, **said: tuple[str, ...]) -> tuple[str, ...]:
    made = export_module(torch.nn.Linear(4, 3), (torch.zeros(2, 4),), root, ExportOptions(**said))
    return made.version.manifest.classes


def test_names_of_the_data_set_are_used_where_they_fit_and_none_were_said(tmp_path):
    assert classes(tmp_path, classes_of_data=("a", "b", "c")) == ("a", "b", "c")
    assert classes(tmp_path, classes_of_data=("a", "b", "c", "d")) == ()
    assert classes(tmp_path, classes_of_data=("a", "b", "c"), classes=("x", "y", "z")) == ("x", "y", "z")


def test_names_that_were_said_have_to_fit(tmp_path):
    with pytest.raises(UsageError, match="4 classes were named, and no output has as many entries: output \\[-1, 3\\]"):
        classes(tmp_path, classes=("a", "b", "c", "d"))
