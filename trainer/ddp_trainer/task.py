"""The interface between user code and the trainer: the task and the function that builds it.

A task is any object with a model, training data and a loss. It needs no base class. The user's
function `build(cfg, env)` returns the task; `cfg` is an instance of the user's own pydantic model.
"""

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeGuard, runtime_checkable

import torch
from pydantic import BaseModel
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from ddp_trainer.errors import InputError
from ddp_trainer.imports import import_function
from ddp_trainer.staging import staged
from ddp_wire.messages import LOSS_PARTS as LOSS_PARTS  # noqa: PLC0414 (part of the interface)


@dataclass(frozen=True, slots=True)
class Weighted:
    """A sum and the number of items in it, used in place of a mean.

    The trainer adds sums and counts over micro-batches and ranks, and divides once at the end. This
    makes gradient accumulation, batches of unequal size and losses per token exact.
    """

    sum: Tensor
    """Scalar tensor. A training loss must have a gradient."""
    count: Tensor | float
    """Number of samples or tokens in `sum`, as a scalar tensor or a number."""
    parts: Mapping[str, Tensor] = field(default_factory=dict)
    """Parts of a loss to log: scalar tensors by name, summed over the same items as `sum`. At most
    `LOSS_PARTS`, always the same names. They have no effect on the training."""

    def count_tensor(self) -> Tensor:
        """Return the count as a scalar fp32 tensor on the device of `sum`, without a host sync."""
        if isinstance(self.count, Tensor):
            return self.count.detach().to(self.sum.device, torch.float32)
        return torch.full((), self.count, dtype=torch.float32, device=self.sum.device)


class Indexed(Protocol):
    """A map-style data set, as in torch. The trainer calls `__getitems__(indices)` if defined."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


Data = Indexed | Iterable[Any]
"""Training or evaluation data: a map-style data set, or an iterable that is read from its start
(see `data.stream`)."""


@dataclass(frozen=True, slots=True)
class RunEnv:
    """The environment of the process that calls `build`."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    device: torch.device
    seed: int
    """Seed of the run, equal on all ranks. The global generators are seeded before `build`."""

    def staged(self, source: str | Path) -> Path:
        """Copy a file or folder to this node's local disk, once per node, and return the copy.

        Args:
            source: Path of the data, for example on a shared volume that is slow to read.

        Returns:
            Path of the copy. If copying fails, print a warning and return `source` itself.

        Raises:
            InputError: If `source` does not exist.
        """
        return staged(Path(source))


@runtime_checkable
class Task(Protocol):
    """The object that `build` returns.

    Optional members:

    - `metrics(model, batch) -> dict[str, Weighted]`: evaluation metrics. Default: the loss.
    - `optimizer(params) -> torch.optim.Optimizer`: replaces the configured optimizer.
    - `collate(samples) -> batch`: joins a list of samples, or the result of `__getitems__`.
    - `after_update(update)`: called on every rank after each update, see `Update`.
    - `state_dict()` and `load_state_dict(state)`: state of its own, saved in each checkpoint.
    - `flops_per_sample`: floating-point operations of one sample's forward and backward pass.
    """

    model: nn.Module
    train_data: Data
    eval_data: Data | None

    def loss(self, model: nn.Module, batch: Any, /) -> Weighted:
        """Return the summed loss of one batch. The trainer calls it under the run's precision.

        The trainer calls it in training, and in evaluation if the task has no metrics. An attempt
        may start with one extra call whose result is discarded.
        """
        ...


@runtime_checkable
class HasMetrics(Protocol):
    """A task that defines its evaluation metrics."""

    def metrics(self, model: nn.Module, batch: Any, /) -> Mapping[str, Weighted]:
        """Return the metrics of one batch by name. Every batch must return the same names."""
        ...


@runtime_checkable
class HasOptimizer(Protocol):
    """A task that creates its optimizer. The schedule multiplies each group's learning rate."""

    def optimizer(self, params: list[nn.Parameter], /) -> torch.optim.Optimizer:
        """Return an optimizer of all `params`."""
        ...


@runtime_checkable
class HasCollate(Protocol):
    """A task that joins samples to batches."""

    def collate(self, samples: Any, /) -> Any:
        """Return one batch."""
        ...


