"""Export: a torch module becomes a version of a model, which is loaded again and has to answer as before.

    exported = export_module(module, (images,), Path("models/lenet"), ExportOptions(classes=("cat", "dog")))
    exported.version.path
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy
import torch
from torch import Tensor, nn

from holdfast.errors import NotExportable, OtherAnswers, UsageError
from holdfast.model.calls import Call, call_of, outputs_of
from holdfast.model.conversion import as_stored, datatype_of_tensor, from_torch, to_torch
from holdfast.model.example import Example, encode_example, of_size
from holdfast.model.kinds import program
from holdfast.model.library import Version
from holdfast.model.loading import LoadedModel, load_version
from holdfast.model.manifest import CONSTANTS, EXAMPLE, PROGRAM, WEIGHTS, Kind, model_name
from holdfast.model.observation import Shapes, check_variable, observe, varying
from holdfast.model.signature import Signature
from holdfast.model.user_code import ClassName, parse_class
from holdfast.model.version_writer import Draft, frameworks, write_version

__all__ = ["ExportOptions", "Exported", "checked", "export_module", "write_checked"]

Arrays = dict[str, numpy.ndarray[Any, Any]]
_MANY = 32  #: items whose latency is told, beside one's
_TRIES = 20
#: By which part of the greatest number an answer may differ.
_TOLERANCE = {"FP64": 1e-8, "FP32": 1e-4, "FP16": 2e-2, "BF16": 5e-2}


class ExportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What may be said of a model besides the module itself."""

    name: str = ""
    classes: tuple[str, ...] = ()
    classes_of_data: tuple[str, ...] = ()  #: as its data set calls them: used where they fit, and none are named
    variable: dict[str, tuple[int, ...]] = {}  #: dimensions of inputs, besides the first, that may have any size
    batched: bool = True
    module: str = ""  #: how it is built: package.module:Class or FILE.py:Class; empty: it is traced
    arguments: Any = None  #: of that class: a dict, or a list
    source: dict[str, Any] = {}
    names: dict[str, str] = {}  #: of weights: here -> in the run's checkpoints, where they differ; "": not there


class Exported(NamedTuple):
    """A version that was written, loaded again and asked."""

    version: Version
    #: The greatest between its answers and the module's, as a part of the greatest answer; None: nothing to compare.
    difference: float | None
    load_seconds: float
    one_seconds: float  #: the median for one item, or one request
    many_seconds: float  #: and for 32; 0 where the model takes one request at a time


def export_module(
    module: nn.Module, args: Sequence[Any], root: Path, options: ExportOptions, kwargs: Mapping[str, Any] | None = None
) -> Exported:
    """Write `module`, which is called with `args` and `kwargs`, into `root` as its next version.

    The module is as it was afterwards. Raises NotExportable, OtherAnswers, UsageError, ModelFailed.
    """
    call, tensors = call_of(module, args, kwargs)
    what = type(module).__name__
    for name, tensor in tensors.items():
        _known(what, name, tensor)
    example = Example(
        {name: from_torch(tensor.detach().clone()) for name, tensor in tensors.items()},
        {name: datatype_of_tensor(tensor) for name, tensor in tensors.items()},
    )
    check_variable(example, options.variable)
    with _evaluating(module):
        answer = _answers(module, call)
        signature = observe(
            what, lambda given: _shapes(what, answer(given)), example, options.variable, batched=options.batched
        )
        classes = _classes(options, signature)
        state = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
        try:
            files: dict[str, Any] = {WEIGHTS: as_stored(state)}
        except KeyError as error:
            raise NotExportable(
                what, f"it has weights of {error.args[0]}, which a .safetensors file cannot hold",
                "Dequantise it, or serve a Python class around it.",
            ) from None  # fmt: skip
        kind, build = _built(module, call, example, options, files)
        files[EXAMPLE] = encode_example(of_size(example, 1 if options.batched else -1))
        draft = Draft(
            name=options.name or model_name(what), kind=kind, signature=signature, files=files, classes=classes,
            source=options.source, build=build, frameworks=frameworks("torch"),
        )  # fmt: skip
        return write_checked(root, draft, example, lambda given: {n: from_torch(v) for n, v in answer(given).items()})


def write_checked(
    root: Path, draft: Draft, example: Example, answer: Callable[[Example], Arrays] | None = None
) -> Exported:
    """Write a version that answers the example as it should. Raises OtherAnswers, NotLoaded, ModelFailed."""
    told: list[tuple[float | None, float, float, float]] = []

    def attempt(version: Version) -> None:
        told.append(checked(version, example, answer))

    version = write_version(root, draft, attempt=attempt)
    return Exported(version, *told[-1])


def checked(
    version: Version, example: Example, answer: Callable[[Example], Arrays] | None = None
) -> tuple[float | None, float, float, float]:
    """Load it and ask it; what `Exported` says besides the version. Raises OtherAnswers, NotLoaded."""
    began = time.perf_counter()
    model = load_version(version)
    loaded = time.perf_counter() - began
    signature = version.manifest.signature
    rows = example.rows()
    difference = 0.0
    for size in (rows, 1, rows + 3) if signature.batched else (-1,):
        given = of_size(example, size)
        now = model.predict(given.arrays)
        expected = answer(given) if answer is not None else now
        difference = max(difference, _compared(version, signature, expected, now, size))
    one = _latency(model, of_size(example, 1 if signature.batched else -1))
    many = _latency(model, of_size(example, _MANY)) if signature.batched else 0.0
    return difference if answer is not None else None, loaded, one, many


