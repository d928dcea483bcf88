"""The door for user code: what a task is, and how it is found.

A task is any object with a model, training data and a loss. It needs no base class: the function
`build(cfg, env)` returns it, where `cfg` is the user's own pydantic model.
"""

import importlib
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeGuard, runtime_checkable

import torch
from pydantic import BaseModel
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from ddp_trainer.errors import InputError
from ddp_trainer.staging import staged


@dataclass(frozen=True, slots=True)
class Weighted:
    """A sum and the number of things it sums over, instead of their mean.

    Sums and counts can be added over micro-batches and ranks before they are divided, which is what
    makes accumulation, uneven shares and losses per token exact.
    """

    sum: Tensor
    """Scalar; for a loss with a gradient."""
    count: Tensor | float
    """How many samples or tokens `sum` covers; a scalar tensor or a number."""

    def count_tensor(self) -> Tensor:
        """The count as a scalar fp32 tensor beside `sum`, without stopping the host."""
        if isinstance(self.count, Tensor):
            return self.count.detach().to(self.sum.device, torch.float32)
        return torch.full((), self.count, dtype=torch.float32, device=self.sum.device)


class Indexed(Protocol):
    """A map-style data set, as torch's. `__getitems__(indices)` is used where it exists."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


Data = Indexed | Iterable[Any]
"""What a task trains on or is evaluated on: with an index, or else to be read from the beginning
(see `data.stream`)."""


@dataclass(frozen=True, slots=True)
class RunEnv:
    """What `build` may need to know about the process that it runs in."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    device: torch.device
    seed: int
    """The run's seed, equal on all ranks. Global generators are already seeded by it."""

    def staged(self, source: str | Path) -> Path:
        """A copy of a file or folder on this node's own disk, made once per node.

        Args:
            source: Where the data are: on a shared volume that is slow to read, say.

        Returns:
            The copy; the source itself, with a warning, where it cannot be copied.

        Raises:
            InputError: If there is no such source.
        """
        return staged(Path(source))


@runtime_checkable
class Task(Protocol):
    """What `build` returns.

    Optional members: `metrics(model, batch) -> dict[str, Weighted]` for evaluation (the loss when
    absent), `optimizer(params) -> torch.optim.Optimizer`, `collate(samples) -> batch`, which is
    given the list of samples, or what the data's `__getitems__` returned, and `flops_per_sample`,
    the floating-point operations of one sample's forward and backward pass.
    """

    model: nn.Module
    train_data: Data
    eval_data: Data | None

    def loss(self, model: nn.Module, batch: Any, /) -> Weighted:
        """Loss of one batch, summed, under the run's precision.

        Called in training, where an attempt may begin with one call that is not used, and in
        evaluation if the task has no metrics.
        """
        ...


@runtime_checkable
class HasMetrics(Protocol):
    """A task with its own evaluation."""

    def metrics(self, model: nn.Module, batch: Any, /) -> Mapping[str, Weighted]:
        """Named sums and counts of one batch; the same names for every batch."""
        ...


@runtime_checkable
class HasOptimizer(Protocol):
    """A task with its own update rule. The schedule multiplies each group's learning rate."""

    def optimizer(self, params: list[nn.Parameter], /) -> torch.optim.Optimizer:
        """An optimizer of all `params`."""
        ...


@runtime_checkable
class HasCollate(Protocol):
    """A task that joins samples to batches itself."""

    def collate(self, samples: Any, /) -> Any:
        """One batch."""
        ...


Build = Callable[[Any, RunEnv], Task]


def load_build(path: str) -> tuple[Build, type[BaseModel]]:
    """Finds a task's `build` and the model of its settings.

    Args:
        path: Import path `package.module:function`.

    Returns:
        The function, and the pydantic model that its first parameter is annotated with.

    Raises:
        InputError: If there is no such function, or its first parameter names no pydantic model.
    """
    build = _import(path)
    try:
        parameters = list(inspect.signature(build).parameters)
        annotation = typing.get_type_hints(build).get(parameters[0]) if parameters else None
    except (TypeError, NameError) as error:
        raise InputError(f'task: cannot read the signature of "{path}": {error}') from error
    if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        raise InputError(f'task: "{path}" must annotate its first parameter with a pydantic model')
    return build, annotation


def check_task(task: object, path: str) -> Task:
    """Refuses what is not a task.

    Raises:
        InputError: With the first thing that is missing or of the wrong kind.
    """
    for name in ("model", "train_data", "eval_data", "loss"):
        if not hasattr(task, name):
            kind = type(task).__name__
            raise InputError(f'task: "{path}" gave a value of type {kind} without "{name}"')
    if not isinstance(task, Task) or not isinstance(task.model, nn.Module):
        raise InputError(f'task: "model" of "{path}" must be a torch.nn.Module')
    if not any(param.requires_grad for param in task.model.parameters()):
        raise InputError(f'task: "model" of "{path}" has no parameters to train')
    for name in ("train_data", "eval_data"):
        data = getattr(task, name)
        if data is None and name == "eval_data":
            continue
        if not is_indexed(data) and not hasattr(data, "__iter__"):
            raise InputError(
                f'task: "{name}" of "{path}" must have a length and an index, or be iterable'
            )
        if is_indexed(data) and len(data) == 0:
            raise InputError(f'task: "{name}" of "{path}" holds no samples')
    return task


def peak_rate(task: Task, tflops: float) -> float:
    """Samples per second at which the devices would do nothing but the task's arithmetic.

    Args:
        task: What is trained.
        tflops: What all devices together can do, in TFLOP/s.

    Raises:
        InputError: If the task does not say what a sample costs.
    """
    flops = getattr(task, "flops_per_sample", None)
    if not isinstance(flops, int | float) or not flops > 0:
        raise InputError(
            "config: log.peak_tflops needs a task that says its flops_per_sample, a number above 0,"
            f" not {flops!r}"
        )
    return tflops * 1e12 / flops


def is_indexed(data: object) -> TypeGuard[Indexed]:
    """Whether samples can be asked for by number."""
    if isinstance(data, IterableDataset):  # its base class has an index that only raises
        return False
    return hasattr(data, "__len__") and hasattr(data, "__getitem__")


def _import(path: str) -> Build:
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise InputError(f'task: "{path}" must have the form package.module:function')
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # A module that the user's own code misses is that code's failure, with its traceback.
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise InputError(f'task: there is no module "{error.name}"') from error
        raise
    build = getattr(module, name, None)
    if not callable(build):
        raise InputError(f'task: module "{module_name}" has no function "{name}"')
    return typing.cast("Build", build)
