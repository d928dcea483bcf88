"""Mistakes with the weights of a model and their optimizer, in addition to `mistakes`."""

from collections.abc import Callable
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


class Keeps(torch.optim.SGD):
    """Optimizer that keeps more than SGD."""

    def __init__(self, params: Any, keep: Callable[[Any], None]) -> None:
        super().__init__(params, lr=0.1)
        self.keep = keep

    def step(self, closure: Any = None) -> Any:
        found = super().step(closure)
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self.state[param]["own"] = 1
                    self.keep(self.state)
        return found


@mistake
def optimizer_state_in_a_list(task: Any, _: RunEnv) -> None:
    def keep(state: Any) -> None:
        for values in state.values():
            values["factors"] = [torch.zeros(2, 2), torch.zeros(3, 3)]

    task.optimizer = lambda params: Keeps(params, keep)


@mistake
def optimizer_state_of_no_parameter(task: Any, _: RunEnv) -> None:
    task.optimizer = lambda params: Keeps(params, lambda state: state["shared"].update(count=1))


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
def sparse_buffer(task: Any, _: RunEnv) -> None:
    class Graph(nn.Module):
        edges: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("edges", torch.eye(8).to_sparse())

        def forward(self, x: Tensor) -> Tensor:
            return x + x @ self.edges

    task.model = Net(Graph())


@mistake
def sparse_weight(task: Any, _: RunEnv) -> None:
    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.eye(8).to_sparse())

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight

    task.model = Net(Graph())


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
