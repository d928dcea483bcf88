"""Create a run's reporter, with its history and its trackers."""

import os
from pathlib import Path

from ddp_trainer.config import RunConfig
from ddp_trainer.observe.events import EventLog, prints_json
from ddp_trainer.observe.heartbeats import HeartbeatWriter
from ddp_trainer.observe.history_writer import HistoryWriter
from ddp_trainer.observe.reporter import Reporter
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.task import Task, peak_rate
from ddp_trainer.trackers.trackers import Trackers
from ddp_wire.contract import Env


def make_reporter(
    task: Task,
    config: RunConfig,
    ranks: Ranks,
    attempt: int,
    *,
    heartbeats: HeartbeatWriter,
    total_steps: int,
) -> Reporter:
    """Create the reporter of one attempt. Only global rank 0 has a history and trackers.

    Args:
        task: The task, whose `flops_per_sample` gives the peak rate.
        config: Resolved config.
        ranks: This process's rank.
        attempt: Number of the attempt.
        heartbeats: Writer of this rank's heartbeats.
        total_steps: Number of updates of the whole run.
    """
    peak = config.log.peak_tflops
    directory = config.checkpoint.directory if ranks.is_first else None
    return Reporter(
        events=EventLog(
            ranks,
            attempt,
            all_ranks=config.log.all_ranks,
            as_json=prints_json(os.environ, config.log.format),
            history=HistoryWriter(Path(directory)) if directory else None,
            trackers=_trackers(config, Path(directory), attempt) if directory else None,
        ),
        heartbeats=heartbeats,
        is_first=ranks.is_first,
        total_steps=total_steps,
        global_batch=config.global_batch,
        peak_rate=peak_rate(task, peak * ranks.world_size) if peak else None,
    )


def _trackers(config: RunConfig, directory: Path, attempt: int) -> Trackers | None:
    if not config.log.trackers:
        return None
    return Trackers(
        config.log.trackers,
        directory,
        attempt=attempt,
        run_name=os.environ.get(Env.JOB_NAME) or directory.name,
        config=config.model_dump(mode="json"),
    )
