"""A regression on rows of a log file, which worker processes read as a stream."""

import random
from collections.abc import Iterator
from types import SimpleNamespace

import torch
from pydantic import BaseModel
from torch import Tensor, nn
from torch.utils.data import IterableDataset, get_worker_info

from ddp_trainer.task import RunEnv, Weighted


class Settings(BaseModel):
    window: int = 8
    """Number of rows that are shuffled together."""


class Rows(IterableDataset[tuple[Tensor, Tensor]]):
    """The lines of a log, shuffled in a window with another order in each epoch.

    Each worker reads a part of the lines, as torch's documentation shows.
    """

    def __init__(self, lines: list[str], window: int) -> None:
        self.lines, self.window, self.epoch = lines, window, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        draw = random.Random(self.epoch)
        kept: list[str] = []
        info = get_worker_info()
        for line in self.lines[info.id :: info.num_workers] if info else self.lines:
            kept.append(line)
            if len(kept) >= self.window:
                yield self.parse(kept.pop(draw.randrange(len(kept))))
        draw.shuffle(kept)
        yield from map(self.parse, kept)

    def parse(self, line: str) -> tuple[Tensor, Tensor]:
        *values, target = map(float, line.split(","))
        return torch.tensor(values), torch.tensor(target)


def log(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    rows = [[draw.gauss(0, 1) for _ in range(5)] for _ in range(count)]
    return [",".join(f"{value:.4f}" for value in (*row, sum(row))) for row in rows]


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Weighted:
    values, target = batch
    return Weighted((model(values).squeeze(1) - target).square().sum(), len(target))


def build(settings: Settings, env: RunEnv) -> SimpleNamespace:
    return SimpleNamespace(
        model=nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 1)),
        train_data=Rows(log(44, seed=1), settings.window),
        eval_data=None,  # it would need worker processes of its own
        loss=loss,
    )
