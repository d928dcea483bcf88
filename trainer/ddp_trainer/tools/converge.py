"""Train a task at several world sizes and batches with equally many samples. Compare the losses."""

import contextlib
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ddp_trainer.config import RunConfig
from ddp_trainer.config.settings import Document, merge, resolve
from ddp_trainer.data.sampler import GlobalSampler
from ddp_trainer.numerics.guard import NonFiniteError
from ddp_trainer.observe.heartbeats import HeartbeatWriter
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.run.building import build_task
from ddp_trainer.run.evaluating import evaluate_run
from ddp_trainer.run.opening import RunRequest, open_run
from ddp_trainer.stop import StopFlag
from ddp_trainer.task import is_indexed
from ddp_trainer.train import loop

QUARTERS = 4
_NEVER = 10**9
_MIN_PROGRESS_LINES = 4 * QUARTERS


@dataclass(frozen=True, slots=True)
class Combination:
    """A world size and a global batch at which the task is trained."""

    ranks: int
    batch: int
    """Samples per update, over all ranks."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of the training at one combination."""

    updates: int
    samples: int
    lr: float
    """Peak learning rate."""
    losses: list[float | None]
    """Mean training loss in each quarter of the updates. None for a quarter without a progress
    event."""
    metrics: dict[str, float]
    """Metrics of the evaluation at the end."""
    seconds: float
    failure: str = ""
    """Reason for an early end. Empty if the training completed."""

    @property
    def loss(self) -> float:
        """Return the loss of the final evaluation, or else of the last quarter of the training.

        Return infinity if the training failed.
        """
        reported = [loss for loss in self.losses if loss is not None]
        found = self.metrics.get("loss", reported[-1] if reported else None)
        ended = not self.failure and found is not None and math.isfinite(found)
        return found if ended and found is not None else math.inf


def data_size(ranks: Ranks, task: str, document: Document) -> int | None:
    """Build a task and return its number of training samples. None if the data have no length.

    Args:
        ranks: The rank of this process, which must be the only rank.
        task: Import path `package.module:function`.
        document: Settings of the run.

    Raises:
        InputError: If the task or its settings are wrong.
    """
    built, _ = build_task(task, resolve(document), ranks, torch.device("cpu"))
    return len(built.train_data) if is_indexed(built.train_data) else None


