"""The interface between user code and the trainer: the task and the function that builds it.

A task is any object with a model, training data and a loss. It needs no base class. The user's
function `build(cfg, env)` returns the task; `cfg` is an instance of the user's own pydantic model.
"""

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
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
    """A sum and the number of items in it. It stands for a mean.

    The trainer adds sums and counts over micro-batches and ranks, and divides once at the end.
    Therefore gradient accumulation, batches of unequal size and losses per token give exact
    results.
    """

    sum: Tensor
    """Scalar tensor. A training loss must have a gradient."""
    count: Tensor | float
    """Number of samples or tokens in `sum`, as a scalar tensor or a number."""
    parts: Mapping[str, Tensor] = field(default_factory=dict)
    """Parts of a loss that the trainer logs: scalar tensors by name, summed over the same items as
    `sum`. A loss has at most `LOSS_PARTS` parts, with the same names in every batch. They have no
    effect on the training."""

    def count_tensor(self) -> Tensor:
        """Return the count as a scalar fp32 tensor on the device of `sum`, without a host sync."""
        if isinstance(self.count, Tensor):
            return self.count.detach().to(self.sum.device, torch.float32)
        return torch.full((), self.count, dtype=torch.float32, device=self.sum.device)


class Indexed(Protocol):
    """A map-style data set, as in torch. The trainer prefers `__getitems__(indices)` if defined."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


Data = Indexed | Iterable[Any]
"""Training or evaluation data: a map-style data set, or an iterable that the trainer reads from its
start (see `data.stream`)."""


@dataclass(frozen=True, slots=True)
class RunEnv:
    """The environment of the process that calls `build`."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    device: torch.device
    seed: int
    """Seed of the run, equal on all ranks. The trainer seeds the global generators before
    `build`."""
    splits_model: bool = False
    """Whether each rank will hold only a part of the model (fsdp2)."""

    def deferred_weights(self) -> AbstractContextManager[object]:
        """Return a context in which new modules get no memory for their weights yet.

        So a model may be larger than the memory of one rank. With fsdp2 the trainer creates the
        weights of one block after another, by the method `reset_parameters` of each module.
        Otherwise the context has no effect. Only the model may be built in it: data would have no
        values.
        """
        return torch.device("meta") if self.splits_model else nullcontext()

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
    - `state_dict()` and `load_state_dict(state)`: state of the task, saved in each checkpoint.
    - `flops_per_sample`: floating-point operations of one sample's forward and backward pass.
    """

    model: nn.Module
    train_data: Data
    eval_data: Data | None

    def loss(self, model: nn.Module, batch: Any, /) -> Weighted:
        """Return the summed loss of one batch. The trainer calls this under the run's precision.

        The trainer calls this method in training, and in evaluation if the task has no metrics. An
        attempt may start with one extra call, whose result the trainer discards.
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
    """State of the training after one update, the argument of `after_update`."""

    step: int
    """Updates done, over all attempts."""
    total_steps: int
    """Updates of the whole run."""
    epoch: int | None
    """Epoch of the update, from 1. None for data without a length."""
    optimizer: torch.optim.Optimizer
    """Optimizer of the run. The schedule overwrites the learning rates of its groups before the
    next update. With fsdp2 it holds only this rank's parts of the weights."""
    metrics: Mapping[str, float]
    """Metrics of the newest evaluation of this attempt, by name. Empty before the first
    evaluation."""
    find_model: Callable[[], nn.Module]
    """Function that returns `model`."""

    @property
    def model(self) -> nn.Module:
        """The bare model with the new weights, which the hook may change.

        With fsdp2 the first access gathers the whole weights on every rank until the hook returns.
        So if one rank accesses the model, all ranks must. A hook that does not access it costs
        nothing.
        """
        return self.find_model()


@runtime_checkable
class HasAfterUpdate(Protocol):
    """A task that acts after each update, for example to move the weights of a teacher."""

    def after_update(self, update: Update, /) -> None:
        """Act after an update. All ranks must act alike. Reading a tensor waits for the GPU."""
        ...


@runtime_checkable
class HasState(Protocol):
    """A task that has state of its own. Each checkpoint saves this state."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state: tensors and JSON values, nested in dictionaries, lists and tuples.

        The state must be equal on all ranks, and the trainer saves that of rank 0. The trainer
        copies the tensors.
        """
        ...

    def load_state_dict(self, state: Any, /) -> Any:
        """Restore the state that `state_dict` returned. Called on every rank, with CPU tensors."""
        ...


def stateful(task: object) -> HasState | None:
    """Return the task if it has state of its own, else None.

    A task that is an `nn.Module` inherits `state_dict`. This does not count, because it only
    repeats the weights of its model.
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
    """Check that `task` is a complete task, and return it.

    Raises:
        InputError: If a member is missing or has the wrong type. The error names the first such
            member.
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
    """Return the samples per second at the peak arithmetic rate of the devices.

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
    """Return whether the data set can return samples by index."""
    if isinstance(data, IterableDataset):  # its base class defines an index that only raises
        return False
    return hasattr(data, "__len__") and hasattr(data, "__getitem__")
