"""Opening of a run: join the other ranks, build the task, resume from a checkpoint."""

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ddp_trainer.checkpoint.initial import WeightMatch, load_initial
from ddp_trainer.checkpoint.manager import CheckpointManager
from ddp_trainer.checkpoint.snapshot import Snapshot
from ddp_trainer.config import BatchSplit, RunConfig
from ddp_trainer.data.auto_workers import WorkerChoice, choose_workers
from ddp_trainer.data.budget import CpuBudget, divide_cpus, spare_cpus
from ddp_trainer.data.fingerprint import fingerprint
from ddp_trainer.data.loader import LoaderFactory, Sampler, make_sampler
from ddp_trainer.data.prefetch import to_device
from ddp_trainer.data.sampler import MicroBatch, RankSlice, divided
from ddp_trainer.data.stream import StreamSampler
from ddp_trainer.errors import InputError
from ddp_trainer.learner import Learner, build_learner, footprint
from ddp_trainer.numerics.guard import NonFiniteTracker
from ddp_trainer.numerics.precision import set_arithmetic, with_precision
from ddp_trainer.observe.heartbeats import HeartbeatWriter
from ddp_trainer.observe.phases import PhaseTimer
from ddp_trainer.observe.starvation import DataWaitMonitor
from ddp_trainer.observe.stragglers import StragglerMonitor
from ddp_trainer.observe.trace import Trace
from ddp_trainer.observe.work import make_work_meter
from ddp_trainer.parallel.memory import advise
from ddp_trainer.ranks import process_group, timeouts
from ddp_trainer.ranks.agreement import Agreement
from ddp_trainer.ranks.collectives import on_first_rank
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.ranks.preflight import RankInfo, build_and_compare, rank_info
from ddp_trainer.ranks.topology import Location, rank_map, ring_warning
from ddp_trainer.run.building import build_task, document_of
from ddp_trainer.run.rehearsal import rehearse_if_needed
from ddp_trainer.run.reporting import make_reporter
from ddp_trainer.run.run import Position, Run
from ddp_trainer.run.source import Fingerprints, source_fingerprint
from ddp_trainer.run.state import restore, task_state, unused_state
from ddp_trainer.stop import StopFlag
from ddp_trainer.task import Task
from ddp_wire.activity import Activity
from ddp_wire.contract import CheckpointInfo, RankPhase
from ddp_wire.machine import cpu_count


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A requested run: task, config and attempt."""

    task: str
    """Import path `package.module:function`."""
    config: RunConfig
    attempt: int | None = None
    """Number of this attempt. None means the next free number."""
    job: str = ""
    """Uid of the job."""


@dataclass(frozen=True, slots=True)
class _Group:
    """This rank's device and its process group."""

    device: torch.device
    split: BatchSplit
    route: process_group.Route


@dataclass(frozen=True, slots=True)
class _Built:
    """The task, its resolved config, and the result of comparing all ranks."""

    task: Task
    config: RunConfig
    document: dict[str, Any]
    locations: list[Location]
    fingerprints: Fingerprints
    warnings: list[str]


@dataclass(frozen=True, slots=True)
class _Resume:
    """The opened checkpoints, and the snapshot to resume from."""

    checkpoints: CheckpointManager
    opened: dict[str, Any]
    """Result of `CheckpointManager.open`."""
    saved: Snapshot | None


@dataclass(frozen=True, slots=True)
class _Data:
    """This rank's data from the start position on."""

    sampler: Sampler
    rank_slice: RankSlice
    loaders: LoaderFactory
    position: Position
    total_steps: int
    choice: WorkerChoice | None = None
    """Choice of the number of worker processes; None if the config states it."""

    def training(self) -> Iterable[MicroBatch]:
        """Create the loader of the remaining updates."""
        updates = self.total_steps - self.position.step
        return self.loaders.training(self.sampler, self.rank_slice, self.position.samples, updates)

    def first(self) -> MicroBatch:
        """Return the first micro-batch."""
        return self.loaders.first(self.sampler, self.rank_slice, self.position.samples)


