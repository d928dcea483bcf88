"""A small BERT: masked tokens with a weight each, and one matrix for embedding and output."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from pydantic import BaseModel
from torch import Tensor, nn
from torch.nn import functional

from ddp_trainer.task import RunEnv, Weighted

VOCABULARY = 20
PADDING, MASK = 0, 1
Sample = dict[str, Tensor]


class Settings(BaseModel):
    width: int = 8
    dropout: float = 0.1


def sentences(count: int, seed: int) -> list[Sample]:
    """Return sentences in which each token follows from the one before. Some tokens are masked."""
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for _ in range(count):
        length = int(torch.randint(5, 11, (), generator=generator))
        start = int(torch.randint(0, 18, (), generator=generator))
        labels = 2 + (start + 5 * torch.arange(length)) % (VOCABULARY - 2)
        hidden = torch.rand(length, generator=generator) < 0.3
        hidden[0] = True
        rare = 1.0 + (labels % 3)
        samples.append(
            {
                "input_ids": labels.masked_fill(hidden, MASK),
                "labels": labels,
                "weights": torch.where(hidden, rare, 0.0),
            }
        )
    return samples


class Bert(nn.Module):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        width = settings.width
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(16, width)
        layer = nn.TransformerEncoderLayer(
            width, nhead=2, dim_feedforward=16, dropout=settings.dropout, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.decoder = nn.Linear(width, VOCABULARY)
        self.decoder.weight = self.embedding.weight

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        hidden = self.embedding(input_ids) + self.positions(places)
        hidden = self.encoder(hidden, src_key_padding_mask=~attention_mask)
        scores: Tensor = self.decoder(hidden)
        return scores


def collate(samples: Sequence[Sample]) -> Sample:
    batch = {
        key: nn.utils.rnn.pad_sequence([sample[key] for sample in samples], batch_first=True)
        for key in samples[0]
    }
    return {**batch, "attention_mask": batch["input_ids"] != PADDING}


@dataclass
class MaskedTokens:
    model: nn.Module
    train_data: list[Sample]
    eval_data: list[Sample]
    collate = staticmethod(collate)

    def loss(self, model: nn.Module, batch: Sample) -> Weighted:
        scores = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        each = functional.cross_entropy(scores.mT, batch["labels"], reduction="none")
        return Weighted((batch["weights"] * each).sum(), batch["weights"].sum())


def build(settings: Settings, env: RunEnv) -> MaskedTokens:
    return MaskedTokens(Bert(settings), sentences(44, seed=1), sentences(10, seed=2))
