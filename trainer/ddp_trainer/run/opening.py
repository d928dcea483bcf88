"""Open a run: join the other ranks, build the task, and resume from a checkpoint.

Every start of an attempt is a resume, in these steps:

1. Join the process group, because all later steps communicate with the other ranks.
2. Build the task on every rank, and compare the ranks before anything depends on them.
3. Claim the run's directory on rank 0. Choose the newest state in memory, or the newest complete
   checkpoint if that is newer (`run.restart`).
4. Prepare the data, beginning at the position of the chosen state.
5. Build the learner and restore it. Without a state, load `init_from` if it is set.
6. Report the start, and what has changed since the state was saved.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ddp_trainer.checkpoint.initial import WeightMatch, load_initial
from ddp_trainer.checkpoint.manager import CheckpointManager
from ddp_trainer.checkpoint.record_choice import Listed
from ddp_trainer.checkpoint.snapshot import Checkpoint
from ddp_trainer.config import RunConfig
from ddp_trainer.data.fingerprint import fingerprint
from ddp_trainer.data.prefetch import to_device
from ddp_trainer.data.sampler import divided
from ddp_trainer.learner import Learner, build_learner
from ddp_trainer.numerics.guard import NonFiniteTracker
from ddp_trainer.numerics.precision import set_arithmetic, with_precision
from ddp_trainer.observe.heartbeats import HeartbeatWriter
from ddp_trainer.observe.phases import PhaseTimer
from ddp_trainer.observe.starvation import DataWaitMonitor
from ddp_trainer.observe.stragglers import StragglerMonitor
from ddp_trainer.observe.trace import Trace
from ddp_trainer.observe.work import make_work_meter
from ddp_trainer.ranks import flight_recorder, process_group
from ddp_trainer.ranks.agreement import Agreement
from ddp_trainer.ranks.collectives import on_first_rank
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.ranks.preflight import RankInfo, build_and_compare, rank_info
from ddp_trainer.ranks.topology import Location
from ddp_trainer.run.building import build_task, document_of
from ddp_trainer.run.data import Position, RunData, prepare_data
from ddp_trainer.run.device_state import keeps_state, why_not_kept
from ddp_trainer.run.first_reports import report_first
from ddp_trainer.run.parts import BuiltTask, Group, Resume
from ddp_trainer.run.rehearsal import rehearse_if_needed
from ddp_trainer.run.replicas import why_off
from ddp_trainer.run.reporter_setup import make_reporter
from ddp_trainer.run.restart import choose_restart
from ddp_trainer.run.run import ReplicaState, Run
from ddp_trainer.run.source import Fingerprints, source_fingerprint
from ddp_trainer.run.state import restore, task_state
from ddp_trainer.saved_state import NonFiniteCounts
from ddp_trainer.stop import StopFlag
from ddp_trainer.task import Task
from ddp_wire.activity import Activity
from ddp_wire.messages import RankPhase


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Request for a run: task, config and attempt."""

    task: str
    """Import path of the task: `package.module:function`."""
    config: RunConfig
    attempt: int | None = None
    """Number of this attempt. None selects the next free number."""
    job: str = ""
    """Uid of the job."""
    records: Path | None = None
    """Folder of this node's records. None if the node has none."""


