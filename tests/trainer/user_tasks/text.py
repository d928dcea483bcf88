"""A language model on texts of different lengths, compiled by torch.compile."""

from collections.abc import Sequence
from types import SimpleNamespace

import torch
from pydantic import BaseModel
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ddp_trainer.task import RunEnv, Weighted

LETTERS = 12


class Settings(BaseModel):
    width: int = 8


class Causal(nn.Module):
    """A causal convolution and a mixing layer, with a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.near = nn.Conv1d(width, width, 3)
        self.mix = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        before = nn.functional.pad(self.norm(x).mT, (2, 0))
        mixed: Tensor = self.mix(self.near(before).mT)
        return x + mixed


class Language(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(LETTERS, width)
        self.blocks = nn.ModuleList(Causal(width) for _ in range(2))
        self.head = nn.Linear(width, LETTERS)

    def forward(self, text: Tensor) -> Tensor:
        x = self.embedding(text)
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(x)
        return scores


def texts(count: int, seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(4, 24, (count,), generator=generator).tolist()
    return [
        torch.randint(1, LETTERS, (n,), generator=generator).sort()[0].tolist() for n in lengths
    ]


def collate(samples: Sequence[list[int]]) -> Tensor:
    """Pad with 0 to the longest text of the batch."""
    rows = [torch.tensor(sample) for sample in samples]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


def loss(model: nn.Module, batch: Tensor) -> Weighted:
    scores, targets = model(batch[:, :-1]), batch[:, 1:]
    total = cross_entropy(scores.mT, targets, ignore_index=0, reduction="sum")
    return Weighted(total, (targets != 0).sum())


def build(settings: Settings, env: RunEnv) -> SimpleNamespace:
    return SimpleNamespace(
        model=Language(settings.width),
        train_data=texts(44, seed=1),
        eval_data=texts(10, seed=2),
        collate=collate,
        loss=loss,
    )
