"""A small task without mistakes."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ddp_trainer.task import Weighted


class Net(nn.Module):
    def __init__(self, middle: nn.Module | None = None) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 8), nn.Linear(8, 3)
        self.middle = middle or nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.outer(self.middle(self.inner(x)))
        return scores


class Samples(torch.utils.data.Dataset[Any]):
    def __init__(
        self, change: Callable[[Tensor, int], Any] = lambda x, _: x, size: int = 40
    ) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(size, 4, generator=generator)
        self.y = torch.randint(3, (size,), generator=generator)
        self.change = change

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return self.change(self.x[index], index), self.y[index]


class Good:
    def __init__(self) -> None:
        self.model: nn.Module = Net()
        self.train_data: Any = Samples()
        self.eval_data: Any = None

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return Weighted(total(model, batch), len(batch[1]))


def total(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1], reduction="sum")
