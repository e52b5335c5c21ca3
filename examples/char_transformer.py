"""A small GPT that learns to write like Newton, one character at a time.

    python examples/char_transformer.py                        one process
    holdfast run --workers 2 examples/char_transformer.py      a crew; the same weights, byte for byte

AdamW, a cosine schedule that moves every step, clipping by global norm, dropout, tied weights.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset

import holdfast as hf
from holdfast.data.text import Alphabet, TextWindows

TEXT = Path(__file__).parent / "data" / "opticks.txt"
BLOCK_SIZE = 64


class Block(nn.Module):
    """Causal self-attention and a two-layer perceptron, each behind a layer norm and a residual."""

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        qkv = self.qkv(self.norm_1(x)).view(batch, time, 3, self.num_heads, width // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        x = x + self.drop(self.out(mixed.transpose(1, 2).reshape(batch, time, width)))
        return x + self.drop(self.mlp(self.norm_2(x)))


class GPT(nn.Module):
    """A decoder-only transformer whose output layer is its embedding."""

    def __init__(
        self, alphabet_size: int, *, width: int = 64, num_layers: int = 2, num_heads: int = 4, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(alphabet_size, width)
        self.position = nn.Embedding(BLOCK_SIZE, width)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, num_heads, dropout) for _ in range(num_layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, alphabet_size, bias=False)
        self.head.weight = self.embedding.weight
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.drop(self.embedding(ids) + self.position(places))
        return self.head(self.norm(self.blocks(x)))


@torch.no_grad()
def write(model: nn.Module, letters: Alphabet, prompt: str, length: int) -> str:
    """Continue the prompt by sampling; its own generator, so it disturbs no other randomness."""
    dice = torch.Generator().manual_seed(0)
    ids = torch.from_numpy(letters.encode(prompt))
    for _ in range(length):
        logits = model(ids[-BLOCK_SIZE:][None])[0, -1] / 0.8
        ids = torch.cat([ids, torch.multinomial(logits.softmax(0), 1, generator=dice)])
    return letters.decode(ids.tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small GPT on characters.")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32, help="global batch size, whatever the crew")
    parser.add_argument("--limit", type=int, metavar="N", help="use only the first N training windows")
    parser.add_argument("--data", type=Path, default=TEXT, metavar="FILE", help="a text in UTF-8")
    args = parser.parse_args()

    run = hf.join()
    text = args.data.read_text(encoding="utf-8")
    letters = Alphabet.of(text)
    ids = letters.encode(text)
    cut = len(ids) * 9 // 10  # the last tenth is never trained on
    train_set = TextWindows(ids[:cut], block_size=BLOCK_SIZE, stride=BLOCK_SIZE // 4)
    test_set = TextWindows(ids[cut:], block_size=BLOCK_SIZE, stride=BLOCK_SIZE)
    if args.limit is not None:
        train_set = Subset(train_set, range(min(args.limit, len(train_set))))
    loader = DataLoader(train_set, batch_size=args.batch, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=128)

    model = GPT(len(letters))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs * len(loader), eta_min=1e-4)
    model, optimizer, schedule, loader = run.prepare(model, optimizer, schedule, loader)

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x).flatten(0, 1), y.flatten())

    def measure(x: Tensor, y: Tensor) -> dict[str, float]:
        return {"loss": loss_of(x, y).item()}

    for epoch in run.epochs(args.epochs):
        model.train()
        for step in run.steps(loader):
            for x, y in step:
                loss_of(x, y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # the whole batch's gradient, in every worker
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()

        model.eval()
        scores = run.evaluate(measure, test_loader)
        if run.lead:
            print(f"epoch {epoch + 1}: test loss {scores['loss']:.4f} nats a character", flush=True)

    if run.lead:
        model.eval()
        print(write(model, letters, "By the Rays of Light", length=300), flush=True)


if __name__ == "__main__":
    main()
