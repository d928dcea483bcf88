"""One pass over a task's samples, on the CPU and alone, before many machines wait for it."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, cast

import numpy as np
import torch

from ddp_trainer.config import RunConfig
from ddp_trainer.data.loader import collate_of, fetch
from ddp_trainer.errors import InputError
from ddp_trainer.seeds import derive, seed_all
from ddp_trainer.task import Data, HasCollate, HasMetrics, Task, Weighted, is_indexed


@dataclass(slots=True)
class Column:
    """One part of the samples, as `[0]` or `["image"]`."""

    dtype: str
    shape: tuple[int, ...]
    low: float = math.inf
    high: float = -math.inf

    def described(self) -> str:
        """As `int64 () from 0 to 9`."""
        text = f"{self.dtype} {self.shape}"
        return f"{text} from {self.low:g} to {self.high:g}" if self.low <= self.high else text


@dataclass(slots=True)
class Found:
    """What a pass over one data set has seen."""

    samples: int = 0
    columns: dict[str, Column] = field(default_factory=dict)
    loss_sum: float = 0.0
    loss_count: float = 0.0

    def as_fields(self) -> dict[str, Any]:
        """As fields of an event."""
        loss = self.loss_sum / self.loss_count if self.loss_count else None
        columns = {name or "sample": column.described() for name, column in self.columns.items()}
        return {"samples": self.samples, "columns": columns, "loss": loss}


def check_data(task: Task, name: str, config: RunConfig, limit: int) -> Found:
    """Reads samples, joins them to batches, and computes their loss without training.

    Args:
        task: Built for the CPU.
        name: `train_data` or `eval_data`; there must be some.
        config: Gives the seed and the size of a batch.
        limit: Most samples to read, spread evenly where the data have an index.

    Raises:
        InputError: With the first sample that cannot be read, is unlike the first one, is not
            finite, or has no finite loss.
    """
    found = Found()
    same_shapes = not isinstance(task, HasCollate)
    samples = _samples(getattr(task, name), name, config.seed, limit)
    size = config.micro_batch or min(config.global_batch, limit)
    task.model.eval()
    while batch := list(islice(samples, size)):
        for place, sample in batch:
            for path, value in _parts(sample, ""):
                _note(found, f"{name}[{place}]", path, value, same_shapes=same_shapes)
        _try(task, name, batch, found)
        found.samples += len(batch)
    if not found.samples:
        raise InputError(f'check: "{name}" holds no samples')
    return found


def _samples(data: Data, name: str, seed: int, limit: int) -> Iterator[tuple[int, Any]]:
    if not is_indexed(data):
        seed_all(derive(seed, "check"))
        yield from islice(enumerate(cast("Iterable[Any]", data)), limit)
        return
    size = len(data)
    count = min(size, limit)
    for place in (size * number // count for number in range(count)):
        seed_all(derive(seed, "check", place))
        yield place, _attempt(f"{name}[{place}]", partial(data.__getitem__, place))


def _try(task: Task, name: str, batch: list[tuple[int, Any]], found: Found) -> None:
    """Joins a batch and computes its loss; what fails is looked for sample by sample."""
    try:
        total = _loss(task, _together(getattr(task, name), batch))
    except InputError:
        raise
    except Exception as error:
        for place, sample in batch:
            alone = _together(getattr(task, name), [(place, sample)])
            _attempt(f"{name}[{place}]", partial(_loss, task, alone))
        where = f"{name}[{batch[0][0]}] to [{batch[-1][0]}]"
        raise InputError(f"check: {where}: {_said(error)}") from error
    if not math.isfinite(total.sum.item()):
        for place, sample in batch:
            alone = _together(getattr(task, name), [(place, sample)])
            if not math.isfinite(_loss(task, alone).sum.item()):
                raise InputError(f"check: {name}[{place}]: its loss is not finite")
        raise InputError(f"check: the loss of {name}[{batch[0][0]}] and after is not finite")
    found.loss_sum += total.sum.item()
    found.loss_count += total.count_tensor().item()


def _together(data: Data, samples: list[tuple[int, Any]]) -> Any:
    """Samples that were read one by one, as the task's `collate` takes them."""
    if is_indexed(data) and hasattr(data, "__getitems__"):
        return fetch(data, [place for place, _ in samples])
    return [sample for _, sample in samples]


def _loss(task: Task, samples: Any) -> Weighted:
    with torch.no_grad():
        batch = collate_of(task)(samples)
        if isinstance(task, HasMetrics):
            task.metrics(task.model, batch)
        weighted: object = task.loss(task.model, batch)
    if not isinstance(weighted, Weighted) or weighted.sum.dim():
        raise InputError("task: loss must return Weighted(sum, count) with a scalar sum")
    return weighted


def _note(found: Found, place: str, path: str, value: Any, *, same_shapes: bool) -> None:
    """Compares one part of a sample to that of the first sample."""
    dtype, shape = str(value.dtype).removeprefix("torch."), tuple(value.shape)
    column = found.columns.setdefault(path, Column(dtype, shape))
    if same_shapes and (dtype, shape) != (column.dtype, column.shape):
        raise InputError(
            f"check: {place}{path} is {dtype} {shape}, that of the first sample {column.dtype}"
            f" {column.shape}"
        )
    if not value.numel():
        return
    low, high = value.min().item(), value.max().item()
    if not (math.isfinite(low) and math.isfinite(high)):
        raise InputError(f"check: {place}{path} has values that are not finite")
    column.low, column.high = min(column.low, low), max(column.high, high)


def _parts(value: Any, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    """The numbers within a sample, as tensors, by their places."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif _is_numeric_array(value) or isinstance(value, (bool, int, float)):
        yield path, torch.as_tensor(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _parts(item, f'{path}["{key}"]')
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from _parts(item, f"{path}[{number}]")


def _is_numeric_array(value: Any) -> bool:
    return isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biuf"


def _attempt(where: str, act: Callable[[], Any]) -> Any:
    try:
        return act()
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"check: {where}: {_said(error)}") from error


def _said(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
