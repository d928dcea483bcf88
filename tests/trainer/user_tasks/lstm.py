"""An LSTM that classifies words. Samples are strings, which `collate` encodes."""

import random
from dataclasses import dataclass

import torch
from pydantic import BaseModel
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

from ddp_trainer.task import RunEnv, Weighted

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
ENDINGS = ("ov", "sen", "ini")


class Settings(BaseModel):
    hidden: int = 8
    dropout: float = 0.2


def words(count: int, seed: int) -> list[tuple[str, str]]:
    """Return names of people, and their endings as classes."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        ending = draw.choice(ENDINGS)
        stem = "".join(draw.choices(ALPHABET, k=draw.randint(2, 7)))
        found.append((stem + ending, ending))
    return found


class Classifier(nn.Module):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(ALPHABET) + 1, 6, padding_idx=0)
        self.lstm = nn.LSTM(6, settings.hidden, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(settings.dropout)
        self.head = nn.Linear(2 * settings.hidden, len(ENDINGS))

    def forward(self, letters: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(
            self.embedding(letters), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        _, (last, _) = self.lstm(packed)
        scores: Tensor = self.head(self.dropout(torch.cat([last[0], last[1]], dim=1)))
        return scores


@dataclass
class Names:
    model: nn.Module
    train_data: list[tuple[str, str]]
    eval_data: list[tuple[str, str]]

    def collate(self, samples: list[tuple[str, str]]) -> tuple[Tensor, Tensor, Tensor]:
        letters = [torch.tensor([ALPHABET.index(c) + 1 for c in word]) for word, _ in samples]
        lengths = torch.tensor([len(word) for word in letters])
        classes = torch.tensor([ENDINGS.index(ending) for _, ending in samples])
        return pad_sequence(letters, batch_first=True), lengths, classes

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Weighted:
        letters, lengths, classes = batch
        scores = model(letters, lengths)
        return Weighted(nn.functional.cross_entropy(scores, classes, reduction="sum"), len(classes))


def build(settings: Settings, env: RunEnv) -> Names:
    return Names(Classifier(settings), words(44, seed=1), words(10, seed=2))
