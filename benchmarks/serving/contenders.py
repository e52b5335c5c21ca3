"""Servers that others wrote, as processes: each from its own environment, on the server's core, ended for certain.

    python -m benchmarks.serving.contenders [NAME ...]       make the environments, below .bench-venv

Where they are is `HOLDFAST_BENCH_SERVERS`, or .bench-venv in this repository. A contender that has no environment is
left out, and the result says so. (Whoever wants torch's CPU build tells pip where it is, as by PIP_FIND_LINKS.)
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness import ROOT, Failed, children, environment, family, started
from benchmarks.serving import exchange
from benchmarks.serving.exchange import Target
from benchmarks.serving.networks import INPUTS

__all__ = ["PEERS", "Peer", "Server", "cores", "going", "python_of", "versions"]

#: What an environment is made of, besides torch, numpy and msgspec. What is not here runs where we do.
REQUIREMENTS = {
    "litserve": ["litserve"], "ray": ["ray[serve]"], "bentoml": ["bentoml"],
    # MLServer 1.7's workers ask for an event loop that newer ones do not make by themselves, and die at once.
    "mlserver": ["mlserver", "uvloop<0.22"],
}  # fmt: skip
_TOO = ["torch>=2.8,<2.14", "numpy", "msgspec"]
_START = 60.0  #: seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A server and how it is set up."""

    name: str  #: as in a table
    module: str  #: of benchmarks.peers
    package: str = ""  #: whose environment it runs in; none: ours
    options: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    encodings: tuple[str, ...] = ("json",)
    path: str = "/v2/models/{model}/infer"
    input: str = "x"
    #: What the command line of a process that holds the model matches; none: the first process is all there is.
    replica: str = ""

    def with_options(self, *more: str) -> Peer:
        """The same, set up otherwise."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return Peer(**{**fields, "options": self.options + more})


_RAY_ENV = {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
#: Each at a first setting; `benchmarks.serving.grid` looks for its best one.
PEERS = {
    "asgi": Peer(name="bare ASGI", module="asgi", encodings=("json", "binary")),
    "litserve": Peer(name="LitServe", module="lit", package="litserve", replica="spawn_main"),
    "ray": Peer(name="Ray Serve", module="rayserve", package="ray", env=_RAY_ENV, path="/", replica="ServeReplica"),
    "bentoml": Peer(
        name="BentoML", module="bento", package="bentoml", encodings=("plain",), path="/infer", input="inputs",
        replica="_bentoml_impl.worker.service",
    ),
    "mlserver": Peer(name="MLServer", module="mls", package="mlserver", replica="spawn_main"),
}  # fmt: skip


@dataclass(slots=True)
class Server:
    """A server that answers."""

    process: subprocess.Popen[bytes]
    target: Target
    replica: str = ""

    def family(self) -> list[int]:
        """All its processes."""
        return family(self.process.pid)

    def replicas(self) -> list[int]:
        """The processes that hold the model."""
        return [pid for pid in self.family() if re.search(self.replica, _called(pid))] if self.replica else []


def _called(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def cores() -> tuple[int, int]:
    """The server's core, and the generator's. Raises Failed."""
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) < 2:
        raise Failed("a server and its load need a core each; this process may use one only")
    return mine[0], mine[1]


def home() -> Path:
    """Where the environments are."""
    return Path(os.environ.get("HOLDFAST_BENCH_SERVERS", ROOT / ".bench-venv"))


def python_of(peer: Peer) -> str | None:
    """The Python that runs a contender; None where its environment is not there."""
    if not peer.package:
        return sys.executable
    python = home() / peer.package / "bin" / "python"
    return str(python) if python.exists() else None


def versions(peer: Peer) -> str:
    """What it is, in words: its package and the version that is installed."""
    package, python = peer.package or "uvicorn", python_of(peer)
    if python is None:
        return "not installed"
    code = f"from importlib.metadata import version; print(version({package!r}))"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return f"{package} {found.stdout.strip() or 'is not installed'}"


def target_of(port: int, model: str, encoding: str, *, path: str, input: str = "x") -> Target:
    """One item for a model."""
    shape = (1, *INPUTS[model])
    return Target("127.0.0.1", port, path.format(model=model), encoding, input, shape)


def free_port() -> int:
    """One that nobody has at this moment: others' servers cannot say which one they took."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@contextlib.contextmanager
def going(peer: Peer, model: str, encoding: str, where: Path) -> Iterator[Server]:
    """A peer that answers, until the block is left. Raises Failed when it does not."""
    python, port, log = python_of(peer), free_port(), where / f"{peer.module}-{time.monotonic_ns()}.log"
    if python is None:
        raise Failed(f"{peer.name} has no environment in {home()}: python -m benchmarks.serving.contenders")
    target = target_of(port, model, encoding, path=peer.path, input=peer.input)
    command = [python, "-m", f"benchmarks.peers.{peer.module}", "--port", str(port), "--model", model, *peer.options]
    env = environment(TMPDIR=str(where), **peer.env)
    with contextlib.ExitStack() as stack:
        with pinned(cores()[0]):
            (process,) = stack.enter_context(started(command, log=log, env=env))
        server = Server(process, target, peer.replica)
        try:
            answers(server, log)
            yield server
        finally:
            end(server)


@contextlib.contextmanager
def pinned(core: int) -> Iterator[None]:
    """What is started in the block runs on one core; this process is where it was after it."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def answers(server: Server, log: Path) -> None:
    """Ask until it answers rightly. Raises Failed."""
    target, deadline, seen = server.target, time.monotonic() + _START, "nothing"
    wire = exchange.requests(target, exchange.numbers(target, 1, 0))[0].wire
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            break
        try:
            with socket.create_connection((target.host, target.port), timeout=10) as asking:
                asking.sendall(wire)
                got, answer = b"", None
                while answer is None:
                    piece = asking.recv(65536)
                    if not piece:
                        raise http.client.IncompleteRead(got)
                    got += piece
                    answer = exchange.read(got, target.encoding)
            if answer.status == 200 and exchange.right(answer, None):
                return
            seen = got[:300].decode(errors="replace")
        except (OSError, http.client.HTTPException, exchange.Unreadable) as error:
            seen = repr(error)[:300]
        time.sleep(0.2)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
    raise Failed(f"{server.process.args!r} did not answer: {seen}\n{tail}")


def end(server: Server) -> None:
    """Ask it to end, wait, and kill what is left: Ray's processes are nobody's children when it has been killed."""
    doomed = server.family()
    if server.process.poll() is None:
        server.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.process.wait(10)
    for pid in doomed:
        if children(pid) or _called(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def install(names: Sequence[str]) -> None:
    """Make environments, one for each; what is there is brought up to date."""
    for name in names:
        python = home() / name / "bin" / "python"
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(home() / name)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *_TOO, *REQUIREMENTS[name]], check=True)
        print(name, "->", python, flush=True)


if __name__ == "__main__":
    install(sys.argv[1:] or list(REQUIREMENTS))
