"""Check a task's samples on the CPU in one process, before a job occupies many machines."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, cast

import numpy as np
import torch

from ddp_trainer.config import RunConfig
from ddp_trainer.data.evaluation import evaluation_mode
from ddp_trainer.data.loader import collate_of, fetch
from ddp_trainer.data.sampler import divided, shortest_pass
from ddp_trainer.errors import InputError
from ddp_trainer.numerics.batch_norm import norms_in
from ddp_trainer.seeds import derive_seed, seed_all
from ddp_trainer.task import Data, HasCollate, HasMetrics, Indexed, Task, Weighted, is_indexed
from ddp_trainer.tools.check.step import check_gradients, check_parts


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
        name: `train_data` or `eval_data`. The task must have it.
        config: The settings that give the seed and the batch size.
        limit: Maximum number of samples to read. They are spread evenly over indexed data.

    Raises:
        InputError: If a sample cannot be read, differs from the first sample, is not finite or has
            no finite loss. The message names the first such sample.
    """
    summary = DataSummary()
    same_shapes = not isinstance(task, HasCollate)
    samples = _samples(getattr(task, name), name, config.seed, limit)
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


def check_batch_norm(task: Task, config: RunConfig, world_size: int) -> None:
    """Check that each BatchNorm of the model gets more than one sample in training.

    Args:
        task: A task that was built for the CPU.
        config: The settings that divide the data.
        world_size: Number of ranks that will train.

    Raises:
        InputError: If some rank would normalise a single sample by itself.
    """
    if not any(norm.training for norm in norms_in(task.model)):
        return
    micro_batch = config.batch_split(world_size).micro_batch
    division = (
        f"global_batch {config.global_batch}, micro_batch {micro_batch}, world size {world_size}"
    )
    # SyncBatchNorm counts the samples of all ranks.
    shortest = partial(
        shortest_pass,
        world_size=world_size,
        micro_batch=micro_batch,
        together=config.sync_batch_norm,
    )
    alone = "check: BatchNorm would normalise a single sample by itself"
    if shortest(config.global_batch) == 1:
        raise InputError(
            f"{alone}, because a forward pass has only one ({division}): raise global_batch or"
            " micro_batch"
        )
    rest = _last_batch(task, config)
    if rest and shortest(rest) == 1:
        raise InputError(
            f"{alone} at the end of each epoch, where {rest} of"
            f" {len(cast('Indexed', task.train_data))} samples are left ({division}): use"
            " data.drop_last=true or another global_batch"
        )


def check_shares(config: RunConfig, world_size: int) -> str | None:
    """Return a sentence if ranks with fewer samples than others have the same weight; else None.

    Gradients are weighted by counts, so it makes a difference only for averages of weights.
    """
    fewer, more = (f(divided(config.global_batch, world_size)) for f in (min, max))
    if config.parallel.local_sgd.period is None or fewer == more:
        return None
    return (
        f"parallel.local_sgd gives each rank the same weight in an average, but of global_batch"
        f" {config.global_batch} some of the {world_size} ranks get {more} samples and others"
        f" {fewer}: use a multiple of {world_size} to give each sample the same weight"
    )


def check_training(task: Task, config: RunConfig, limit: int) -> str | None:
    """Check the loss of the first batch as training uses it, see `tools.check.step`.

    Args:
        task: A task that was built for the CPU.
        config: The settings of the run.
        limit: Maximum number of samples to use.

    Returns:
        A sentence about what several ranks do not accept, or None.

    Raises:
        InputError: If the loss has no gradient, or is not additive.
    """
    size = min(config.micro_batch or config.global_batch, limit)
    batch = list(islice(_samples(task.train_data, "train_data", config.seed, size), size))

    if not batch:
        raise InputError(
            'task: "train_data" is an iterator that ends after one pass, as a generator does; each'
            " pass needs its own: return an object with __iter__"
        )

    def prepare(first: int, end: int) -> Any:
        return collate_of(task)(_collate_input(task.train_data, batch[first:end]))

    check_parts(task, prepare, len(batch))
    return check_gradients(task, prepare(0, len(batch)), config)


def training_batch(task: Task, config: RunConfig, limit: int) -> Any:
    """Return a collated batch of training data.

    Args:
        task: A task that was built for the CPU.
        config: The settings of the run.
        limit: Maximum number of samples to use.
    """
    size = min(config.micro_batch or config.global_batch, limit)
    samples = _samples(task.train_data, "train_data", config.seed, size)
    return collate_of(task)(_collate_input(task.train_data, list(islice(samples, size))))


def _last_batch(task: Task, config: RunConfig) -> int:
    """Return the samples of the incomplete batch at the end of an epoch; 0 if there is none."""
    if config.data.drop_last or not is_indexed(task.train_data):
        return 0
    whole, rest = divmod(len(task.train_data), config.global_batch)
    ends_before = config.max_steps is not None and config.max_steps <= whole
    return 0 if ends_before else rest


def _samples(data: Data, name: str, seed: int, limit: int) -> Iterator[tuple[int, Any]]:
    """Yield each sample with its index."""
    if not is_indexed(data):
        seed_all(derive_seed(seed, "check"))
        yield from islice(enumerate(cast("Iterable[Any]", data)), limit)
        return
    size = len(data)
    count = min(size, limit)
    for index in (size * number // count for number in range(count)):
        seed_all(derive_seed(seed, "check", index))
        yield index, _run_at(f"{name}[{index}]", partial(data.__getitem__, index))


def _check_loss(task: Task, name: str, batch: list[tuple[int, Any]], summary: DataSummary) -> None:
    """Compute the loss of a batch. If that fails, name the first sample that fails alone."""
    data = getattr(task, name)
    try:
        total, *names = _loss(task, _collate_input(data, batch))
    except InputError:
        raise
    except Exception as error:
        for index, sample in batch:
            single = _collate_input(data, [(index, sample)])
            _run_at(f"{name}[{index}]", partial(_loss, task, single))
        where = f"{name}[{batch[0][0]}] to [{batch[-1][0]}]"
        raise InputError(f"check: {where}: {_one_line(error)}") from error
    if not math.isfinite(total.sum.item()):
        for index, sample in batch:
            single = _collate_input(data, [(index, sample)])
            if not math.isfinite(_loss(task, single)[0].sum.item()):
                raise InputError(f"check: the loss of {name}[{index}] is not finite")
        where = f"{name}[{batch[0][0]}] to [{batch[-1][0]}]"
        raise InputError(f"check: the loss of {where} together is not finite")
    _check_names(summary, names, where=f"{name}[{batch[0][0]}] to [{batch[-1][0]}]")
    summary.loss_sum += total.sum.item()
    summary.loss_count += total.count_tensor().item()


def _collate_input(data: Data, samples: list[tuple[int, Any]]) -> Any:
    """Return samples that were read one by one in the form that `collate` takes."""
    if is_indexed(data) and hasattr(data, "__getitems__"):
        return fetch(data, [index for index, _ in samples])
    return [sample for _, sample in samples]


def _check_names(summary: DataSummary, names: list[list[str]], where: str) -> None:
    """Compare the names of metrics and parts with those of the first batch."""
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


def _run_at(place: str, function: Callable[[], Any]) -> Any:
    """Call a function. Raise its failure as an InputError that names the place."""
    try:
        return function()
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"check: {place}: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
