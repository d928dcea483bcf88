"""LoRA: a frozen transformer with a few trained weights of low rank."""

from types import SimpleNamespace

import torch
from pydantic import BaseModel
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from ddp_trainer.task import RunEnv, Weighted

WORDS = 16


class Settings(BaseModel):
    width: int = 16
    rank: int = 1


class Lora(nn.Module):
    """A frozen linear layer plus a product of two thin matrices."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.base(x)
        return output + x @ self.down.T @ self.up.T


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv: nn.Module = nn.Linear(width, 3 * width)
        self.out: nn.Module = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(self.norm(x)).chunk(3, dim=-1)
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        return x + torch.tanh(self.out(mixed))


class Language(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(3))
        self.head = nn.Linear(width, WORDS, bias=False)

    def forward(self, text: Tensor) -> Tensor:
        x = self.embedding(text)
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(x)
        return scores


def adapted(model: Language, rank: int) -> Language:
    """Freeze the model, and replace the layers of its blocks by layers with trained weights."""
    model.requires_grad_(False)
    for block in model.blocks:
        for name, layer in list(block.named_children()):
            if isinstance(layer, nn.Linear):
                setattr(block, name, Lora(layer, rank))
    return model


def loss(model: nn.Module, batch: Tensor) -> Weighted:
    scores, targets = model(batch[:, :-1]), batch[:, 1:]
    total = cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="sum")
    return Weighted(total, targets.numel())


def build(settings: Settings, env: RunEnv) -> SimpleNamespace:
    generator = torch.Generator().manual_seed(1)
    texts = torch.randint(0, WORDS, (54, 9), generator=generator).sort(dim=1)[0]
    train, test = texts.split([44, 10])
    model = adapted(Language(settings.width), settings.rank)
    return SimpleNamespace(model=model, train_data=train, eval_data=test, loss=loss)