def open_run(request: RunRequest, ranks: Ranks, stop: StopFlag, heartbeats: HeartbeatWriter) -> Run:
    """Open a run at its newest complete checkpoint, or at the beginning.

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
    resume = _open_checkpoints(request, built, ranks, group.device)
    data = prepare_data(built, resume.saved, ranks, group)
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
        job=request.job,
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
        records=_records(request, built.config, group.device),
        nonfinite=_nonfinite_tracker(built.config, learner, resume.saved),
        replicas=_replica_state(built, data.position, ranks),
        stragglers=StragglerMonitor(divided(built.config.global_batch, ranks.world_size)),
        data_wait_monitor=DataWaitMonitor(report.times.data_wait, ranks.rank, ranks.world_size),
    )
    report_first(run, group, built, resume, data, initial=initial)
    return run


def _join(config: RunConfig, ranks: Ranks) -> Group:
    """Set up the device, and join the process group."""
    device = process_group.choose_device(config.device, ranks)
    set_arithmetic(with_precision(config, device))
    split = config.batch_split(ranks.world_size)
    flight_recorder.configure(config, os.environ, nccl=device.type == "cuda")
    route = process_group.join(ranks, device, config.parallel.first_timeout)
    return Group(device, split, route)


def _build(request: RunRequest, ranks: Ranks, device: torch.device) -> BuiltTask:
    """Build the task on every rank, and check that all have the same code, settings and data."""
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
    arithmetics = [info.arithmetic for info in infos]
    return BuiltTask(task, config, document, locations, same, arithmetics, warnings + copied)


def _open_checkpoints(
    request: RunRequest, built: BuiltTask, ranks: Ranks, device: torch.device
) -> Resume:
    """Open the checkpoint directory on rank 0, and distribute the newest complete state."""
    config = built.config
    checkpoints = CheckpointManager(config.checkpoint)
    with _volume_timeout(config):
        opened = on_first_rank(
            lambda: checkpoints.open(request.attempt, built.document, request.job), device
        )
        checkpoints.join(opened, device)
    opened["skipped"] = []

    def read() -> Checkpoint | None:
        # Rank 0 reads whole checkpoints, while the others wait for it.
        with _volume_timeout(config):
            opened.update(on_first_rank(checkpoints.choose, device))
            return checkpoints.receive(device) if opened["resume"] else None

    folder = _records(request, config, device)
    listed = Listed(**opened["listed"]) if opened["listed"] else None
    restart = choose_restart(folder, ranks, device, listed, read, job=request.job)
    on_first_rank(checkpoints.start_mirror, device)
    odd = why_not_kept(config.checkpoint.memory, device, os.environ)
    opened["skipped"].extend([*restart.warnings, *([odd] if odd else [])])
    return Resume(checkpoints, opened, restart.saved, restart.record)


def _records(request: RunRequest, config: RunConfig, device: torch.device) -> Path | None:
    """Return the folder of this node's records, or None if the ranks keep none."""
    kept = keeps_state(config.checkpoint.memory, device, os.environ)
    return request.records if kept else None


def _volume_timeout(config: RunConfig) -> AbstractContextManager[None]:
    return process_group.timeout(config.checkpoint.timeout_seconds, config.parallel.first_timeout)


def _load_initial(
    built: BuiltTask, saved: Checkpoint | None, device: torch.device
) -> WeightMatch | None:
    """Load the weights of `init_from`, unless the run resumes from a checkpoint."""
    config = built.config
    if saved or not config.init_from:
        return None
    return load_initial(built.task.model, config.init_from, device, strict=config.init_strict)


def _learner(
    built: BuiltTask, saved: Checkpoint | None, data: RunData, ranks: Ranks, device: torch.device
) -> Learner:
    """Build the learner, restore it from the checkpoint, and run a rehearsal pass if necessary."""
    config, step = built.config, data.position.step
    learner = build_learner(built.task, config, ranks, device)
    task_state(built.task)  # Raise its InputError before the training, not at the first save.
    if saved:
        # The other ranks wait until rank 0 has read the tensors.
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


def _nonfinite_tracker(
    config: RunConfig, learner: Learner, saved: Checkpoint | None
) -> NonFiniteTracker:
    counts = saved.state.nonfinite if saved else NonFiniteCounts()
    return NonFiniteTracker(config.nonfinite, learner.guard.policy, counts)


def _replica_state(built: BuiltTask, position: Position, ranks: Ranks) -> ReplicaState:
    """Return the schedule of comparisons. Ranks that cannot be equal make none."""
    off = ranks.world_size == 1 or why_off(built.config, ranks, built.arithmetics) is not None
    every = 0 if off else built.config.replicas.every_steps
    return ReplicaState(every_steps=every, equal_step=position.step)


def _agreement(position: Position, config: RunConfig, ranks: Ranks) -> Agreement:
    return Agreement(
        step=position.step,
        every_steps=config.log.every_steps,
        within_seconds=config.parallel.agree_seconds,
        rank=ranks.rank,
        world_size=ranks.world_size,
    )