def _built(
    module: nn.Module, call: Call, example: Example, options: ExportOptions, files: dict[str, Any]
) -> tuple[Kind, dict[str, Any]]:
    """Kind and `build` of a module; adds the files that it takes."""
    build: dict[str, Any] = {"names": options.names} if options.names else {}
    if options.module:
        where = parse_class(options.module)
        build |= {"class": str(where), "arguments": options.arguments, "call": msgspec.to_builtins(call)}
        if where.file is not None:
            build |= {"class": where.name, "file": where.file.name}
            files[where.file.name] = _source(where)
        return "module", build
    two = of_size(example, 2 if options.batched else -1)
    traced = program.trace(
        module, call, _tensors(two), varying(example, options.variable, batched=options.batched)
    )
    files[PROGRAM] = traced.program
    if traced.constants:
        files[CONSTANTS] = as_stored(traced.constants)
    return "program", build


def _classes(options: ExportOptions, signature: Signature) -> tuple[str, ...]:
    """What the entries of an output stand for. Raises UsageError: other names were given than there are entries."""
    sizes = {spec.shape[-1] for spec in signature.outputs if len(spec.shape) > signature.batched}
    named = options.classes
    if named and sizes and -1 not in sizes and len(named) not in sizes:
        told = ", ".join(f"{spec.name} {list(spec.shape)}" for spec in signature.outputs)
        raise UsageError(f"{len(named)} classes were named, and no output has as many entries: {told}.")
    return named or (options.classes_of_data if len(options.classes_of_data) in sizes else ())


def _source(where: ClassName) -> bytes:
    assert where.file is not None
    try:
        return where.file.read_bytes()
    except OSError as error:
        raise UsageError(f"{where.file} cannot be read ({error.strerror}).") from None


def _answers(module: nn.Module, call: Call) -> Callable[[Example], dict[str, Tensor]]:
    """What the module itself answers."""
    device = next((value.device for value in module.state_dict().values() if isinstance(value, Tensor)), None)

    def answer(given: Example) -> dict[str, Tensor]:
        tensors = {name: tensor.to(device) for name, tensor in _tensors(given).items()}
        with torch.no_grad():
            return outputs_of(call.apply(module, tensors))

    return answer


def _tensors(example: Example) -> dict[str, Tensor]:
    return {name: to_torch(array, example.datatypes[name], own=True) for name, array in example.arrays.items()}


def _shapes(what: str, answers: Mapping[str, Tensor]) -> Shapes:
    for name, tensor in answers.items():
        _known(what, name, tensor)
    return {name: (datatype_of_tensor(tensor), tuple(tensor.shape)) for name, tensor in answers.items()}


def _known(what: str, name: str, tensor: Tensor) -> None:
    try:
        datatype_of_tensor(tensor)
    except KeyError:
        raise NotExportable(
            what, f"its tensor {name} is of {tensor.dtype}, for which requests have no type",
            "Convert it in forward, such as with torch.view_as_real.",
        ) from None  # fmt: skip


def _compared(version: Version, signature: Signature, expected: Arrays, now: Arrays, size: int) -> float:
    """The greatest difference. Raises OtherAnswers where it is too great."""
    worst = 0.0
    for spec in signature.outputs:
        items = f"{size} item{'s' * (size != 1)}" if signature.batched else "the example"
        one, other = expected[spec.name], now[spec.name]
        if one.shape != other.shape or one.dtype != other.dtype:
            why = f"for {items} {spec.name} is {list(other.shape)} {other.dtype}, and was {list(one.shape)} {one.dtype}"
        elif spec.datatype in _TOLERANCE:
            difference = _difference(*(_floats(array, spec.datatype) for array in (one, other)))
            worst = max(worst, difference)
            why = f"for {items} {spec.name} differs by {difference:.2g} of its greatest number"
            why = why if not difference <= _TOLERANCE[spec.datatype] else ""
        else:
            why = "" if numpy.array_equal(one, other) else f"for {items} {spec.name} has other values"
        if why:
            raise OtherAnswers(
                version.manifest.name, why,
                "A model that draws random numbers in eval mode, or computes another thing for other values, cannot be "
                "traced: export how it is built (--module), or serve a Python class around it.",
            )  # fmt: skip
    return worst


def _floats(array: numpy.ndarray[Any, Any], datatype: str) -> numpy.ndarray[Any, Any]:
    if datatype == "BF16":
        array = (array.astype("<u4") << 16).view("<f4")
    return array.astype("<f8")


def _difference(one: numpy.ndarray[Any, Any], other: numpy.ndarray[Any, Any]) -> float:
    same = (one == other) | (numpy.isnan(one) & numpy.isnan(other))
    if same.all():
        return 0.0
    finite = one[numpy.isfinite(one)]
    largest = max(float(numpy.abs(finite).max()) if finite.size else 0.0, 1e-6)
    return float(numpy.nan_to_num(numpy.abs(one - other)[~same], nan=numpy.inf).max()) / largest


def _latency(model: LoadedModel, example: Example) -> float:
    """The median of some tries, after one that does not count."""
    seconds = []
    model.predict(example.arrays)
    for _ in range(_TRIES):
        began = time.perf_counter()
        model.predict(example.arrays)
        seconds.append(time.perf_counter() - began)
        if sum(seconds) > 2.0:
            break
    return float(numpy.median(seconds))


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """In eval mode, without a trace left: modes and random numbers are as before."""
    training = {part: part.training for part in module.modules()}
    try:
        module.eval()
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        for part, mode in training.items():
            part.training = mode
