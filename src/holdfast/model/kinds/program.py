"""The kind `program`: what torch.export has traced, as JSON, with its weights beside it as safetensors.

Not the archive of torch.export.save: torch.export.load (2.13) unpickles example inputs, custom objects and some tensors
in it, and falls back to any pickle where `weights_only=True` does not do. So only the graph is kept, which is JSON, and
handed to the same decoder with tensors out of safetensors files: nothing is unpickled.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor, nn

from holdfast.errors import DamagedModel, NotExportable, NotLoaded
from holdfast.model.calls import Argument, Call, outputs_of
from holdfast.model.conversion import as_tensors, from_torch, to_torch
from holdfast.model.library import Version
from holdfast.model.manifest import CONSTANTS, PROGRAM, WEIGHTS

__all__ = ["Traced", "load", "other_road", "trace", "warm_up"]

Arrays = dict[str, numpy.ndarray[Any, Any]]
_PREFIX = "module."  #: of names in the program, which has the model in a wrapper


class Traced(NamedTuple):
    """A model without its weights."""

    program: bytes
    constants: dict[str, Tensor]


class _Flat(nn.Module):
    """Takes tensors in a row and gives tensors in a row, whatever the model takes and gives."""

    def __init__(self, module: nn.Module, call: Call) -> None:
        super().__init__()
        self.module, self._call = module, call

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        called = self._call.apply(self.module, dict(zip(self._call.inputs, tensors, strict=True)))
        return tuple(outputs_of(called).values())


def trace(module: nn.Module, call: Call, inputs: Mapping[str, Tensor], varying: Mapping[str, Sequence[int]]) -> Traced:
    """Trace a module in eval mode; `varying` are the dimensions of each input that may have any size.

    Raises NotExportable, which says why torch.export cannot.
    """
    from torch._export.serde.serialize import serialize

    dynamic = tuple(dict.fromkeys(varying.get(name, ()), torch.export.Dim.DYNAMIC) for name in call.inputs)
    try:
        with _quiet(), torch.no_grad():
            exported = torch.export.export(
                _Flat(module, call).eval(), tuple(inputs[name] for name in call.inputs), dynamic_shapes=(dynamic,)
            )
            written = serialize(
                exported, serialize_state_dict=False, serialize_constants=False, serialize_example_inputs=False
            )
    except Exception as error:  # whatever the model's code raises while it is traced, and torch.export's own
        raise NotExportable(
            type(module).__name__, f"torch.export cannot trace it ({_first(error, call)})", other_road(module)
        ) from error
    odd = [name for name, value in exported.constants.items() if not isinstance(value, Tensor)]
    if odd:
        raise NotExportable(
            type(module).__name__, f"it has a constant that is no tensor ({', '.join(odd)})", other_road(module)
        )
    constants = {name: value for name, value in exported.constants.items() if isinstance(value, Tensor)}
    return Traced(written.exported_program, constants)


def load(version: Version) -> Any:
    """A function of arrays; see `LoadedModel`."""
    weights, program = _tensors(version, WEIGHTS), bytes(version.read(PROGRAM))
    constants = _tensors(version, CONSTANTS) if CONSTANTS in version.manifest.files else {}
    try:
        with _quiet():
            module, writes = _module(program, {_PREFIX + name: value for name, value in weights.items()}, constants)
    except Exception as error:
        made = version.manifest.frameworks.get("torch", "unknown")
        raise NotLoaded(
            version.path, f"torch {torch.__version__} cannot read a program of torch {made} ({_first(error)})",
            f"Use torch {made}, or export the model again.",
        ) from error  # fmt: skip
    signature = version.manifest.signature
    outputs = [spec.name for spec in signature.outputs]

    def compute(arrays: Arrays) -> Arrays:
        tensors = [to_torch(arrays[spec.name], spec.datatype, own=writes) for spec in signature.inputs]
        with torch.inference_mode():
            return {name: from_torch(value) for name, value in zip(outputs, module(*tensors), strict=True)}

    return compute


def warm_up() -> None:
    """Import all that reading a program takes, which torch puts off: seconds, once for all processes forked later."""
    call = Call((Argument(input="x"),))
    traced = trace(nn.Linear(1, 1), call, {"x": torch.zeros(2, 1)}, {"x": (0,)})
    state = {_PREFIX + name: value for name, value in nn.Linear(1, 1).state_dict().items()}
    with _quiet(), torch.inference_mode():
        _module(traced.program, state, traced.constants)[0](torch.zeros(1, 1))


def other_road(module: object) -> str:
    """What to do where a model cannot be traced."""
    return (
        f"Export how it is built instead (holdfast export RUN --to DIR --module FILE.py:{type(module).__name__} --args "
        "JSON), or serve a Python class around it."
    )


def _module(program: bytes, state: dict[str, Tensor], constants: dict[str, Tensor]) -> tuple[Any, bool]:
    """What computes it, and whether it may write into its inputs."""
    from torch._export.serde.schema import ExportedProgram
    from torch._export.serde.serialize import ExportedProgramDeserializer, _bytes_to_dataclass

    written = _bytes_to_dataclass(ExportedProgram, program)
    specs = written.graph_module.signature.input_specs
    parameters = {spec.parameter.parameter_name for spec in specs if spec.type == "parameter"}
    state = {
        name: nn.Parameter(value, requires_grad=False) if name in parameters else value for name, value in state.items()
    }
    exported = ExportedProgramDeserializer().deserialize(written, state, constants, None)
    # Traced as it was written, so what works in place does so here, and some of it may on what goes in.
    writes = any(getattr(getattr(node.target, "_schema", None), "is_mutable", False) for node in exported.graph.nodes)
    try:  # what goes in is compared with the signature before: once is enough
        return exported.module(check_guards=False), writes
    except TypeError:  # before torch 2.9
        return exported.module(), writes


def _tensors(version: Version, name: str) -> dict[str, Tensor]:
    try:
        return as_tensors(version.read(name))
    except ValueError as error:
        raise DamagedModel(version.path, name, f"is no .safetensors file: {error}") from None


def _first(error: Exception, call: Call | None = None) -> str:
    """What happened, in the words of torch, without its advice to whoever calls torch.export."""
    lines = [line.strip(" -") for line in str(error).splitlines() if line.strip()]
    said = next((line for line in lines if line.startswith("You marked")), lines[0] if lines else "")
    if call is not None:
        said = re.sub(r"L\['t\w*'\]\[(\d+)\](?:\.size\(\)\[(\d+)\])?", lambda found: _called(found, call), said)
    return f"{type(error).__name__}: {said.partition('. If you')[0][:300]}"


def _called(found: re.Match[str], call: Call) -> str:
    return f"input {call.inputs[int(found[1])]}" + (f", dimension {found[2]}," if found[2] else "")


@contextmanager
def _quiet() -> Iterator[None]:
    """torch.export warns of its own doings, such as of weights that a GRU keeps in a list besides."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
