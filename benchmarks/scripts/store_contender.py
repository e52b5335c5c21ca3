"""One contender of the store's benchmark: push + apply + pull of a tensor, as often as it is asked to.

    python store_contender.py NAME      NAME: holdfast, buffer, copied, torch_rpc, ray or grpc

It says "ready", then reads lines "NUMBERS TIMES" and answers each with the seconds of one round trip (the mean of
TIMES), until its input ends. What the server does is real: w -= 0.1 * g. All contenders have one client and one server
process on this host, each with one thread; the pushed tensor starts in the client's private memory.

* holdfast: the result is a view of the published version; copied: it is copied into a private tensor, too;
  buffer: the gradient already lies where the servers see it (`Store.buffer`).
* torch_rpc: `rpc_sync` with a tensor. ray: an actor, arrays in and out through its object store.
* grpc: raw bytes in one unary call, without limits on their size.

The last of its answers before the end is checked against the true value, by "check NUMBERS".
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

#: Round trips of one contender: a tensor goes in, what comes out is whatever the contender gives.
Trip = Callable[[torch.Tensor], Any]
RATE = 0.1
STATE: dict[int, torch.Tensor] = {}


def descend(key: str, stored: torch.Tensor, pushed: torch.Tensor, new: torch.Tensor) -> None:
    """The handler of Holdfast's server."""
    torch.sub(stored, pushed, alpha=RATE, out=new)


# As `holdfast.store.elementwise_into` marks it; peers have an environment without Holdfast.
descend.elementwise = descend.into = True  # type: ignore[attr-defined]


@contextlib.contextmanager
def holdfast(how: str) -> Iterator[Trip]:
    from holdfast import store

    handler = f"{os.path.abspath(__file__)}:descend"
    with store.local(servers=1, handler=handler) as group, group.connect("client") as mine:
        known: dict[int, Any] = {}

        def trip(gradient: torch.Tensor) -> torch.Tensor:
            key = str(gradient.numel())
            if gradient.numel() not in known:
                mine.init(key, torch.zeros_like(gradient)).wait()
                known[gradient.numel()] = mine.buffer(key).copy_(gradient), torch.empty_like(gradient)
            buffer, private = known[gradient.numel()]
            if how == "buffer":
                return mine.push_pull(key, buffer).result()
            return mine.push_pull(key, gradient, out=private if how == "copied" else None).result()

        yield trip


def _apply(gradient: torch.Tensor) -> torch.Tensor:
    """What the servers of torch RPC and gRPC do."""
    value = STATE.setdefault(gradient.numel(), torch.zeros_like(gradient))
    return value.sub_(gradient, alpha=RATE)


def _rpc_server(port: int) -> None:
    import torch.distributed.rpc as rpc

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    rpc.init_rpc("server", rank=1, world_size=2)
    rpc.shutdown()


@contextlib.contextmanager
def torch_rpc() -> Iterator[Trip]:
    import socket

    import torch.distributed.rpc as rpc

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = multiprocessing.get_context("spawn").Process(target=_rpc_server, args=(port,))
    server.start()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    rpc.init_rpc("client", rank=0, world_size=2)
    yield lambda gradient: rpc.rpc_sync("server", _apply, (gradient,))
    rpc.shutdown()
    server.join()


@contextlib.contextmanager
def ray() -> Iterator[Trip]:
    import ray as ray_

    class Server:
        def __init__(self) -> None:
            torch.set_num_threads(1)
            self.state: dict[int, torch.Tensor] = {}

        def push_pull(self, gradient: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            value = self.state.setdefault(gradient.size, torch.zeros(gradient.size))
            array: np.ndarray[Any, Any] = value.sub_(torch.from_numpy(gradient), alpha=RATE).numpy()
            return array

    ray_.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    server = ray_.remote(Server).remote()
    yield lambda gradient: ray_.get(server.push_pull.remote(gradient.numpy()))
    ray_.shutdown()


_NO_LIMIT = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def _grpc_server(ready: Any) -> None:
    from concurrent import futures

    import grpc as grpc_

    torch.set_num_threads(1)

    def push_pull(request: bytes, context: object) -> bytes:
        return _apply(torch.frombuffer(bytearray(request), dtype=torch.float32)).numpy().tobytes()

    server = grpc_.server(futures.ThreadPoolExecutor(4), options=_NO_LIMIT)
    handler = grpc_.unary_unary_rpc_method_handler(push_pull)
    server.add_generic_rpc_handlers([grpc_.method_handlers_generic_handler("ps", {"push_pull": handler})])
    ready.put(server.add_insecure_port("127.0.0.1:0"))
    server.start()
    server.wait_for_termination()


@contextlib.contextmanager
def grpc() -> Iterator[Trip]:
    import grpc as grpc_

    spawn = multiprocessing.get_context("spawn")
    ready = spawn.Queue()
    server = spawn.Process(target=_grpc_server, args=(ready,), daemon=True)
    server.start()
    with grpc_.insecure_channel(f"127.0.0.1:{ready.get()}", options=_NO_LIMIT) as channel:
        call = channel.unary_unary("/ps/push_pull")
        yield lambda gradient: np.frombuffer(call(gradient.numpy().tobytes()), "f4")
    server.kill()
    server.join()


def main(name: str) -> None:
    torch.set_num_threads(1)
    contenders: dict[str, Callable[[], contextlib.AbstractContextManager[Trip]]] = {
        **{how: lambda how=how: holdfast(how) for how in ("holdfast", "buffer", "copied")},  # type: ignore[misc]
        "torch_rpc": torch_rpc, "ray": ray, "grpc": grpc,
    }  # fmt: skip
    with contenders[name]() as trip:
        print("ready", flush=True)
        gradients: dict[int, torch.Tensor] = {}
        trips: dict[int, int] = {}
        for line in sys.stdin:
            word, number = line.split()[-2:]
            if word == "check":
                size = int(number)
                # As many steps of -0.1 g, rounded each time: near enough shows that all of them were made.
                got = torch.as_tensor(np.asarray(trip(gradients[size])))
                trips[size] += 1
                print(torch.allclose(got, -RATE * trips[size] * gradients[size], rtol=1e-3, atol=1e-3), flush=True)
                continue
            size, times = int(word), int(number)
            gradient = gradients.setdefault(size, torch.randn(size, generator=torch.Generator().manual_seed(0)))
            trip(gradient)
            start = time.perf_counter()
            for _ in range(times):
                trip(gradient)
            print((time.perf_counter() - start) / times, flush=True)
            trips[size] = trips.get(size, 0) + times + 1


if __name__ == "__main__":
    main(sys.argv[1])
