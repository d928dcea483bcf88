"""Mistakes that users make in their tasks: each changes a good task."""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import default_collate

from ddp_trainer.task import RunEnv, Weighted
from tests.trainer.good_task import Good, Net, Samples, total

Change = Callable[[Any, RunEnv], Any]
"""Function that changes a task, or returns another task."""

MISTAKES: dict[str, Change] = {}


class MistakeConfig(BaseModel):
    name: str


def mistake(change: Change) -> Change:
    MISTAKES[change.__name__] = change
    return change


def build(cfg: MistakeConfig, env: RunEnv) -> Any:
    task = Good()
    return MISTAKES[cfg.name](task, env) or task


@mistake
def sum_is_a_mean(task: Any, _: RunEnv) -> None:
    task.loss = lambda model, b: Weighted(total(model, b) / len(b[1]), len(b[1]))


@mistake
def sum_is_a_mean_times_a_constant(task: Any, _: RunEnv) -> None:
    task.loss = lambda model, b: Weighted(32 * total(model, b) / len(b[1]), len(b[1]))


@mistake
def count_is_one(task: Any, _: RunEnv) -> None:
    task.loss = lambda model, b: Weighted(total(model, b) / len(b[1]), 1)


@mistake
def count_is_zero(task: Any, _: RunEnv) -> None:
    task.loss = lambda model, b: Weighted(total(model, b), 0)


@mistake
def count_is_a_vector(task: Any, _: RunEnv) -> None:
    task.loss = lambda model, b: Weighted(total(model, b), torch.ones(len(b[1])))


@mistake
def loss_is_detached(task: Any, _: RunEnv) -> None:
    task.loss = lambda model, b: Weighted(total(model, b).detach(), len(b[1]))


@mistake
def loss_of_each_sample(task: Any, _: RunEnv) -> None:
    task.loss = lambda model, b: Weighted(model(b[0]).square().sum(1), len(b[1]))


@mistake
def loss_is_a_tensor(task: Any, _: RunEnv) -> None:
    task.loss = total


@mistake
def loss_is_not_finite(task: Any, _: RunEnv) -> None:
    task.loss = lambda model, b: Weighted(total(model, b) * float("nan"), len(b[1]))


@mistake
def gradient_is_not_finite(task: Any, _: RunEnv) -> None:
    def loss(model: nn.Module, b: Any) -> Weighted:
        return Weighted(total(model, b) + (0 * model(b[0])).square().sum().sqrt(), len(b[1]))

    task.loss = loss


@mistake
def loss_uses_another_model(task: Any, _: RunEnv) -> None:
    other = Net()
    task.loss = lambda _, b: Weighted(total(other, b), len(b[1]))


@mistake
def head_outside_the_model(task: Any, _: RunEnv) -> None:
    head = nn.Linear(3, 3)
    task.loss = lambda model, b: Weighted(
        cross_entropy(head(model(b[0])), b[1], reduction="sum"), len(b[1])
    )


@mistake
def loss_uses_no_model(task: Any, _: RunEnv) -> None:
    weight = torch.ones(4, requires_grad=True)
    task.loss = lambda _, b: Weighted((b[0] @ weight).square().sum(), len(b[1]))


@mistake
def loss_draws_from_its_own_generator(task: Any, _: RunEnv) -> None:
    generator = torch.Generator()

    def loss(model: nn.Module, b: Any) -> Weighted:
        noise = torch.rand(b[0].shape, generator=generator) if model.training else 0.0
        return Weighted(total(model, (b[0] + noise, b[1])), len(b[1]))

    task.loss = loss


@mistake
def layers_in_a_list(task: Any, _: RunEnv) -> None:
    class Listed(Net):
        def __init__(self) -> None:
            super().__init__()
            self.layers = [nn.Linear(8, 8) for _ in range(2)]

        def forward(self, x: Tensor) -> Tensor:
            x = self.inner(x)
            for layer in self.layers:
                x = layer(x)
            scores: Tensor = self.outer(x)
            return scores

    task.model = Listed()


@mistake
def layer_without_use(task: Any, _: RunEnv) -> None:
    task.model.spare = nn.Linear(4, 4)


@mistake
def nothing_to_train(task: Any, _: RunEnv) -> None:
    task.model.requires_grad_(False)


@mistake
def copy_of_a_weight(task: Any, _: RunEnv) -> None:
    task.model.middle = nn.Linear(8, 8)
    task.model.again = nn.Linear(8, 8)
    task.model.again.weight = nn.Parameter(task.model.middle.weight.data)


@mistake
def lazy_layer(task: Any, _: RunEnv) -> None:
    task.model.inner = nn.LazyLinear(8)


