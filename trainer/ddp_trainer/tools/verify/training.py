"""Functions of `verify` that each rank runs to train its part of the cases.

All functions run in forked ranks. The ranks save the weights of each case to a shared folder, and
return their findings to the process that forked them.
"""

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from ddp_trainer.config.settings import Document, merge, resolve
from ddp_trainer.errors import InputError
from ddp_trainer.observe.heartbeats import HeartbeatWriter
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.run.building import build_task
from ddp_trainer.run.opening import RunRequest, open_run
from ddp_trainer.run.state import gather
from ddp_trainer.stop import StopFlag
from ddp_trainer.task import HasOptimizer
from ddp_trainer.tools.check.repeats import random_sample, unrepeatable_sample
from ddp_trainer.tools.verify.buffers import BufferReport, compare_buffers
from ddp_trainer.tools.verify.cases import REFERENCE, Case
from ddp_trainer.train import loop

BUFFER_STEPS = 5
"""Number of updates before the buffers of the ranks are compared."""


@dataclass(frozen=True, slots=True)
class Findings:
    """Findings of the ranks of one world size."""

    refused: dict[Case, str]
    """Reason why a strategy cannot train the task, by case."""
    buffers: BufferReport | None
    """Report on the buffers that training changes. None if it changes none."""


def has_optimizer(ranks: Ranks, task: str, document: Document) -> bool:
    """Return whether the task has an optimizer of its own."""
    built, _ = build_task(task, resolve(document), ranks, torch.device("cpu"))
    return isinstance(built, HasOptimizer)


def find_random_sample(ranks: Ranks, task: str, document: Document) -> str | None:
    """Return the place of the first training sample that depends on the seed, or None.

    Raises:
        InputError: If a sample differs between two reads with the same seeds.
    """
    built, _ = build_task(task, resolve(document), ranks, torch.device("cpu"))
    sentence = unrepeatable_sample(built.train_data, "train_data")
    if sentence:
        raise InputError(f"verify: {sentence}")
    return random_sample(built.train_data, "train_data")


def train_all(
    ranks: Ranks, cases: Sequence[tuple[Case, Document]], task: str, folder: str
) -> Findings:
    """Train this rank's part of each case, one case after another."""
    live: list[Document] = []
    refused: dict[Case, str] = {}
    for case, document in cases:
        try:
            if _train(case, ranks, task, document, Path(folder)):
                live.append(document)
        except InputError as error:
            # All ranks refuse a strategy alike, before the first update.
            if error.rank_specific or case == REFERENCE:
                raise
            refused[case] = str(error)
    if not live:
        return Findings(refused, None)
    document = merge(live[0], {"micro_batch": None, "max_steps": BUFFER_STEPS})
    with contextlib.redirect_stdout(io.StringIO()):
        return Findings(refused, compare_buffers(task, resolve(document), ranks))


def _train(case: Case, ranks: Ranks, task: str, document: Document, folder: Path) -> bool:
    """Train one case, save its weights, and return whether training changes buffers."""
    micro_batch = case.micro_batch(document["global_batch"])
    over = {"micro_batch": micro_batch, "parallel": {"strategy": case.strategy}}
    request = RunRequest(task, resolve(merge(document, over)))
    with contextlib.redirect_stdout(io.StringIO()):
        run = open_run(request, ranks, StopFlag(), HeartbeatWriter(None, ranks, 0))
        # Dropout and BatchNorm depend on which rank has which sample: eval() turns both off.
        run.learner.model.eval()
        loop(run)
        snapshot = gather(run.learner, run.task)
    if snapshot:
        save_file(dict(snapshot.model.items()), folder / case.file)
    return run.learner.buffers is not None and bool(run.learner.buffers.names)
