"""Matrix factorisation on row-sparse keys: no neural net, no gradient of a library, no training loop of Holdfast.

    python examples/matrix_factorisation.py                             two workers, two servers
    python examples/matrix_factorisation.py --kill 3 --plot curve.png   kill a server in epoch 3, draw the error

Ratings of users for items are modelled as the product of a row for the user and a row for the item. Each worker has a
share of the ratings. For a batch of them it pulls the rows it needs, computes what should change, and pushes that;
workers do not wait for each other within an epoch. The servers run `adagrad` below. It keeps its state in the last
column of the table it belongs to, so the state survives a server's death as the values do.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import time
from pathlib import Path

import torch
from torch import Tensor

from holdfast import store

USERS, ITEMS, RANK, RATINGS = 2000, 1000, 8, 120_000
TABLES = ["users", "items"]  # the keys
RATE, DECAY, BATCH = 0.3, 0.01, 500
UNSEEN = RATINGS // 10  # ratings that no worker learns from
NOISE = 0.3  # standard deviation: no model can do better on new ratings


def adagrad(key: str, stored: Tensor, pushed: Tensor) -> None:
    """The handler: rows of weights, and in the last column the mean square of all that was pushed to the row."""
    step = pushed[:, :-1]
    stored[:, -1] += step.square().mean(1)
    stored[:, :-1] -= RATE * step / (stored[:, -1:] + 1e-8).sqrt()


def ratings(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Users, items and ratings: a product of two thin matrices, with noise. Some items are rated more than others."""
    dice = torch.Generator().manual_seed(seed)
    left, right = torch.randn(USERS, RANK, generator=dice), torch.randn(ITEMS, RANK, generator=dice)
    users = torch.randint(USERS, (RATINGS,), generator=dice)
    items = (ITEMS * torch.rand(RATINGS, generator=dice) ** 2).long()
    noise = NOISE * torch.randn(RATINGS, generator=dice)
    return users, items, (left[users] * right[items]).sum(1) / RANK**0.5 + noise


def first_table(rows: int, seed: int) -> Tensor:
    """Small random weights, and a column of zeros."""
    weights = 0.3 * torch.randn(rows, RANK, generator=torch.Generator().manual_seed(seed))
    return torch.cat([weights, torch.zeros(rows, 1)], dim=1)


def learn(mine: store.Store, users: Tensor, items: Tensor, truth: Tensor) -> None:
    """One batch: pull rows, push what should change in them."""
    left, right = (rows[:, :-1] for rows in mine.pull(TABLES, rows=[users, items]).result())
    error = ((left * right).sum(1) - truth)[:, None]
    zeros = torch.zeros(len(users), 1)  # the column of the state is the handler's
    changes = [
        store.Rows(users, torch.cat([error * right + DECAY * left, zeros], 1)),
        store.Rows(items, torch.cat([error * left + DECAY * right, zeros], 1)),
    ]
    mine.push(TABLES, changes)


def rmse(mine: store.Store, users: Tensor, items: Tensor, truth: Tensor) -> float:
    """Root of the mean squared error, with the tables as they are published now."""
    left, right = (table[:, :-1] for table in mine.pull(TABLES).result())
    return float(((left[users] * right[items]).sum(1) - truth).square().mean().sqrt())


def work(address: str, worker: int, workers: int, epochs: int) -> None:
    """What each worker process does."""
    torch.set_num_threads(1)
    users, items, truth = ratings()
    with store.connect(address, f"worker-{worker}") as mine:
        mine.init(TABLES, [first_table(USERS, 1), first_table(ITEMS, 2)], spread=True).wait()
        mine.barrier("evaluate").wait()
        for epoch in range(epochs):
            mine.barrier("learn").wait()
            dice = torch.Generator().manual_seed(epoch)  # the same order in all workers; each takes its batches of it
            order = UNSEEN + torch.randperm(RATINGS - UNSEEN, generator=dice)
            for batch in order.split(BATCH)[worker::workers]:
                learn(mine, users[batch], items[batch], truth[batch])
            mine.wait()
            mine.barrier("evaluate").wait()


def watch(mine: store.Store, group: store.Group, epochs: int, kill: int) -> list[float]:
    """What the process that started all this does: look at the error between epochs, and kill a server if asked to."""
    users, items, truth = (column[:UNSEEN] for column in ratings())
    curve = []
    for epoch in range(epochs + 1):
        mine.barrier("evaluate").wait(timeout=300.0)
        curve.append(rmse(mine, users, items, truth))
        print(f"epoch {epoch}: error {curve[-1]:.3f}", flush=True)
        if epoch < epochs:
            mine.barrier("learn").wait()
        if epoch + 1 == kill:
            time.sleep(0.1)  # into the middle of it
            os.kill(group.pids[0], signal.SIGKILL)
            print(f"epoch {kill}: killed server 0", flush=True)
    return curve


def plot(curve: list[float], path: Path, killed: int) -> None:
    """Draw the error curve (needs matplotlib)."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 3.6), layout="constrained")
    axes.plot(curve, marker="o", label="RMSE on ratings that no worker has seen")
    axes.axhline(NOISE, color="gray", linestyle=":", label=f"noise of the ratings ({NOISE})")
    if killed:
        axes.axvline(killed - 0.5, color="crimson", linestyle="--", label="kill -9 of server 0")
    axes.set(xlabel="epoch", ylabel="error", title="Matrix factorisation on row-sparse keys", ylim=(0, None))
    axes.legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--servers", type=int, default=2)
    arguments.add_argument("--epochs", type=int, default=8)
    arguments.add_argument("--kill", type=int, default=0, metavar="EPOCH", help="kill a server in this epoch")
    arguments.add_argument("--plot", type=Path, metavar="FILE", help="draw the error curve")
    options = arguments.parse_args()
    spawn = multiprocessing.get_context("spawn")
    with store.local(servers=options.servers, clients=options.workers + 1, handler=adagrad) as group:
        shares = [(group.address, worker, options.workers, options.epochs) for worker in range(options.workers)]
        children = [spawn.Process(target=work, args=share, daemon=True) for share in shares]
        for child in children:
            child.start()
        with group.connect("watcher") as mine:
            curve = watch(mine, group, options.epochs, options.kill)
        for child in children:
            child.join()
        print(f"error {curve[-1]:.3f}, noise {NOISE}, servers replaced {group.replaced}")
    if options.plot:
        plot(curve, options.plot, options.kill)


if __name__ == "__main__":
    main()