def open_run(request: RunRequest, ranks: Ranks, stop: StopFlag, heartbeats: HeartbeatWriter) -> Run:
    """Open a run, at its newest complete checkpoint or at the beginning.

    Args:
        request: The requested run.
        ranks: This process's rank.
        stop: Flag that signal handlers set.
        heartbeats: Writer of this rank's heartbeats.

    Raises:
        InputError: On every rank, if the run can never succeed with these settings.
        VolumeError: On every rank, if rank 0 cannot read or write the volume.
    """
    group = _join(request.config, ranks)
    request = replace(request, config=with_precision(request.config, group.device))
    built = _build(request, ranks, group.device)
    heartbeats.phase(RankPhase.TRAINING)
    resume = _open_checkpoints(request, built, group.device)
    data = _data(built, resume.saved, ranks, group)
    initial = _load_initial(built, resume.saved, group.device)
    learner = _learner(built, resume.saved, data, ranks, group.device)
    work = make_work_meter(group.device, ranks.world_size)
    learner.trace = _trace(built.config, ranks, group.device, (heartbeats.enter, work.enter))
    attempt, steps = resume.opened["attempt"], data.total_steps
    report = make_reporter(
        built.task, built.config, ranks, attempt, heartbeats=heartbeats, total_steps=steps
    )
    run = Run(
        config=built.config,
        task_path=request.task,
        fingerprints=built.fingerprints,
        ranks=ranks,
        attempt=attempt,
        task=built.task,
        learner=learner,
        sampler=data.sampler,
        train_loader=data.training(),
        eval_loader=data.loaders.evaluation(data.rank_slice),
        checkpoints=resume.checkpoints,
        agreement=_agreement(data.position, built.config, ranks),
        stop=stop,
        report=report,
        work=work,
        position=data.position,
        total_steps=steps,
        reported_step=data.position.step,
        nonfinite=NonFiniteTracker(
            built.config.nonfinite,
            learner.guard.policy,
            resume.saved.state if resume.saved else {},
        ),
        stragglers=StragglerMonitor(divided(built.config.global_batch, ranks.world_size)),
        data_wait_monitor=DataWaitMonitor(report.times.data_wait, ranks.rank, ranks.world_size),
    )
    _report_opened(run, resume.opened, group, built.locations, data.loaders.budget.workers)
    other = [group.route.warning, *_changes(built, learner, resume.saved)]
    _report_warnings(run, built, other, data.loaders.budget)
    _report_notes(run, data.choice, initial)
    _report_memory(run)
    return run


def _join(config: RunConfig, ranks: Ranks) -> _Group:
    """Set up the device, and join the process group."""
    device = process_group.choose_device(config.device, ranks)
    set_arithmetic(with_precision(config, device))
    split = config.batch_split(ranks.world_size)
    timeouts.configure(config, os.environ, nccl=device.type == "cuda")
    route = process_group.join(ranks, device, config.parallel.first_timeout)
    return _Group(device, split, route)


def _build(request: RunRequest, ranks: Ranks, device: torch.device) -> _Built:
    """Build the task on every rank, and check that all ranks are alike."""
    copied: list[str] = []

    def build() -> tuple[tuple[Task, RunConfig], RankInfo]:
        task, config = build_task(request.task, request.config, ranks, device, copied.append)
        data = "; ".join(map(fingerprint, (task.train_data, task.eval_data)))
        location = Location.from_environment(os.environ)
        document, source = document_of(request.task, config), source_fingerprint(request.task)
        return (task, config), rank_info(device, document, data, source, location)

    mixed = request.config.parallel.allow_mixed
    (task, config), infos, warnings = build_and_compare(build, ranks, device, allow_mixed=mixed)
    locations = [info.location for info in infos]
    document = document_of(request.task, config)
    same = Fingerprints(infos[0].source, infos[0].data)
    return _Built(task, config, document, locations, same, warnings + copied)


def _open_checkpoints(request: RunRequest, built: _Built, device: torch.device) -> _Resume:
    """Open the checkpoint directory on rank 0, and distribute the newest complete checkpoint."""
    config = built.config
    checkpoints = CheckpointManager(config.checkpoint)
    # Rank 0 reads whole checkpoints, while the others wait for it.
    with _volume_timeout(config):
        opened = on_first_rank(
            lambda: checkpoints.open(request.attempt, built.document, request.job), device
        )
        saved = checkpoints.receive(device) if opened["resume"] else None
    return _Resume(checkpoints, opened, saved)


def _volume_timeout(config: RunConfig) -> AbstractContextManager[None]:
    return process_group.timeout(config.checkpoint.timeout_seconds, config.parallel.first_timeout)


def _data(built: _Built, saved: Snapshot | None, ranks: Ranks, group: _Group) -> _Data:
    """Prepare this rank's data from the position of the checkpoint on."""
    config = built.config
    sampler = make_sampler(built.task, config, saved.state if saved else None)
    position = _position(saved, sampler) if saved else Position()
    total_steps = _total_steps(sampler, position, config)
    rank_slice = RankSlice(ranks.rank, ranks.world_size, group.split.micro_batch)
    requested = config.data.workers
    budget = divide_cpus(
        cpu_count(), ranks.local_world_size, 0 if requested == "auto" else requested
    )
    loaders = LoaderFactory(built.task, config.data, budget, group.device)
    data = _Data(sampler, rank_slice, loaders, position, total_steps)
    left = position.step < total_steps
    if requested == "auto" and group.device.type == "cuda" and left:
        data = _with_chosen_workers(data, ranks)
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(data.loaders.budget.threads)
    return data