@mistake
def buffer_made_in_forward(task: Any, _: RunEnv) -> None:
    class Late(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.register_buffer("mean", x.detach().mean(0))
            return x

    task.model = Net(Late())


@mistake
def frozen_codes(task: Any, _: RunEnv) -> None:
    class Codes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean = nn.Parameter(torch.zeros(8), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.mean.data.lerp_(x.detach().mean(0), 0.1)
            return x - self.mean.clone()

    task.model = Net(Codes())


@mistake
def model_in_evaluation_mode(task: Any, _: RunEnv) -> None:
    task.model = Net(nn.Dropout(0.1)).eval()


@mistake
def batch_norm_gets_one_sample(task: Any, _: RunEnv) -> None:
    task.model, task.train_data = Net(nn.BatchNorm1d(8)), Samples(size=41)


@mistake
def optimizer_of_a_part(task: Any, _: RunEnv) -> None:
    task.optimizer = lambda params: torch.optim.SGD(params[:2], lr=0.1)


@mistake
def optimizer_of_another_model(task: Any, _: RunEnv) -> None:
    task.optimizer = lambda params: torch.optim.SGD([*params, *Net().parameters()], lr=0.1)


@mistake
def optimizer_with_a_schedule(task: Any, _: RunEnv) -> None:
    task.optimizer = lambda params: (torch.optim.SGD(params, lr=0.1), None)


@mistake
def optimizer_has_a_weight_twice(task: Any, _: RunEnv) -> None:
    task.optimizer = lambda params: torch.optim.SGD(
        [{"params": params}, {"params": params[:1]}], lr=0.1
    )


@mistake
def metric_is_a_float(task: Any, _: RunEnv) -> None:
    task.metrics = lambda model, b: {"loss": total(model, b).item()}


@mistake
def metric_is_a_mean(task: Any, _: RunEnv) -> None:
    task.metrics = lambda model, b: {
        "hits": Weighted((model(b[0]).argmax(1) == b[1]).float().mean(), len(b[1]))
    }


@mistake
def metrics_by_batch(task: Any, _: RunEnv) -> None:
    task.eval_data = Samples()
    task.metrics = lambda model, b: {f"of {len(b[1])}": Weighted(total(model, b), len(b[1]))}


@mistake
def metrics_by_rank(task: Any, env: RunEnv) -> None:
    task.eval_data = Samples()
    task.metrics = lambda model, b: {f"rank {env.rank}": Weighted(total(model, b), len(b[1]))}


@mistake
def parts_by_batch(task: Any, _: RunEnv) -> None:
    def loss(model: nn.Module, b: Any) -> Weighted:
        value = total(model, b)
        return Weighted(value, len(b[1]), {f"of {len(b[1])}": value})

    task.loss = loss


@mistake
def model_by_rank(task: Any, env: RunEnv) -> None:
    task.model.head = nn.Linear(8, 3 + env.rank)
    task.model.outer = nn.Linear(8, 3)
    task.model.head.requires_grad_(False)


@mistake
def data_by_rank(task: Any, env: RunEnv) -> None:
    task.train_data = [task.train_data[i] for i in range(env.rank, 40, env.world_size)]


@mistake
def stream_by_rank(task: Any, env: RunEnv) -> None:
    class Part(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return map(Samples().__getitem__, range(env.rank, 40, env.world_size))

    task.train_data = Part()


@mistake
def generator_as_data(task: Any, _: RunEnv) -> None:
    data = task.train_data
    task.train_data = (data[index] for index in range(len(data)))


@mistake
def data_without_length(task: Any, _: RunEnv) -> None:
    class Endless:
        def __getitem__(self, index: int) -> Any:
            return Samples()[index % 40]

    task.train_data = Endless()


@mistake
def sample_of_another_shape(task: Any, _: RunEnv) -> None:
    task.train_data = Samples(lambda x, index: x[: 3 if index == 17 else 4])


@mistake
def sample_is_not_finite(task: Any, _: RunEnv) -> None:
    task.train_data = Samples(lambda x, index: x / (index != 17))


@mistake
def label_out_of_range(task: Any, _: RunEnv) -> None:
    task.train_data.y[17] = 3


@mistake
def reading_changes_the_data(task: Any, _: RunEnv) -> None:
    task.train_data = Samples(lambda x, _: x.sub_(0.5))


@mistake
def augmentation_without_a_seed(task: Any, _: RunEnv) -> None:
    generator = np.random.default_rng()
    task.train_data = Samples(lambda x, _: x + generator.normal())


@mistake
def augmentation_by_the_system(task: Any, _: RunEnv) -> None:
    task.train_data = Samples(lambda x, _: x * random.SystemRandom().random())


@mistake
def augmentation_by_the_clock(task: Any, _: RunEnv) -> None:
    task.train_data = Samples(lambda x, _: x + time.perf_counter_ns() % 1000)


@mistake
def stream_in_another_order(task: Any, _: RunEnv) -> None:
    generator = np.random.default_rng()

    class Shuffled(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return map(Samples().__getitem__, generator.permutation(40).tolist())

    task.train_data = Shuffled()


@mistake
def collate_in_a_lambda(task: Any, _: RunEnv) -> None:
    task.collate = lambda samples: default_collate(samples)  # noqa: PLW0108


@mistake
def collate_of_one_sample(task: Any, _: RunEnv) -> None:
    task.collate = lambda samples: default_collate(samples[:1])


class Bag:
    """A batch object that is no collection."""

    def __init__(self, samples: Any) -> None:
        self.x, self.y = default_collate(samples)

    def __getitem__(self, index: int) -> Tensor:
        part: Tensor = (self.x, self.y)[index]
        return part


class MovingBag(Bag):
    def to(self, device: torch.device) -> None:
        self.x, self.y = self.x.to(device), self.y.to(device)


@mistake
def batch_that_cannot_move(task: Any, _: RunEnv) -> None:
    task.collate = Bag


@mistake
def batch_that_moves_to_nothing(task: Any, _: RunEnv) -> None:
    task.collate = MovingBag


@mistake
def state_of_another_type(task: Any, _: RunEnv) -> None:
    task.state_dict = lambda: {"generator": np.random.default_rng()}
    task.load_state_dict = lambda _: None


@dataclass(frozen=True)
class Frozen:
    model: nn.Module
    train_data: Any
    eval_data: Any = None

    def loss(self, model: nn.Module, batch: Any) -> Weighted:
        return Weighted(total(model, batch), len(batch[1]))


@mistake
def frozen_dataclass(task: Any, _: RunEnv) -> Any:
    return Frozen(task.model, task.train_data)
