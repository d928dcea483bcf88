"""Check that samples have equal shapes and finite values, and that their losses are finite."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch

from ddp_trainer.config import RunConfig
from ddp_trainer.data.evaluation import evaluation_mode
from ddp_trainer.data.loader import collate_of
from ddp_trainer.errors import InputError
from ddp_trainer.task import HasCollate, HasMetrics, Task, Weighted
from ddp_trainer.tools.check.reading import collate_input, one_line, read_samples, run_at


@dataclass(slots=True)
class Column:
    """Type, shape and range of one part of the samples, such as `[0]` or `["image"]`."""

    dtype: str
    shape: tuple[int, ...]
    low: float = math.inf
    high: float = -math.inf

    def describe(self) -> str:
        """Return a text such as `int64 () from 0 to 9`."""
        text = f"{self.dtype} {self.shape}"
        return f"{text} from {self.low:g} to {self.high:g}" if self.low <= self.high else text


@dataclass(slots=True)
class DataSummary:
    """Summary of the samples that were read from one data set."""

    samples: int = 0
    columns: dict[str, Column] = field(default_factory=dict)
    loss_sum: float = 0.0
    loss_count: float = 0.0
    names: tuple[list[str], list[str]] | None = None
    """Names of the metrics and of the parts of the loss, from the first batch."""

    def event_fields(self) -> dict[str, Any]:
        """Return the summary as the fields of an event."""
        loss = self.loss_sum / self.loss_count if self.loss_count else None
        columns = {name or "sample": column.describe() for name, column in self.columns.items()}
        return {"samples": self.samples, "columns": columns, "loss": loss}


def check_data(task: Task, name: str, config: RunConfig, limit: int) -> DataSummary:
    """Read samples, collate them and compute their loss, without training.

    Args:
        task: A task that was built for the CPU.
        name: `train_data` or `eval_data`. The task must define this data set.
        config: The settings that give the seed and the batch size.
        limit: Maximum number of samples to read. They are spread evenly over indexed data.

    Raises:
        InputError: If a sample cannot be read, differs from the first sample, is not finite or has
            no finite loss. The message names the first such sample.
    """
    summary = DataSummary()
    same_shapes = not isinstance(task, HasCollate)
    samples = read_samples(getattr(task, name), name, config.seed, limit)
    size = config.micro_batch or min(config.global_batch, limit)
    with evaluation_mode(task.model):
        while batch := list(islice(samples, size)):
            for index, sample in batch:
                for path, value in _tensors(sample, ""):
                    _check_value(summary, f"{name}[{index}]", path, value, same_shapes=same_shapes)
            _check_loss(task, name, batch, summary)
            summary.samples += len(batch)
    if not summary.samples:
        raise InputError(f'check: "{name}" holds no samples')
    used = name == "train_data" or not isinstance(task, HasMetrics)
    if used and not summary.loss_count:
        raise InputError(
            f"task: the count of loss is 0 for all {summary.samples} samples of {name} that were"
            " read; Weighted takes a sum and the number of samples or tokens in it"
        )
    return summary


def _check_loss(task: Task, name: str, batch: list[tuple[int, Any]], summary: DataSummary) -> None:
    """Compute the loss of a batch. If it fails, raise an error that names the failing sample."""
    data = getattr(task, name)
    try:
        total, *names = _loss(task, collate_input(data, batch))
    except InputError:
        raise
    except Exception as error:
        for index, sample in batch:
            single = collate_input(data, [(index, sample)])
            run_at(f"{name}[{index}]", partial(_loss, task, single))
        where = f"{name}[{batch[0][0]}] to [{batch[-1][0]}]"
        raise InputError(f"check: {where}: {one_line(error)}") from error
    if not math.isfinite(total.sum.item()):
        for index, sample in batch:
            single = collate_input(data, [(index, sample)])
            if not math.isfinite(_loss(task, single)[0].sum.item()):
                raise InputError(f"check: the loss of {name}[{index}] is not finite")
        where = f"{name}[{batch[0][0]}] to [{batch[-1][0]}]"
        raise InputError(f"check: the loss of {where} together is not finite")
    _check_names(summary, names, where=f"{name}[{batch[0][0]}] to [{batch[-1][0]}]")
    summary.loss_sum += total.sum.item()
    summary.loss_count += total.count_tensor().item()


def _check_names(summary: DataSummary, names: list[list[str]], where: str) -> None:
    """Compare the names of metrics and loss parts with those of the first batch."""
    first = summary.names or names
    for kind, before, now in zip(("metrics", "parts of the loss"), first, names, strict=True):
        # Only an evaluation computes metrics.
        if now != before and not (kind == "metrics" and where.startswith("train_data")):
            raise InputError(
                f"task: {kind} must have the same names for every batch, first {before}, but {now}"
                f" for {where}; count 0 where a batch has nothing to count"
            )
    summary.names = (first[0], first[1])


def _loss(task: Task, samples: Any) -> tuple[Weighted, list[str], list[str]]:
    """Return the loss of a batch, and the names of its metrics and of its parts."""
    metrics: object = {}
    with torch.no_grad():
        batch = collate_of(task)(samples)
        if isinstance(task, HasMetrics):
            metrics = task.metrics(task.model, batch)
        weighted: object = task.loss(task.model, batch)
    if not isinstance(weighted, Weighted) or weighted.sum.dim():
        raise InputError("task: loss must return Weighted(sum, count) with a scalar sum")
    count = weighted.count_tensor()
    if count.dim() or not 0 <= count.item() < math.inf:
        raise InputError(
            "task: the count of loss must be one number of at least 0, not"
            f" {f'{count.numel()} numbers' if count.dim() else count.item()}; for weighted samples"
            " it is the sum of their weights"
        )
    names = sorted(map(str, metrics)) if isinstance(metrics, Mapping) else []
    return weighted, names, sorted(weighted.parts)


def _check_value(
    summary: DataSummary, place: str, path: str, value: torch.Tensor, *, same_shapes: bool
) -> None:
    """Compare one part of a sample with the same part of the first sample."""
    dtype, shape = str(value.dtype).removeprefix("torch."), tuple(value.shape)
    column = summary.columns.setdefault(path, Column(dtype, shape))
    if same_shapes and (dtype, shape) != (column.dtype, column.shape):
        raise InputError(
            f"check: {place}{path} is {dtype} {shape}, but the first sample has"
            f" {column.dtype} {column.shape}"
        )
    if not value.numel():
        return
    low, high = value.min().item(), value.max().item()
    if not (math.isfinite(low) and math.isfinite(high)):
        raise InputError(f"check: {place}{path} has values that are not finite")
    column.low, column.high = min(column.low, low), max(column.high, high)


def _tensors(value: Any, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield all numbers within a sample as tensors, each with its path."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif _is_numeric_array(value) or isinstance(value, (bool, int, float)):
        yield path, torch.as_tensor(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(item, f'{path}["{key}"]')
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from _tensors(item, f"{path}[{number}]")
    elif dataclasses.is_dataclass(value):
        for part in dataclasses.fields(value):
            yield from _tensors(getattr(value, part.name), f"{path}.{part.name}")


def _is_numeric_array(value: Any) -> bool:
    return isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biuf"
