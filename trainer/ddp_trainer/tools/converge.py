"""One task trained on the same samples at several world sizes and batches: does it learn alike?"""

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
from ddp_trainer.observe.beats import BeatWriter
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.run.building import build_task
from ddp_trainer.run.opening import Order, open_run
from ddp_trainer.stop import StopFlag
from ddp_trainer.task import is_indexed
from ddp_trainer.train import loop

QUARTERS = 4
_NEVER = 10**9
_LINES = 4 * QUARTERS


@dataclass(frozen=True, slots=True)
class Way:
    """One way to train."""

    ranks: int
    batch: int
    """Samples per update, over all ranks."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of it."""

    updates: int
    samples: int
    lr: float
    """Peak learning rate."""
    losses: list[float | None]
    """Mean training loss in each quarter of the updates; nothing where no line fell into it."""
    metrics: dict[str, float]
    """Evaluation at the end."""
    seconds: float
    failure: str = ""
    """Why it ended early."""

    @property
    def loss(self) -> float:
        """What ways are judged by: the evaluation's loss, or else that of the last quarter told.

        Infinite where the training failed.
        """
        told = [loss for loss in self.losses if loss is not None]
        found = self.metrics.get("loss", told[-1] if told else None)
        ended = not self.failure and found is not None and math.isfinite(found)
        return found if ended and found is not None else math.inf


def data_size(ranks: Ranks, task: str, document: Document) -> int | None:
    """Training samples of a task, which is built for it; nothing where they have no number.

    Args:
        ranks: This process's place: alone.
        task: Import path `package.module:function`.
        document: Settings.

    Raises:
        InputError: If the task or its settings are wrong.
    """
    built, _ = build_task(task, resolve(document), ranks, torch.device("cpu"))
    return len(built.train_data) if is_indexed(built.train_data) else None