def _with_chosen_workers(data: _Data, ranks: Ranks) -> _Data:
    """Return the data with the number of workers that fits the time to prepare a batch."""
    spare = spare_cpus(cpu_count(), ranks.local_world_size)
    training, shipped = data.loaders.task.train_data, data.loaders.shipped()
    choice = choose_workers(training, data.first, spare, shipped=shipped)
    budget = divide_cpus(cpu_count(), ranks.local_world_size, choice.workers)
    loaders = replace(data.loaders, budget=budget)
    return replace(data, loaders=loaders, choice=choice)


def _load_initial(
    built: _Built, saved: Snapshot | None, device: torch.device
) -> WeightMatch | None:
    """Load the weights of `init_from`, unless the run resumes from a checkpoint."""
    config = built.config
    if saved or not config.init_from:
        return None
    return load_initial(built.task.model, config.init_from, device, strict=config.init_strict)


def _learner(
    built: _Built, saved: Snapshot | None, data: _Data, ranks: Ranks, device: torch.device
) -> Learner:
    """Build the learner, restore it from the checkpoint, and rehearse if necessary."""
    config, step = built.config, data.position.step
    learner = build_learner(built.task, config, ranks, device)
    task_state(built.task)  # Raise its InputError before the training, not at the first save.
    if saved:
        # Rank 0 reads the tensors meanwhile.
        with _volume_timeout(config):
            restore(learner, built.task, saved)
    if step < data.total_steps:
        rehearse_if_needed(learner, ranks, lambda: to_device(data.first(), device))
    return learner


def _trace(
    config: RunConfig,
    ranks: Ranks,
    device: torch.device,
    entered: Sequence[Callable[[Activity], None]],
) -> Trace:
    phases = PhaseTimer(device)
    # Rank 0 polls this directory for profile requests.
    directory = config.checkpoint.directory if ranks.is_first else None
    return Trace(Path(directory) if directory else None, phases, entered)


def _position(saved: Snapshot, sampler: Sampler) -> Position:
    """Return the position of a checkpoint.

    Raises:
        InputError: If the position is not valid for this data or this order of samples.
    """
    state = saved.state
    if state["data_size"] != sampler.size:
        raise InputError(
            f"checkpoint: it was written with {state['data_size']} training samples, now there are"
            f" {sampler.size}; a resumed run needs the same number of samples to keep its position"
        )
    if state["config"]["seed"] != sampler.seed:
        raise InputError(
            f"config: seed must stay {state['config']['seed']} in a resumed run, because the order"
            f" of the samples depends on it; it is now {sampler.seed}"
        )
    return Position(state["step"], state["samples"], state["seconds"])


def _total_steps(sampler: Sampler, position: Position, config: RunConfig) -> int:
    """Return the updates of the whole run, over all attempts."""
    if config.max_steps is not None and config.epochs is None:
        return config.max_steps
    if isinstance(sampler, StreamSampler):
        raise TypeError("a stream has no epochs to count")
    end = sampler.size * (config.epochs or 1)
    left = sampler.updates_between(position.samples, end) if position.samples < end else 0
    total = position.step + left
    return total if config.max_steps is None else min(total, config.max_steps)


def _agreement(position: Position, config: RunConfig, ranks: Ranks) -> Agreement:
    return Agreement(
        step=position.step,
        every_steps=config.log.every_steps,
        within_seconds=config.parallel.agree_seconds,
        rank=ranks.rank,
        world_size=ranks.world_size,
    )


def _report_opened(
    run: Run, opened: dict[str, Any], group: _Group, locations: list[Location], workers: int
) -> None:
    """Report the start event."""
    run.report.opened(
        resumed_from=CheckpointInfo(**opened["resume"]) if opened["resume"] else None,
        skipped=opened["skipped"],
        task=run.task_path,
        world_size=run.ranks.world_size,
        places=rank_map(locations),
        device=str(run.learner.device),
        precision=run.config.precision,
        global_batch=run.config.global_batch,
        micro_batch=group.split.micro_batch,
        accumulation=group.split.accumulation,
        strategy=run.config.parallel.strategy,
        parameters=sum(param.numel() for param in run.learner.model.parameters()),
        bytes_per_rank=footprint(run.learner).by_strategy(run.ranks.world_size),
        train_samples=run.sampler.size,
        workers=workers,
        **group.route.described(),
        checkpoint_dir=run.config.checkpoint.directory,
    )


def _report_warnings(
    run: Run, built: _Built, other: Iterable[str | None], budget: CpuBudget
) -> None:
    """Report differences between ranks, copied weights, slow routes and missing CPUs."""
    ring = ring_warning(built.locations)
    for sentence in filter(None, [*built.warnings, ring, budget.warning, *other]):
        run.report.warn(sentence)


def _changes(built: _Built, learner: Learner, saved: Snapshot | None) -> list[str]:
    """Return a sentence for each change since the checkpoint, if any."""
    changed = built.fingerprints.warnings(saved.state if saved else {})
    return [*changed, *unused_state(learner, built.task, saved)]


def _report_notes(run: Run, choice: WorkerChoice | None, initial: WeightMatch | None) -> None:
    """Report the policy of live buffers, a chosen number of workers, and loaded weights."""
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
