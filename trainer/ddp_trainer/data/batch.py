"""From indices to what a task's `loss` takes."""

from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data import default_collate

from ddp_trainer.task import HasCollate, Indexed, Task


def fetch(data: Indexed, indices: Sequence[int]) -> Any:
    """Samples as `collate` takes them: a list, or what the data's `__getitems__` returns."""
    many = getattr(data, "__getitems__", None)
    return many(list(indices)) if many else [data[index] for index in indices]


def collate_of(task: Task) -> Callable[[Any], Any]:
    """What joins samples to a batch: the task's own, or torch's."""
    return task.collate if isinstance(task, HasCollate) else default_collate
