"""The training script of the process tests: models with what is hard to keep exact, and one of several slices.

    train.py MODEL [--lanes L] [--epochs E] [--samples N] [--trace FILE] [--pace S] [--slow WORKER:FROM:TO:S]...
             [--slow-evaluation S] [--fetchers N] [--linger FILE] [--poison STEP:LANE:FILE] [--heavy WORKER:S]...
             [--mean] [--range] [--plain]

Its last step has 4 samples, so with more than 4 lanes some of them have none. With --trace, every unit
leaves a line, `step lane sample,sample,...`, *before* its gradient is handed over; the samples are those
that came with the batch, not those that somebody says should have come.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import holdfast as hf


class Numbered(Dataset):
    """Samples that know their number."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        return self.inputs[index], self.targets[index], index


def digits(split: str, size: int, count: int) -> Numbered:
    """Handwritten digits, blown up to `size` pixels."""
    some = hf.dataset("digits", split).head(count)
    images = torch.from_numpy(some.features)
    if size != images.shape[-1]:
        images = F.interpolate(images, size=(size, size), mode="nearest")
    return Numbered(images, torch.from_numpy(some.labels))


def sentences(count: int, length: int = 12, letters: int = 16) -> Numbered:
    """Letters that follow a rule, so that there is something to learn."""
    number, place = torch.arange(count)[:, None], torch.arange(length + 1)[None, :]
    text = (7 * number + place * (1 + number % 5)) % letters
    return Numbered(text[:, :-1], text[:, 1:])


class LeNet(nn.Sequential):
    """Conv 6 and 16 of 5x5, average pooling, dense 120/84/10."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.AvgPool2d(2),
            nn.Conv2d(6, 16, 5), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(),
            nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
        )  # fmt: skip


class Normed(nn.Sequential):
    """BatchNorm, whose buffers move, and dropout, which draws numbers."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.2),
            nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(),
            nn.Dropout(0.3), nn.Linear(16 * 16, 10),
        )  # fmt: skip


class Transformer(nn.Module):
    """Tied embeddings, two blocks, dropout."""

    def __init__(self, letters: int = 16, width: int = 32, length: int = 12) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(letters, width), nn.Embedding(length, width)
        block = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.1, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, letters, bias=False)
        nn.init.normal_(self.letter.weight, std=0.1)
        self.head.weight = self.letter.weight

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        hidden = self.letter(x) + self.place(torch.arange(x.shape[1]))
        return self.head(self.blocks(hidden, mask=mask, is_causal=True)).transpose(1, 2)


class Wide(nn.Sequential):
    """Parameters for several owners: 4.5 MB."""

    def __init__(self) -> None:
        super().__init__(
            nn.Flatten(), nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
        )


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=["lenet", "normed", "transformer", "wide"])
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=484)
    parser.add_argument("--trace", default="")
    parser.add_argument("--pace", type=float, default=0.0, help="seconds that a unit takes at least")
    parser.add_argument("--slow", action="append", default=[], help="WORKER:FROM:TO:SECONDS, more for these units")
    parser.add_argument("--slow-evaluation", type=float, default=0.0, help="seconds that a batch takes at least")
    parser.add_argument("--linger", default="", help="units take 0.1 s more until this file is there")
    parser.add_argument("--fetchers", type=int, default=0, help="processes of each worker that fetch samples")
    parser.add_argument("--poison", default="", help="see poison.py")
    parser.add_argument("--heavy", action="append", default=[], help="see heavy.py; for the wide model")
    parser.add_argument("--mean", action="store_true", help="after every loop, divide by the number of its batches")
    parser.add_argument("--range", action="store_true", help="in place of run.epochs")
    parser.add_argument("--plain", action="store_true", help="a plain loop; in relaxed modes there is no other")
    return parser.parse_args()


def main() -> None:
    args = options()
    run = hf.join(lanes=args.lanes, seed=7)
    args.plain = args.plain or not run.mode.exact
    steps = args.epochs * -(-args.samples // 32)
    scheduler = None
    if args.model == "transformer":
        data, test, model = sentences(args.samples), sentences(40), Transformer()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    elif args.model == "lenet":
        data, test, model = digits("train", 28, args.samples), digits("test", 28, 90), LeNet()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    elif args.model == "wide":
        from heavy import heavy

        data, test, model = digits("train", 8, args.samples), digits("test", 8, 90), Wide()
        optimizer = heavy(torch.optim.Adam, run.worker, args.heavy)(model.parameters(), lr=1e-4)
    else:
        data, test, model = digits("train", 8, args.samples), digits("test", 8, 90), Normed()
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loader = DataLoader(data, batch_size=32, shuffle=True, num_workers=args.fetchers)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    slow = [tuple(map(float, text.split(":"))) for text in args.slow]
    trace = os.open(args.trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if args.trace else -1

    def measure(x: Tensor, y: Tensor, _: Tensor) -> dict[str, Tensor]:
        time.sleep(args.slow_evaluation)
        out = model(x)
        return {"loss": F.cross_entropy(out, y), "accuracy": (out.argmax(1) == y).float().mean()}

    def unit(x: Tensor, y: Tensor, numbers: Tensor) -> Tensor:
        """What is done with a batch, up to its gradient."""
        if trace >= 0:
            step, lane, _ = run.unit
            os.write(trace, f"{step} {lane} {','.join(map(str, numbers.tolist()))}\n".encode())
        pause = args.pace + sum(s for who, a, b, s in slow if run.worker == who and a <= run.step < b)
        if args.linger and not os.path.exists(args.linger):
            pause += 0.1
        if pause:
            time.sleep(pause)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        if args.poison:
            from poison import poison

            poison(run, model, args.poison)
        return loss

    def by_steps() -> None:
        """A pass in turns, with code in all places of them."""
        for step in run.steps(loader):
            time.sleep(args.pace / 2)
            for batch in step:
                unit(*batch)
            time.sleep(args.pace / 2)
            if scheduler is not None:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(args.pace / 2)
            if scheduler is not None:
                scheduler.step()

    results: dict[str, float] = {}
    for _ in range(args.epochs) if args.range else run.epochs(args.epochs):
        model.train()
        batches = 0
        if not args.plain:
            by_steps()
        for x, y, numbers in loader if args.plain else ():
            batches += args.mean  # else a plain count, which a worker that comes late would have to keep
            loss = unit(x, y, numbers)
            if scheduler is not None:
                run.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            if scheduler is not None:
                scheduler.step()
        if args.mean:
            print(f"mean {float(loss) / batches:.6f}")
        model.eval()
        results = run.evaluate(measure, DataLoader(test, batch_size=10))
    digest = run.weights_sha256()
    if run.lead:
        print(f"evaluated {results['loss']!r} {results['accuracy']!r}")
        print(f"weights_sha256 {digest}", flush=True)


if __name__ == "__main__":
    main()
