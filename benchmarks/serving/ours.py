"""Our server, as the benchmarks start it: the only module here that knows `holdfast serve` and `holdfast.model`.

What it takes for granted:

* `holdfast serve DIR --replicas N --slo 50ms --dir RUN` serves the newest version in DIR, under the model's own name,
  and writes RUN/addresses.json when it listens; versions that appear in DIR are taken up without being asked for, and
  answers name them by their numbers;
* a replica is called "holdfast serve: replica ..." in `ps`, and descends from the process that was started;
* GET /metrics has a line for each model and version, `holdfast_replicas{...,stage="ready"} N`;
* SIGTERM ends it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.harness import Failed, environment, finish, started, wait_until
from benchmarks.serving.contenders import Server, answers, cores, end, pinned
from benchmarks.serving.exchange import Target
from benchmarks.serving.networks import INPUTS, network

__all__ = ["going", "library", "publish", "ready"]

_READY = re.compile(r'^holdfast_replicas\{[^}]*stage="ready"[^}]*\} (\d+)', re.MULTILINE)
_REPLICA = "holdfast serve: replica"
_START = 60.0  #: seconds


@contextlib.contextmanager
def going(
    directory: Path, encoding: str, where: Path, *, replicas: int = 1, objective: float = 0.05
) -> Iterator[Server]:
    """`holdfast serve` of a model's directory, until the block is left; the objective is all that it is told."""
    log, run = where / "serve.log", where / "serve"
    command = [
        sys.executable, "-m", "holdfast.cli.main", "serve", str(directory), "--replicas", str(replicas),
        "--slo", f"{1e3 * objective:g}ms", "--dir", str(run), "--grpc-port", "-1",
    ]  # fmt: skip
    with contextlib.ExitStack() as stack:
        with pinned(cores()[0]):
            (process,) = stack.enter_context(started(command, log=log, env=environment(TMPDIR=str(where))))

        addresses = run / "addresses.json"
        wait_until(lambda: addresses.exists() or process.poll() is not None, "the server's address", _START)
        if not addresses.exists():
            finish([process], log)
            raise Failed(f"{command!r} ended and has served nothing")
        port = int(json.loads(addresses.read_text())["http"].rpartition(":")[2])
        server = Server(process, _target(directory, port, encoding), _REPLICA)
        try:
            answers(server, log)
            yield server
        finally:
            end(server)


def _target(directory: Path, port: int, encoding: str) -> Target:
    from holdfast.model.library import resolve

    version, _ = resolve(directory)
    signature = version.manifest.signature
    shape = (1, *INPUTS[directory.name])
    path = f"/v2/models/{directory.name}/infer"
    return Target("127.0.0.1", port, path, encoding, signature.inputs[0].name, shape, signature.outputs[0].name)


def library(model: str, where: Path, versions: int = 1) -> Path:
    """A model's directory with its first version; the others lie beside it, until they are published.

    Each version is made by `export_module` as a script's would be, the further ones with the weights alone.
    """
    directory, aside = where / model, where / "aside" / model
    _export(model, aside)
    for number in range(2, versions + 1):
        weights = where / "weights.safetensors"
        save_file(network(model, number).state_dict(), weights)
        _publish_weights(aside, weights)
        weights.unlink()
    directory.mkdir()
    publish(directory, 1)
    return directory


def _export(model: str, aside: Path) -> None:
    from holdfast.model.export import ExportOptions, export_module

    example = torch.rand(2, *INPUTS[model], generator=torch.Generator().manual_seed(0))
    export_module(network(model), (example,), aside, ExportOptions(name=model))


def _publish_weights(aside: Path, weights: Path) -> None:
    from holdfast.model.publishing import publish_weights

    publish_weights(aside, weights)


def publish(directory: Path, number: int) -> None:
    """A version appears, whole, as the library's own writer has it appear."""
    os.rename(directory.parent / "aside" / directory.name / str(number), directory / str(number))


def ready(server: Server) -> int:
    """How many replicas could take a request now, as the server says. Raises Failed."""
    with urllib.request.urlopen(f"http://{server.target.host}:{server.target.port}/metrics", timeout=5) as answer:
        found = _READY.findall(answer.read().decode())
    if not found:
        raise Failed("/metrics has no line holdfast_serve_replicas_ready: nobody says how many replicas are ready")
    return sum(map(int, found))