def settings_for(
    config: RunConfig, combination: Combination, base_batch: int, size: int | None
) -> Document:
    """Return the user's settings for one combination.

    The run uses about as many samples as with `base_batch`. Warm-up and decay that are given in
    updates cover as many samples, too. The learning rate is scaled to the batch.

    Args:
        config: The user's settings, which apply to `base_batch`.
        combination: World size and global batch.
        base_batch: Global batch to which the learning rate and the numbers of updates apply.
        size: Number of training samples, if it is known.

    Raises:
        InputError: If the batch cannot be divided among the ranks.
    """
    document = config.model_dump(mode="json", exclude_unset=True)
    updates = _updates(config, combination.batch, base_batch, size)
    if config.max_steps is not None:
        document["max_steps"] = updates
    schedule: Document = {}
    for key in ("warmup_steps", "decay_steps"):
        stated = getattr(config.schedule, key)
        if stated:
            schedule[key] = max(1, round(stated * base_batch / combination.batch))
    if config.schedule.base_batch is None:
        rule = "linear" if config.optimizer.name == "sgd" else "sqrt"
        schedule |= {"base_batch": base_batch, "scaling": rule}
    # Each quarter needs some progress lines.
    every_steps = max(1, min(config.log.every_steps, updates // _MIN_PROGRESS_LINES))
    over = {
        "global_batch": combination.batch,
        "max_seconds": None,
        "eval_every_steps": _NEVER,  # the run still evaluates at its end
        "schedule": schedule,
        "log": {"every_steps": every_steps},
        "checkpoint": {"directory": None},
    }
    merged = merge(document, over)
    resolve(merged).batch_split(combination.ranks)
    return merged


def _updates(config: RunConfig, batch: int, base_batch: int, size: int | None) -> int:
    """Return the number of updates that use as many samples as with `base_batch`, or slightly more.

    `size` matters, because the last batch of an epoch is smaller.
    """
    if size is None:
        return -(-(config.max_steps or 1) * base_batch // batch)
    samples = size * (config.epochs or 1)
    if config.max_steps is not None:
        reached = _sampler(config, base_batch, size).end_after(config.max_steps)
        samples = reached if config.epochs is None else min(samples, reached)
    return _sampler(config, batch, size).updates_between(0, samples)


def _sampler(config: RunConfig, batch: int, size: int) -> GlobalSampler:
    return GlobalSampler(size, batch, seed=0, drop_last=config.data.drop_last)


def train_once(ranks: Ranks, task: str, document: Document) -> Outcome:
    """Train one combination. Every rank must call this function.

    Args:
        ranks: The rank of this process.
        task: Import path `package.module:function`.
        document: Settings of the run.

    Returns:
        The outcome. It is complete on rank 0 only.

    Raises:
        ReportedError: If the run can never succeed with these settings.
    """
    output = io.StringIO()
    failure = ""
    document = merge(document, {"log": {"format": "json"}})
    with contextlib.redirect_stdout(output):
        run = open_run(
            RunRequest(task, resolve(document)), ranks, StopFlag(), HeartbeatWriter(None, ranks, 0)
        )
        try:
            loop(run)
            evaluate_run(run)
        except NonFiniteError as error:
            failure = str(error)
    events = [json.loads(line) for line in output.getvalue().splitlines() if line.startswith("{")]
    progress = [event for event in events if event.get("event") == "progress"]
    return Outcome(
        updates=run.position.step,
        samples=run.position.samples,
        lr=max(run.learner.peak_lrs),
        losses=losses_by_quarter(progress, run.total_steps),
        metrics=run.metrics,
        seconds=run.seconds(),
        failure=failure,
    )


def losses_by_quarter(progress: Sequence[dict[str, Any]], total_steps: int) -> list[float | None]:
    """Return the mean training loss in each quarter of the updates.

    Args:
        progress: Progress events. `step` is the last update that `loss` covers.
        total_steps: Updates of the whole run.
    """
    quarters: list[list[float]] = [[] for _ in range(QUARTERS)]
    for event in progress:
        quarter = (event["step"] - 1) * QUARTERS // max(1, total_steps)
        loss = math.nan if event["loss"] is None else event["loss"]
        quarters[min(max(quarter, 0), QUARTERS - 1)].append(loss)
    return [sum(losses) / len(losses) if losses else None for losses in quarters]


@dataclass(frozen=True, slots=True)
class Limits:
    """Largest permitted differences between losses, as fractions."""

    within: float
    """Largest permitted difference from the loss of the fewest ranks with the same batch, as a
    fraction."""
    worse: float | None
    """Largest permitted excess over the loss of the first batch, as a fraction. None for no
    limit."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Outcome of one combination, compared with those of fewer ranks and of the first batch."""

    combination: Combination
    outcome: Outcome
    rank_difference: float | None
    """Difference from the loss of the fewest ranks with the same batch, as a fraction."""
    batch_difference: float | None
    """Difference from the loss of the first batch on the fewest ranks, as a fraction."""
    problem: str
    """Reason why the outcome exceeds the limits. Empty if it does not."""


def compare(outcomes: dict[Combination, Outcome], limits: Limits) -> list[Comparison]:
    """Compare each combination with the fewest ranks, and each batch with the first one.

    Args:
        outcomes: Outcomes by combination, sorted: the first batch before others, fewer ranks before
            more.
        limits: Largest permitted differences.
    """
    comparisons = []
    first = next(iter(outcomes))
    for combination, outcome in outcomes.items():
        fewest = next(other for other in outcomes if other.batch == combination.batch)
        is_fewest = combination == fewest
        by_ranks = None if is_fewest else _relative_difference(outcome, outcomes[fewest])
        by_batch = None
        if is_fewest and fewest != first:
            by_batch = _relative_difference(outcome, outcomes[first])
        problem = ""
        if math.isinf(outcome.loss):
            problem = outcome.failure or "the loss is not finite"
        elif by_ranks is not None and not abs(by_ranks) <= limits.within:
            problem = f"more than {limits.within:.1%} from {fewest.ranks} rank(s)"
        elif by_batch is not None and limits.worse is not None and not by_batch <= limits.worse:
            problem = f"more than {limits.worse:.1%} above batch {first.batch}"
        comparisons.append(Comparison(combination, outcome, by_ranks, by_batch, problem))
    return comparisons


def _relative_difference(one: Outcome, other: Outcome) -> float:
    if not other.loss or math.isinf(other.loss):
        return 0.0 if one.loss == other.loss else math.inf
    return one.loss / other.loss - 1.0


def table(comparisons: Sequence[Comparison]) -> str:
    """Return the comparisons as a Markdown table."""
    names = sorted({name for row in comparisons for name in row.outcome.metrics})
    head = ["ranks", "batch", "samples", "updates", "peak lr", "loss by quarter", *names]
    head += ["vs fewest ranks", "vs first batch", "seconds", "result"]
    lines = [head, ["---"] * len(head)]
    for row in comparisons:
        combination, outcome = row.combination, row.outcome
        quarters = " ".join("-" if loss is None else f"{loss:.4g}" for loss in outcome.losses)
        metrics = [f"{outcome.metrics.get(name, math.nan):.4g}" for name in names]
        differences = (row.rank_difference, row.batch_difference)
        percents = ["-" if x is None else f"{x:+.1%}" for x in differences]
        numbers = (combination.ranks, combination.batch, outcome.samples, outcome.updates)
        counts, lr = map(str, numbers), f"{outcome.lr:.3g}"
        seconds, result = f"{outcome.seconds:.0f}", row.problem or "ok"
        lines.append([*counts, lr, quarters, *metrics, *percents, seconds, result])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
