"""Contrastive learning with a queue of keys and an encoder that follows by momentum (MoCo)."""

import copy

import torch
from pydantic import BaseModel
from torch import Tensor, nn
from torch.nn import functional

from ddp_trainer.task import RunEnv, Update, Weighted


class Settings(BaseModel):
    queue: int = 24
    augmentation: float = 0.1


class Views(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Two random views of each sample."""

    def __init__(self, count: int, seed: int, augmentation: float) -> None:
        self.samples = torch.randn(count, 10, generator=torch.Generator().manual_seed(seed))
        self.augmentation = augmentation

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.view(index), self.view(index)

    def view(self, index: int) -> Tensor:
        return self.samples[index] + self.augmentation * torch.randn(10)


class MoCo(nn.Module):
    queue: Tensor
    place: Tensor

    def __init__(self, queue: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 8))
        self.follower = copy.deepcopy(self.encoder).requires_grad_(False)
        self.register_buffer("queue", functional.normalize(torch.randn(queue, 8), dim=1))
        self.register_buffer("place", torch.zeros((), dtype=torch.long))

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        """Return the scores of the right key and of those in the queue."""
        query = functional.normalize(self.encoder(one), dim=1)
        with torch.no_grad():
            key = functional.normalize(self.follower(two), dim=1)
        scores = torch.cat(
            [(query * key).sum(1, keepdim=True), query @ self.queue.T.clone()], dim=1
        )
        if self.training:
            self.enqueue(key)
        return scores / 0.2

    @torch.no_grad()
    def enqueue(self, keys: Tensor) -> None:
        places = (self.place + torch.arange(len(keys), device=keys.device)) % len(self.queue)
        self.queue[places] = keys
        self.place.copy_((self.place + len(keys)) % len(self.queue))


class Contrast:
    def __init__(self, settings: Settings) -> None:
        self.model: nn.Module = MoCo(settings.queue)
        self.train_data = Views(44, 1, settings.augmentation)
        self.eval_data = None

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Weighted:
        scores = model(*batch)
        right = torch.zeros(len(scores), dtype=torch.long, device=scores.device)
        return Weighted(functional.cross_entropy(scores, right, reduction="sum"), len(scores))

    @torch.no_grad()
    def after_update(self, update: Update) -> None:
        model = update.model
        encoder, follower = model.get_submodule("encoder"), model.get_submodule("follower")
        for own, new in zip(follower.parameters(), encoder.parameters(), strict=True):
            own.lerp_(new, 0.05)


def build(settings: Settings, env: RunEnv) -> Contrast:
    return Contrast(settings)
