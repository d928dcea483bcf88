"""Report the start of an attempt: its start event, warnings and notes."""

from collections.abc import Iterable

import torch

from ddp_trainer.checkpoint.initial import WeightMatch
from ddp_trainer.checkpoint.snapshot import Checkpoint
from ddp_trainer.data.auto_workers import WorkerChoice
from ddp_trainer.data.budget import CpuBudget
from ddp_trainer.learner import Learner, footprint
from ddp_trainer.parallel.memory import advise
from ddp_trainer.ranks.topology import rank_map, ring_warning
from ddp_trainer.run.data import RunData
from ddp_trainer.run.parts import BuiltTask, Group, Resume
from ddp_trainer.run.replicas import why_off
from ddp_trainer.run.resize import resize_notes
from ddp_trainer.run.run import Run
from ddp_trainer.run.state import unused_state
from ddp_wire.messages import CheckpointInfo


def report_first(
    run: Run,
    group: Group,
    built: BuiltTask,
    resume: Resume,
    data: RunData,
    *,
    initial: WeightMatch | None,
) -> None:
    """Report the start of an attempt, then warnings and notes about the start.

    Args:
        run: The opened run.
        group: The process group of the run.
        built: The task, and the result of the comparison of all ranks.
        resume: The checkpoints of the run.
        data: The data of the run on this rank.
        initial: Result of loading `init_from`, if the run loaded it.
    """
    _report_opened(run, group, built, resume, data)
    other = [group.route.warning, *_changes(built, run.learner, resume.saved)]
    _report_warnings(run, built, other, data.loaders.budget)
    _report_notes(run, data.choice, initial)
    if off := why_off(run.config, run.ranks, built.arithmetics):
        run.report.note(off)
    for sentence in resize_notes(run.learner, run.config, run.ranks.world_size, resume.saved):
        run.report.note(sentence)
    _report_memory(run)


def _report_opened(run: Run, group: Group, built: BuiltTask, resume: Resume, data: RunData) -> None:
    """Report the start event."""
    found = resume.opened["resume"]
    run.report.opened(
        newest=CheckpointInfo(**found) if found else None,
        resumed_step=resume.saved.state.step if resume.saved else None,
        record=resume.record,
        skipped=resume.opened["skipped"],
        task=run.task_path,
        world_size=run.ranks.world_size,
        places=rank_map(built.locations),
        device=str(run.learner.device),
        precision=run.config.precision,
        global_batch=run.config.global_batch,
        micro_batch=group.split.micro_batch,
        accumulation=group.split.accumulation,
        strategy=run.config.parallel.strategy,
        parameters=sum(param.numel() for param in run.learner.model.parameters()),
        bytes_per_rank=footprint(run.learner).by_strategy(run.ranks.world_size),
        train_samples=run.sampler.size,
        workers=data.loaders.budget.workers,
        **group.route.described(),
        checkpoint_dir=run.config.checkpoint.directory,
    )


def _report_warnings(
    run: Run, built: BuiltTask, other: Iterable[str | None], budget: CpuBudget
) -> None:
    """Report differences between ranks, copied weights, slow routes and missing CPUs."""
    ring = ring_warning(built.locations)
    for sentence in filter(None, [*built.warnings, ring, budget.warning, *other]):
        run.report.warn(sentence)


def _changes(built: BuiltTask, learner: Learner, saved: Checkpoint | None) -> list[str]:
    """Return one sentence for each change of code or data since the checkpoint."""
    changed = built.fingerprints.warnings(saved.state) if saved else []
    return [*changed, *unused_state(learner, built.task, saved)]


def _report_notes(run: Run, choice: WorkerChoice | None, initial: WeightMatch | None) -> None:
    """Report the live buffers, a chosen number of workers, and loaded weights."""
    buffers, local = run.learner.buffers, run.learner.local_sgd is not None
    if buffers and (sentence := buffers.sentence(local=local)):
        run.report.note(sentence)
    if choice:
        run.report.note(choice.sentence())
    if initial and initial.complete:
        run.report.note(f"loaded {len(initial.loaded)} initial tensors from {initial.path}")
    elif initial:
        run.report.warn(initial.sentence())


def _report_memory(run: Run) -> None:
    """Warn if the strategy leaves too little GPU memory."""
    if run.learner.device.type == "cuda":
        device_bytes = torch.cuda.get_device_properties(run.learner.device).total_memory
        strategy = run.config.parallel.strategy
        advice = advise(footprint(run.learner), run.ranks.world_size, strategy, device_bytes)
        if advice:
            run.report.warn(advice)
