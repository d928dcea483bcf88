"""A small character-level GPT, trained on the topics of Python's language reference."""

import math
from pydoc_data.topics import topics
from typing import cast

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from ddp_trainer.errors import InputError
from ddp_trainer.task import RunEnv, Weighted

EVAL_DIVISOR = 10
"""Divisor that gives the validation data: the last 1/EVAL_DIVISOR of the text."""


class GptConfig(BaseModel):
    """Settings of the GPT task."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    context: int = Field(default=64, ge=8)
    """Context length, in characters."""
    layers: int = Field(default=2, ge=1)
    """Number of transformer blocks."""
    heads: int = Field(default=4, ge=1)
    """Number of attention heads per block. It must divide `width`."""
    width: int = Field(default=64, ge=8)
    """Size of the embedding of a character."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Fraction of activations that dropout sets to zero in training."""
    max_chars: int | None = Field(default=None, ge=1000)
    """Number of characters of the text to use. Default: all."""

    @model_validator(mode="after")
    def _heads_divide(self) -> "GptConfig":
        if self.width % self.heads:
            raise ValueError(f"width {self.width} must be a multiple of heads {self.heads}")
        return self


class Windows(torch.utils.data.Dataset[Tensor]):
    """Data set of windows of `context` + 1 characters. Each character is predicted once."""

    def __init__(self, codes: Tensor, context: int) -> None:
        self.codes = codes
        self.context = context

    def __len__(self) -> int:
        return (len(self.codes) - 1) // self.context

    def __getitem__(self, index: int) -> Tensor:
        begin = index * self.context
        return self.codes[begin : begin + self.context + 1]


class Block(nn.Module):
    """Causal self-attention and a feed-forward network, each after a LayerNorm as in GPT-2."""

    def __init__(self, cfg: GptConfig) -> None:
        super().__init__()
        self.heads = cfg.heads
        self.dropout = cfg.dropout
        self.norm1 = nn.LayerNorm(cfg.width)
        self.qkv = nn.Linear(cfg.width, 3 * cfg.width)
        self.project = nn.Linear(cfg.width, cfg.width)
        self.norm2 = nn.LayerNorm(cfg.width)
        self.expand = nn.Linear(cfg.width, 4 * cfg.width)
        self.shrink = nn.Linear(4 * cfg.width, cfg.width)
        self.drop = nn.Dropout(cfg.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map a tensor of shape (n, t, width) to one of the same shape."""
        n, t, width = x.shape
        parts = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        attended = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, is_causal=True
        )
        x = x + self.drop(self.project(attended.transpose(1, 2).reshape(n, t, width)))
        y = self.drop(self.shrink(functional.gelu(self.expand(self.norm2(x)))))
        return x + cast("Tensor", y)


class Gpt(nn.Module):
    """GPT model whose output layer shares its weights with the embedding."""

    def __init__(self, cfg: GptConfig, symbols: int) -> None:
        super().__init__()
        self.symbol = nn.Embedding(symbols, cfg.width)
        self.place = nn.Embedding(cfg.context, cfg.width)
        self.drop = nn.Dropout(cfg.dropout)
        self.blocks = nn.Sequential(*(Block(cfg) for _ in range(cfg.layers)))
        self.norm = nn.LayerNorm(cfg.width)
        self.head = nn.Linear(cfg.width, symbols, bias=False)
        self.apply(_initialise)
        for name, param in self.named_parameters():
            if name.endswith(("project.weight", "shrink.weight")):
                # Residual contributions add up over the layers, so these weights start smaller.
                nn.init.normal_(param, std=0.02 / math.sqrt(2 * cfg.layers))
        self.head.weight = self.symbol.weight

    def forward(self, codes: Tensor) -> Tensor:
        """Map codes (n, t) to scores (n, t, symbols) of the next character."""
        places = torch.arange(codes.shape[1], device=codes.device)
        x = self.blocks(self.drop(self.symbol(codes) + self.place(places)))
        scores: Tensor = self.head(self.norm(x))
        return scores


class GptTask:
    """Next-character prediction. Loss and metric are in nats per character."""

    def __init__(self, cfg: GptConfig) -> None:
        text = _text()[: cfg.max_chars]
        symbols = sorted(set(text))
        number = {symbol: code for code, symbol in enumerate(symbols)}
        codes = torch.tensor([number[symbol] for symbol in text])
        border = len(codes) - len(codes) // EVAL_DIVISOR
        if len(codes) // EVAL_DIVISOR <= cfg.context:
            raise InputError(
                f"config: task.context {cfg.context} must be less than the"
                f" {len(codes) // EVAL_DIVISOR} characters of validation data"
            )
        self.train_data = Windows(codes[:border], cfg.context)
        self.eval_data = Windows(codes[border:], cfg.context)
        self.model: nn.Module = Gpt(cfg, len(symbols))
        self.flops_per_sample = _flops(self.model, cfg)

    def loss(self, model: nn.Module, batch: Tensor) -> Weighted:
        """Return the cross-entropy summed over characters. The batch has shape (n, context + 1)."""
        codes, following = batch[:, :-1], batch[:, 1:]
        scores = model(codes).flatten(0, 1)
        total = functional.cross_entropy(scores, following.flatten(), reduction="sum")
        return Weighted(total, following.numel())


def build(cfg: GptConfig, env: RunEnv) -> GptTask:  # noqa: ARG001 - part of the task interface
    """Build the task."""
    return GptTask(cfg)


def _flops(model: nn.Module, cfg: GptConfig) -> float:
    """Return FLOPs per window, forward and backward (Chowdhery et al. 2022, appendix B)."""
    weights = sum(param.numel() for param in model.parameters()) - cfg.context * cfg.width
    attention = 12 * cfg.layers * cfg.width * cfg.context
    return float(cfg.context * (6 * weights + attention))


def _text() -> str:
    """Return the topics without repeated paragraphs, so that validation text never occurs twice."""
    paragraphs: dict[str, str] = {}
    for name in sorted(topics):
        for paragraph in topics[name].split("\n\n"):
            paragraphs.setdefault(" ".join(paragraph.split()), paragraph)
    return "\n\n".join(paragraphs.values())


def _initialise(module: nn.Module) -> None:
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
