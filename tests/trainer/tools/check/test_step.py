"""`check` finds mistakes of a task that only training would show."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ddp_trainer.config.settings import resolve
from ddp_trainer.errors import InputError
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.run.building import build_task
from ddp_trainer.task import Data, Weighted
from ddp_trainer.tools.check.first_batch import check_training
from ddp_trainer.tools.check.step import check_task

Loss = Callable[[nn.Module, Any], Any]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Linear(3, 2), nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.norm(self.used(x))
        return found


class Own:
    """A task with the given loss."""

    def __init__(self, loss: Loss, metrics: Loss | None = None) -> None:
        self.model: nn.Module = Model()
        generator = torch.Generator().manual_seed(0)
        self.train_data: Data = [torch.randn(3, generator=generator) for _ in range(40)]
        self.eval_data: Data | None = None
        self.loss = loss
        if metrics is not None:
            self.metrics = metrics


def right(model: nn.Module, x: Tensor) -> Weighted:
    return Weighted(model(x).square().sum(), len(x))


def problem(task: Any, **settings: Any) -> str | None:
    try:
        return check_training(task, resolve(settings), 64)
    except InputError as error:
        return str(error)


def contrastive(model: nn.Module, x: Tensor) -> Weighted:
    scores = functional.normalize(model(x)) @ functional.normalize(model(x)).T
    classes = torch.arange(len(x))
    return Weighted(functional.cross_entropy(scores, classes, reduction="sum"), len(x))


SPARE = '2 of 6 parameters get no gradient, first "spare.weight"'
LOSSES: dict[str, tuple[Loss, str | None]] = {
    "right": (right, SPARE),
    "in-batch negatives": (contrastive, SPARE),
    "mean": (
        lambda model, x: Weighted(model(x).square().mean(), len(x)),
        "task: the sum of loss is a mean: ",
    ),
    "mean of tokens": (
        lambda model, x: Weighted(model(x).square().mean(), 2 * len(x)),
        "task: the sum of loss is a mean: ",
    ),
    "count of 1": (
        lambda model, x: Weighted(model(x).square().mean(), 1),
        "task: the count of loss is 1 for 32 samples and for each half",
    ),
    "no gradient": (
        lambda model, x: Weighted(model(x).square().sum().detach(), len(x)),
        "task: the loss has no gradient",
    ),
    "a vector": (
        lambda model, x: Weighted(model(x).square().sum(1), len(x)),
        "task: loss must be Weighted(sum, count)",
    ),
    "a tensor": (lambda model, x: model(x).sum(), "task: loss must be Weighted(sum, count)"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_check_reports_mistakes_of_a_loss(name: str) -> None:
    loss, expected = LOSSES[name]
    task = Own(loss)
    before = {key: value.clone() for key, value in task.model.state_dict().items()}
    found = problem(task)
    assert found is not None
    assert found.startswith(expected or "")
    after = task.model.state_dict()
    assert all(torch.equal(value, after[key]) for key, value in before.items())


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        (lambda model, x: {"error": right(model, x)}, None),
        (
            lambda model, x: {"error": Weighted(model(x).abs().mean(), len(x))},
            'task: the sum of metric "error" is a mean',
        ),
        (lambda *_: {"error": 0.5}, 'task: metric "error" must be Weighted(sum, count)'),
        (lambda *_: [0.5], "task: metrics must return a dictionary of Weighted by name, not list"),
    ],
)
def test_check_reports_mistakes_of_metrics(metrics: Loss, expected: str | None) -> None:
    found = problem(Own(right, metrics))
    assert found is not None
    assert found.startswith(expected or SPARE)


@pytest.mark.parametrize(
    "parallel", [{"find_unused_parameters": True}, {"static_graph": True}, {"strategy": "fsdp2"}]
)
def test_check_accepts_unused_parameters_if_the_settings_allow_them(
    parallel: dict[str, Any],
) -> None:
    assert problem(Own(right), parallel=parallel) is None


@pytest.mark.parametrize(
    "path",
    ["sample_tasks:build", "ddp_trainer.tasks.gpt:build", "ddp_trainer.tasks.miniresnet:build"],
)
def test_check_accepts_correct_tasks(path: str) -> None:
    task, config = build_task(path, resolve({}), Ranks(), torch.device("cpu"))
    check_task(task, config)
    assert check_training(task, config, 32) is None


@dataclass(frozen=True)
class Frozen:
    model: nn.Module
    train_data: Any = ()
    eval_data: Any = None

    def loss(self, model: nn.Module, batch: Any) -> Weighted:
        return right(model, batch)


def test_frozen_dataclass_is_refused() -> None:
    with pytest.raises(InputError, match="Frozen refuses it; a dataclass must not be frozen"):
        check_task(cast("Any", Frozen(Model())), resolve({}))


def test_collate_that_no_worker_can_import_is_refused() -> None:
    task = Own(right)
    vars(task)["collate"] = lambda samples: torch.stack(list(samples))
    check_task(task, resolve({}))
    with pytest.raises(InputError, match="collate must be a function of a module or a method"):
        check_task(task, resolve({"data": {"workers": 2}}))


def test_loss_sum_of_zero_is_not_taken_for_a_mean() -> None:
    found = problem(Own(lambda model, x: Weighted(0.0 * model(x).sum(), len(x))))
    assert found is not None
    assert found.startswith(SPARE)