@dataclass(frozen=True, slots=True)
class Update:
    """The training after one update, as `after_update` receives it."""

    step: int
    """Updates done, over all attempts."""
    total_steps: int
    """Updates of the whole run."""
    epoch: int | None
    """Epoch of the update, from 1; None for data without length."""
    optimizer: torch.optim.Optimizer
    """The schedule sets the learning rates of its groups again before the next update. With fsdp2
    it has this rank's parts of the weights."""
    metrics: Mapping[str, float]
    """Metrics of the newest evaluation of this attempt, by name. Empty before it."""
    find_model: Callable[[], nn.Module]
    """Function that returns `model`."""

    @property
    def model(self) -> nn.Module:
        """The bare model with the new weights, which the hook may change.

        With fsdp2 the first access gathers the weights until the hook returns. So all ranks must
        access it alike, and a hook that does not access it costs nothing.
        """
        return self.find_model()


@runtime_checkable
class HasAfterUpdate(Protocol):
    """A task that acts after each update, for example to move the weights of a teacher."""

    def after_update(self, update: Update, /) -> None:
        """Act on this rank. All ranks must act alike, and must not read tensors needlessly."""
        ...


@runtime_checkable
class HasState(Protocol):
    """A task with state of its own that each checkpoint saves."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state: tensors and JSON values, nested in dictionaries, lists and tuples.

        It must be equal on all ranks; rank 0's is saved. The trainer copies the tensors.
        """
        ...

    def load_state_dict(self, state: Any, /) -> Any:
        """Restore the state that `state_dict` returned, on every rank. Tensors are on the CPU."""
        ...


def stateful(task: object) -> HasState | None:
    """Return the task if it has state of its own.

    A task that is a module inherits `state_dict`, which only repeats the weights of its model.
    """
    inherits = getattr(type(task), "state_dict", None) is nn.Module.state_dict
    return task if isinstance(task, HasState) and not inherits else None


Build = Callable[[Any, RunEnv], Task]


def load_build(path: str) -> tuple[Build, type[BaseModel]]:
    """Import a task's `build` function and find the model of its settings.

    Args:
        path: Import path, `package.module:function`.

    Returns:
        The function, and the pydantic model that annotates its first parameter.

    Raises:
        InputError: If the function does not exist, or if its first parameter is not annotated with
            a pydantic model.
    """
    build: Build = import_function(path, "task")
    try:
        parameters = list(inspect.signature(build).parameters)
        annotation = typing.get_type_hints(build).get(parameters[0]) if parameters else None
    except (TypeError, NameError) as error:
        raise InputError(f'task: cannot read the signature of "{path}": {error}') from error
    if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        raise InputError(f'task: "{path}" must annotate its first parameter with a pydantic model')
    return build, annotation


def check_task(task: object, path: str) -> Task:
    """Return `task` if it is a complete task.

    Raises:
        InputError: If a member is missing or has the wrong type; names the first such member.
    """
    for name in ("model", "train_data", "eval_data", "loss"):
        if not hasattr(task, name):
            kind = type(task).__name__
            raise InputError(f'task: "{path}" returned a value of type {kind} without "{name}"')
    if not isinstance(task, Task) or not isinstance(task.model, nn.Module):
        raise InputError(f'task: "model" of "{path}" must be a torch.nn.Module')
    if not any(param.requires_grad for param in task.model.parameters()):
        raise InputError(f'task: "model" of "{path}" has no parameters to train')
    _check_state(task, path)
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


def _check_state(task: object, path: str) -> None:
    pair = ("state_dict", "load_state_dict")
    found = [name for name in pair if hasattr(task, name)]
    if len(found) == 1:
        other = pair[1 - pair.index(found[0])]
        raise InputError(f'task: "{path}" has "{found[0]}", so it must have "{other}" too')


def peak_rate(task: Task, tflops: float) -> float:
    """Return the highest possible throughput in samples per second, limited by arithmetic only.

    Args:
        task: Task with `flops_per_sample`.
        tflops: Peak arithmetic rate of all devices together, in TFLOP/s.

    Raises:
        InputError: If the task has no positive `flops_per_sample`.
    """
    flops = getattr(task, "flops_per_sample", None)
    if not isinstance(flops, int | float) or not flops > 0:
        raise InputError(
            "config: log.peak_tflops requires a task with flops_per_sample, a number greater than"
            f" 0, not {flops!r}"
        )
    return tflops * 1e12 / flops


def is_indexed(data: object) -> TypeGuard[Indexed]:
    """Return whether samples can be read by index."""
    if isinstance(data, IterableDataset):  # its base class defines an index that only raises
        return False
    return hasattr(data, "__len__") and hasattr(data, "__getitem__")
