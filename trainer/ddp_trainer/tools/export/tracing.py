"""Record the arguments with which a task's loss calls its model.

A task does not declare the inputs of its model. So a hook on the model records the arguments while
the loss of a few samples is computed. A second call uses a single sample. The first dimension, and
those in which the two calls differ, depend on the samples. They stay dynamic in an exported graph.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, cast

import torch
from torch import Tensor, nn

from ddp_trainer.data.loader import collate_of, fetch
from ddp_trainer.data.prefetch import tensors_in
from ddp_trainer.errors import InputError
from ddp_trainer.task import Task, is_indexed

EXAMPLES = 4
"""Number of samples with which the model is traced. The batch dimension stays dynamic. So does each
dimension, such as a text's length, in which a call with a single sample differs."""


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The arguments of one call of a model."""

    positional: tuple[Any, ...]
    named: dict[str, Any] = field(default_factory=dict)

    def of(self, function: Callable[..., Any]) -> Any:
        """Call a function with these arguments, and return its result."""
        return function(*self.positional, **self.named)


@dataclass(frozen=True, slots=True)
class TracedModel:
    """A model and the arguments with which the loss calls it."""

    model: nn.Module
    call: CallArguments
    other_call: CallArguments
    """Arguments of a call with one sample. Dimensions that differ from `call` are dynamic."""


def trace(task: Task) -> TracedModel:
    """Compute the loss of a few samples to find the arguments with which it calls the model.

    Raises:
        InputError: If the loss does not call the model.
    """
    model = task.model.eval()
    call = _call(task, model, _samples(task, 0, EXAMPLES))
    alone = [
        _call(task, model, samples)
        for place in range(EXAMPLES)
        if len(samples := _samples(task, place, place + 1))
    ]
    # With padding, at least one sample is shorter than the batch, unless all have the same length.
    other = next((one for one in alone if _sizes(one) != _sizes(call)), alone[0])
    return TracedModel(model, call, other)


def open_dimensions(value: Tensor, other: Tensor) -> list[int]:
    """Return the batch dimension and all dimensions in which two tensors differ."""
    return [
        place
        for place, (size, size_alone) in enumerate(zip(value.shape, other.shape, strict=True))
        if place == 0 or size != size_alone
    ]


def _sizes(call: CallArguments) -> list[torch.Size]:
    """Return the shapes of all tensors without their first dimension."""
    return [tensor.shape[1:] for tensor in tensors_in((call.positional, call.named))]


def _samples(task: Task, first: int, end: int) -> Any:
    """Return samples from `first` to `end`, if they exist, in the form that `collate` takes."""
    data = task.train_data if task.eval_data is None else task.eval_data
    if is_indexed(data):
        return fetch(data, range(len(data))[first:end])
    return list(islice(cast("Iterable[Any]", data), first, end))


def _call(task: Task, model: nn.Module, samples: Any) -> CallArguments:
    """Return the arguments with which the loss calls the model."""
    calls: list[CallArguments] = []

    def record(_: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        calls.append(CallArguments(arguments, named))

    handle = model.register_forward_pre_hook(record, with_kwargs=True)
    try:
        with torch.no_grad():
            task.loss(model, collate_of(task)(samples))
    finally:
        handle.remove()
    if not calls:
        raise InputError(
            "export: the loss must call the model itself, because its input is unknown otherwise"
        )
    return calls[0]
