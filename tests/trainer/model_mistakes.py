"""Mistakes with the weights of a model and their optimizer, in addition to `mistakes`."""

from typing import Any

import torch
from torch import Tensor, nn

from ddp_trainer.task import RunEnv
from tests.trainer.good_task import Net
from tests.trainer.mistakes import build as build  # noqa: PLC0414 - the path of these tasks
from tests.trainer.mistakes import mistake


@mistake
def complex_weights(task: Any, _: RunEnv) -> None:
    class Fourier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(5, dtype=torch.complex64))

        def forward(self, x: Tensor) -> Tensor:
            mixed: Tensor = torch.fft.irfft(torch.fft.rfft(x) * self.weight, n=8)
            return mixed

    task.model = Net(Fourier())


@mistake
def extra_state(task: Any, _: RunEnv) -> None:
    class Counts(nn.Module):
        passes = 0

        def forward(self, x: Tensor) -> Tensor:
            self.passes += self.training
            return x

        def get_extra_state(self) -> Tensor:
            return torch.tensor([self.passes])

        def set_extra_state(self, state: Tensor) -> None:
            self.passes = int(state)

    task.model = Net(Counts())


@mistake
def number_as_a_weight(task: Any, _: RunEnv) -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.0))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale

    task.model = Net(Scale())


@mistake
def optimizer_with_a_closure(task: Any, _: RunEnv) -> None:
    task.optimizer = torch.optim.LBFGS


@mistake
def sparse_gradients(task: Any, _: RunEnv) -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(10, 8, sparse=True)

        def forward(self, x: Tensor) -> Tensor:
            features: Tensor = x + self.table((x > 0).long()).mean(1)
            return features

    task.model = Net(Words())


@mistake
def expanded_weight(task: Any, _: RunEnv) -> None:
    task.model.inner.bias = nn.Parameter(torch.zeros(1).expand(8))


@mistake
def slice_of_a_table(task: Any, _: RunEnv) -> None:
    task.model.inner.bias = nn.Parameter(torch.zeros(16)[::2])


@mistake
def buffer_that_grows(task: Any, _: RunEnv) -> None:
    class Memory(nn.Module):
        seen: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(0))

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.seen = torch.cat([self.seen, x.detach().mean(1)])
            return x

    task.model = Net(Memory())
