"""Models for tests of the server, made on the fly: Python classes, so nothing here needs torch or training."""

from __future__ import annotations

from pathlib import Path

from holdfast.model.kinds import python_class
from holdfast.model.user_code import parse_class
from holdfast.model.version_writer import write_version

__all__ = ["ECHO", "SLOW", "STEADY", "TIMES", "write_model"]

#: Several inputs and outputs, of several types.
ECHO = """
class Model:
    inputs = [{"name": "numbers", "datatype": "FP32", "shape": [-1, 4]},
              {"name": "halves", "datatype": "FP16", "shape": [-1, 2]},
              {"name": "texts", "datatype": "BYTES", "shape": [-1]}]
    outputs = [{"name": "doubled", "datatype": "FP32", "shape": [-1, 4]},
               {"name": "halved", "datatype": "FP16", "shape": [-1, 2]},
               {"name": "upper", "datatype": "BYTES", "shape": [-1]}]

    def predict(self, numbers, halves, texts):
        import numpy
        return {"doubled": 2 * numbers, "halved": halves / 2,
                "upper": numpy.array([text.decode().upper().encode() for text in texts], dtype=object)}
"""

#: Takes as long as it is told. Where it was told to take long, it leaves a file when it begins.
SLOW = """
class Model:
    inputs = [{{"name": "seconds", "datatype": "FP32", "shape": [-1]}}]
    outputs = [{{"name": "slept", "datatype": "FP32", "shape": [-1]}}]

    def predict(self, seconds):
        import pathlib, time
        if seconds.max() >= 1:
            pathlib.Path({begun!r}).touch()
        time.sleep(float(seconds.sum()))
        return {{"slept": seconds}}
"""

#: Takes 50 ms for every request, which is known when it is loaded.
STEADY = """
class Model:
    batched = False
    inputs = [{"name": "x", "datatype": "FP32", "shape": [1]}]
    outputs = [{"name": "y", "datatype": "FP32", "shape": [1]}]

    def predict(self, x):
        import time
        time.sleep(0.05)
        return {"y": x}
"""

#: Multiplies by a factor that tells versions apart.
TIMES = """
class Model:
    inputs = [{{"name": "x", "datatype": "INT64", "shape": [-1]}}]
    outputs = [{{"name": "y", "datatype": "INT64", "shape": [-1]}}]

    def predict(self, x):
        return {{"y": {factor} * x}}
"""


def write_model(root: Path, source: str) -> Path:
    """Write the next version of a model into a folder, which names it."""
    root.mkdir(parents=True, exist_ok=True)
    file = root.parent / f"{root.name}.py"
    file.write_text(source)
    made, _ = python_class.draft(parse_class(f"{file}:Model"), root.name, None, variable={})
    write_version(root, made)
    return root
