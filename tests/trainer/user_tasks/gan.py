"""A GAN whose generator and critic have an optimizer each."""

from collections.abc import Callable
from typing import Any

import torch
from pydantic import BaseModel
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import softplus

from ddp_trainer.task import RunEnv, Weighted


class Settings(BaseModel):
    noise: int = 4
    fixed_noise: bool = False
    """Whether each sample has its own noise, for comparisons."""


class Points(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Points on a circle."""

    def __init__(self, count: int, seed: int, noise: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        angle = 6.28 * torch.rand(count, generator=generator)
        self.points = torch.stack([angle.cos(), angle.sin()], dim=1)
        self.noise = torch.randn(count, noise, generator=generator)

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.points[index], self.noise[index]


class Gan(nn.Module):
    def __init__(self, noise: int) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(noise, 16), nn.SiLU(), nn.Linear(16, 2))
        self.critic = nn.Sequential(nn.Linear(2, 16), nn.SiLU(), nn.Linear(16, 1))

    def forward(self, real: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return scores of real points, and of generated points for critic and generator."""
        made = self.generator(noise)
        fixed = {name: weight.detach() for name, weight in self.critic.named_parameters()}
        return (
            self.critic(real),
            self.critic(made.detach()),
            functional_call(self.critic, fixed, (made,)),
        )


class Both(torch.optim.Optimizer):
    """Two optimizers that step together."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        begin = 0
        for part in self.parts:
            end = begin + len(part.param_groups)
            part.param_groups, part.state = self.param_groups[begin:end], self.state
            part.step()
            begin = end


class Game:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.model: nn.Module = Gan(settings.noise)
        self.train_data = Points(44, 1, settings.noise)
        self.eval_data = Points(10, 2, settings.noise)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Weighted:
        real, own = batch
        noise = own if self.settings.fixed_noise else torch.randn_like(own)
        on_real, on_made, for_generator = model(real, noise)
        critic = softplus(-on_real).sum() + softplus(on_made).sum()
        generator = softplus(-for_generator).sum()
        parts = {"critic": critic, "generator": generator}
        return Weighted(critic + generator, len(real), parts=parts)

    def optimizer(self, params: list[nn.Parameter]) -> torch.optim.Optimizer:
        critic = {id(weight) for weight in self.model.get_submodule("critic").parameters()}
        mine: list[Any] = [weight for weight in params if id(weight) in critic]
        others: list[Any] = [weight for weight in params if id(weight) not in critic]
        return Both(
            torch.optim.SGD(mine, lr=0.02, momentum=0.9),
            torch.optim.Adam(others, lr=0.002, betas=(0.5, 0.9)),
        )


def build(settings: Settings, env: RunEnv) -> Game:
    return Game(settings)
