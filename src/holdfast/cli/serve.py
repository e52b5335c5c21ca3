"""`holdfast serve MODEL...`: an endpoint for a model on disk, or for what a run has learned."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from holdfast.cli.options import Parser
from holdfast.errors import UsageError
from holdfast.observe.directory import RunDirectory, default_path, host
from holdfast.quantities import Duration, Size
from holdfast.serve.options import ServeOptions

__all__ = ["main"]

_EPILOG = """\
MODEL is a folder that `holdfast export` has made (its newest version is served, and newer ones as they appear), one
version in it (DIR/3), or a run's directory.

    holdfast export runs/mine --to models/mine
    holdfast serve models/mine --slo 50ms
    curl -d '{"x": [[...]]}' http://127.0.0.1:PORT/predict"""


def main(argv: Sequence[str]) -> int:
    """Serve until a signal ends it."""
    options = _options(_parser().parse(argv))
    try:
        import httptools  # noqa: F401
        import uvloop
    except ImportError as error:
        missing = f"{error.name} is missing, which holdfast serve needs: pip install 'holdfast[serve]'."
        raise UsageError(missing) from None
    from holdfast.serve.door.exposure import check_exposure
    from holdfast.serve.door.server import Server

    check_exposure(options)

    def say(sentence: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # whoever has read it is gone; it is to be ended all the same
            print(f"holdfast: {sentence}", file=sys.stderr, flush=True)

    path = options.directory or default_path(f"serve-{options.name or options.models[0].name}", time.time())
    with RunDirectory.create(path, complain=say, unique=options.directory is None) as directory:
        record = {"run": f"{path.name}-{secrets.token_hex(4)}", "pid": os.getpid(), "host": host(),
                  "started": time.time(), "argv": sys.argv, "scratch": directory.scratch}  # fmt: skip
        directory.begin(msgspec.json.encode(record).decode() + "\n")

        def ready(addresses: dict[str, str]) -> None:
            directory.write("addresses.json", msgspec.json.encode(addresses).decode() + "\n")
            for what, address in addresses.items():
                print(f"{what:<8} {address}", flush=True)

        server = Server(options, directory.path, directory.scratch, say)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(server.run(ready))
    return 0


def _parser() -> Parser:
    it = Parser("serve", "Answer requests with a model.", _EPILOG)
    it.add_argument("models", nargs="+", metavar="MODEL", help="a model's folder, one version in it, or a run")
    it.add_argument("--name", default="", help="under which clients ask for it; by default the model's own")
    it.add_argument("--replicas", default="1", metavar="N", help="processes that compute (default 1); MIN:MAX: as many "
                    "as the requests ask for")  # fmt: skip
    it.add_argument("--slo", default="50ms", metavar="TIME", help="within which nearly all answers are to be given; "
                    "batches follow from it (default 50ms)")  # fmt: skip
    it.add_argument("--host", default="127.0.0.1", help="address to listen at (default 127.0.0.1)")
    it.add_argument("--port", type=int, default=0, metavar="P", help="of HTTP; by default the system chooses one")
    it.add_argument("--grpc-port", type=int, default=0, metavar="P", help="of gRPC; -1 for none")
    it.add_argument("--token-file", type=Path, metavar="FILE", help="clients have to show the token in it; made where "
                    "there is none")  # fmt: skip
    it.add_argument("--certificate", type=Path, metavar="FILE", help="for TLS, as PEM")
    it.add_argument("--key", type=Path, metavar="FILE", help="of the certificate")
    it.add_argument("--admin-port", type=int, metavar="P", help="of the control plane (load, unload); off without it")
    it.add_argument("--admin-grpc-port", type=int, metavar="P", help="of the same over gRPC; off without it")
    it.add_argument("--admin-token-file", type=Path, metavar="FILE", help="its own token")
    it.add_argument("--metrics-port", type=int, metavar="P", help="of /metrics, apart from all else")
    it.add_argument("--listen", default="", metavar="ADDRESS[:PORT]", help="let other machines compute for this server "
                    "(`holdfast replica`); it says how, and makes the secret they need")  # fmt: skip
    it.add_argument("--machine-token-file", type=Path, metavar="FILE", help="that secret, instead of a new one")
    it.add_argument("--tls", action="store_true", help="between machines")
    it.add_argument("--here", type=int, metavar="K", help="replicas that this machine has room for, where others "
                    "compute, too (default: one per CPU; with --on ray: 0)")  # fmt: skip
    it.add_argument("--on", default="local", choices=("local", "ray"), help="who starts replicas: this machine, or a "
                    "Ray cluster (its address: RAY_ADDRESS)")  # fmt: skip
    it.add_argument("--hosts", type=int, default=1, metavar="H", help="with --on ray: nodes to have replicas on; each "
                    "has room for its share of --replicas, --threads CPUs each (default 1)")  # fmt: skip
    it.add_argument("--log-requests", action="store_true", help="write every request to DIR/requests.jsonl, not only "
                    "those that failed, were refused or were slow")  # fmt: skip
    it.add_argument("--threads", type=int, default=1, metavar="T", help="of torch, in each replica (default 1)")
    it.add_argument("--max-batch", type=int, default=256, metavar="N", help="items computed together at the most")
    it.add_argument("--max-body", default="64MiB", metavar="SIZE", help="of a request (default 64MiB)")
    it.add_argument("--memory", default="", metavar="SIZE", help="that a replica may have")
    it.add_argument("--hang", default="10s", metavar="TIME", help="after which a batch is given up (default 10s)")
    it.add_argument("--prove", default="10s", metavar="TIME", help="for which the version before a new one is kept, to "
                    "go back to (default 10s)")  # fmt: skip
    it.add_argument("--drain", default="30s", metavar="TIME", help="for which requests are answered at the end")
    it.add_argument("--dir", type=Path, metavar="DIR", help="for logs and addresses (default runs/serve-...)")
    return it


def _options(given: argparse.Namespace) -> ServeOptions:
    from holdfast.transport.auth import token

    replicas, most_replicas = _replicas(given.replicas)
    for name, least in (("threads", 1), ("max_batch", 1), ("hosts", 1)):
        if getattr(given, name) < least:
            raise UsageError(f"--{name.replace('_', '-')} {getattr(given, name)}: must be at least {least}.")
    if given.name and len(given.models) > 1:
        raise UsageError(f"--name {given.name}: there are {len(given.models)} models. Each has its own name then.")
    if given.here is not None and given.here < 0:
        raise UsageError(f"--here {given.here}: must be 0 or more.")
    elsewhere = bool(given.listen) or given.on != "local"
    for option, value in (("--here", given.here is not None), ("--tls", given.tls), ("--machine-token-file",
                          given.machine_token_file is not None)):  # fmt: skip
        if value and not elsewhere:
            raise UsageError(f"{option} is about other machines, and there are none without --listen or --on ray.")
    if given.hosts > 1 and given.on == "local":
        raise UsageError(f"--hosts {given.hosts} needs --on ray: nobody else starts anything on other machines.")
    if (given.certificate is None) != (given.key is None):
        raise UsageError("--certificate and --key go together: give both for TLS, or none.")

    def secret(path: Path | None) -> str | None:
        if path is None:
            return None
        if not path.exists():
            token.write(path, token.make())
        return token.check(token.read_private(path), str(path))

    return ServeOptions(
        models=tuple(Path(model) for model in given.models), name=given.name, replicas=replicas,
        most_replicas=most_replicas, listen=given.listen, machine_secret=given.machine_token_file, tls=given.tls,
        here=given.here, on=given.on, hosts=given.hosts,
        objective=Duration(given.slo).seconds, host=given.host, port=given.port,
        grpc_port=None if given.grpc_port < 0 else given.grpc_port, token=secret(given.token_file),
        certificate=given.certificate, key=given.key, admin_port=given.admin_port,
        admin_grpc_port=given.admin_grpc_port, admin_token=secret(given.admin_token_file),
        metrics_port=given.metrics_port, threads=given.threads,
        batch=given.max_batch, body=Size(given.max_body).bytes, memory=Size(given.memory).bytes if given.memory else 0,
        hang=Duration(given.hang).seconds, prove=Duration(given.prove).seconds, drain=Duration(given.drain).seconds,
        log_requests=given.log_requests, directory=given.dir,
    )  # fmt: skip


def _replicas(text: str) -> tuple[int, int]:
    """The least and the most; the most is 0 where the number is to stay."""
    least, colon, most = text.partition(":")
    numbers = [int(part) if part.isascii() and part.isdigit() and len(part) < 5 else 0 for part in (least, most or "1")]
    if numbers[0] < 1 or numbers[1] < 1 or (colon and (not most or numbers[1] < numbers[0])):
        raise UsageError(
            f"--replicas {text}: write how many, such as --replicas 2, or the least and the most, such as --replicas "
            "1:8. At least one is needed."
        )
    return numbers[0], numbers[1] if colon else 0