def settings_of(config: RunConfig, way: Way, base_batch: int, size: int | None) -> Document:
    """The user's settings for one way: the same samples, and the learning rate that goes with it.

    Warm-up and decay, where they are stated in updates, keep their length in samples.

    Args:
        config: What the user asked for, meant for `base_batch`.
        way: World size and batch.
        base_batch: The batch that learning rate and numbers of updates are meant for.
        size: Training samples, if they have a number.

    Raises:
        InputError: If the samples cannot be shared out.
    """
    document = config.model_dump(mode="json", exclude_unset=True)
    updates = _updates(config, way.batch, base_batch, size)
    if config.max_steps is not None:
        document["max_steps"] = updates
    schedule: Document = {}
    for key in ("warmup_steps", "decay_steps"):
        stated = getattr(config.schedule, key)
        if stated:
            schedule[key] = max(1, round(stated * base_batch / way.batch))
    if config.schedule.base_batch is None:
        rule = "linear" if config.optimizer.name == "sgd" else "sqrt"
        schedule |= {"base_batch": base_batch, "scaling": rule}
    over = {
        "global_batch": way.batch,
        "max_seconds": None,
        "eval_every_steps": _NEVER,  # at the end alone
        "schedule": schedule,
        # So that lines fall into each quarter.
        "log": {"every_steps": max(1, min(config.log.every_steps, updates // _LINES))},
        "checkpoint": {"directory": None},
    }
    found = merge(document, over)
    resolve(found).batch_split(way.ranks)
    return found


def _updates(config: RunConfig, batch: int, base_batch: int, size: int | None) -> int:
    """Updates of one batch that take the samples that the base batch takes, or a few more.

    Batches at the end of an epoch are smaller, so it takes the size of the data to know.
    """
    if size is None:
        return -(-(config.max_steps or 1) * base_batch // batch)
    samples = size * (config.epochs or 1)
    if config.max_steps is not None:
        reached = GlobalSampler(size, base_batch, seed=0).end_after(config.max_steps)
        samples = reached if config.epochs is None else min(samples, reached)
    return GlobalSampler(size, batch, seed=0).updates_between(0, samples)


def train_once(ranks: Ranks, task: str, document: Document) -> Outcome:
    """Trains one way. Every rank calls it.

    Args:
        ranks: This process's place.
        task: Import path `package.module:function`.
        document: Settings.

    Returns:
        The outcome, whole on rank 0 alone.

    Raises:
        Refusal: If it can never be trained as it was asked for.
    """
    said = io.StringIO()
    failure = ""
    with contextlib.redirect_stdout(said):
        run = open_run(
            Order(task, resolve(document)), ranks, StopFlag(), BeatWriter(None, ranks, 0)
        )
        try:
            loop(run)
            run.evaluate()
        except NonFiniteError as error:
            failure = str(error)
    events = [json.loads(line) for line in said.getvalue().splitlines() if line.startswith("{")]
    lines = [event for event in events if event.get("event") == "progress"]
    return Outcome(
        updates=run.position.step,
        samples=run.position.samples,
        lr=max(run.learner.peak_lrs),
        losses=by_quarter(lines, run.total_steps),
        metrics=run.metrics,
        seconds=run.seconds(),
        failure=failure,
    )


def by_quarter(lines: Sequence[dict[str, Any]], total_steps: int) -> list[float | None]:
    """Mean training loss in each quarter of the updates, of progress lines.

    Args:
        lines: Events with `step`, the last update that each tells of, and `loss`.
        total_steps: Updates of the whole run.
    """
    found: list[list[float]] = [[] for _ in range(QUARTERS)]
    for line in lines:
        quarter = (line["step"] - 1) * QUARTERS // max(1, total_steps)
        loss = math.nan if line["loss"] is None else line["loss"]
        found[min(max(quarter, 0), QUARTERS - 1)].append(loss)
    return [sum(losses) / len(losses) if losses else None for losses in found]


@dataclass(frozen=True, slots=True)
class Limits:
    """What is allowed."""

    within: float
    """How far the loss may be from that of fewer ranks with the same batch, as a part of it."""
    worse: float | None
    """How far it may be above that of the first batch; not judged when not stated."""


@dataclass(frozen=True, slots=True)
class Row:
    """One way beside the ones that it is judged by."""

    way: Way
    outcome: Outcome
    beside_ranks: float | None
    """Loss over that of the fewest ranks with the same batch, less one."""
    beside_batch: float | None
    """Loss over that of the first batch on the fewest ranks, less one."""
    fault: str
    """Why it is not as it should be; empty otherwise."""


def judge(outcomes: dict[Way, Outcome], limits: Limits) -> list[Row]:
    """Each way beside the fewest ranks with its batch, and those beside the first batch.

    Args:
        outcomes: By way, the first batch first, fewer ranks before more.
        limits: What is allowed.
    """
    rows = []
    first = next(iter(outcomes))
    for way, outcome in outcomes.items():
        alone = next(other for other in outcomes if other.batch == way.batch)
        by_ranks = None if way == alone else _beside(outcome, outcomes[alone])
        by_batch = _beside(outcome, outcomes[first]) if way == alone != first else None
        fault = ""
        if math.isinf(outcome.loss):
            fault = outcome.failure or "the loss is not finite"
        elif by_ranks is not None and not abs(by_ranks) <= limits.within:
            fault = f"more than {limits.within:.1%} from {alone.ranks} rank(s)"
        elif by_batch is not None and limits.worse is not None and not by_batch <= limits.worse:
            fault = f"more than {limits.worse:.1%} above batch {first.batch}"
        rows.append(Row(way, outcome, by_ranks, by_batch, fault))
    return rows


def _beside(one: Outcome, other: Outcome) -> float:
    if not other.loss or math.isinf(other.loss):
        return 0.0 if one.loss == other.loss else math.inf
    return one.loss / other.loss - 1.0


def table(rows: Sequence[Row]) -> str:
    """Rows as Markdown."""
    names = sorted({name for row in rows for name in row.outcome.metrics})
    head = ["ranks", "batch", "samples", "updates", "peak lr", "loss by quarter", *names]
    head += ["to fewest ranks", "to first batch", "seconds", ""]
    lines = [head, ["---"] * len(head)]
    for row in rows:
        way, outcome = row.way, row.outcome
        quarters = " ".join("-" if loss is None else f"{loss:.4g}" for loss in outcome.losses)
        metrics = [f"{outcome.metrics.get(name, math.nan):.4g}" for name in names]
        beside = ["-" if x is None else f"{x:+.1%}" for x in (row.beside_ranks, row.beside_batch)]
        counts = map(str, (way.ranks, way.batch, outcome.samples, outcome.updates))
        seconds = f"{outcome.seconds:.0f}"
        lines.append(
            [*counts, f"{outcome.lr:.3g}", quarters, *metrics, *beside, seconds, row.fault or "ok"]
        )
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
