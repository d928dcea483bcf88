"""Read the heartbeats of this node's ranks, and derive the attempt's milestones from them.

Process: agent (loop) and launcher.
"""

import logging
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from pydantic import ValidationError

from ddp_wire.activity import ActivityRecord, read_activities
from ddp_wire.messages import (
    METRIC_NAME_CHARACTERS,
    METRICS,
    Heartbeat,
    LocalHeartbeat,
    RankPhase,
    Timeline,
)

_log = logging.getLogger(__name__)


def read_heartbeats(directory: Path, attempt: int) -> list[LocalHeartbeat]:
    """Return the newest heartbeat of each local rank in this attempt, sorted by local rank."""
    found, records = [], read_activities(directory)
    for path in sorted(directory.glob("*.json")):
        try:
            heartbeat = LocalHeartbeat.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            _log.debug("ignoring the unreadable heartbeat %s: %s", path, error)
            continue
        if heartbeat.attempt == attempt:
            found.append(_with_record(_bounded(heartbeat), records.get(heartbeat.local_rank)))
    return sorted(found, key=lambda heartbeat: heartbeat.local_rank)


def _bounded(heartbeat: LocalHeartbeat) -> LocalHeartbeat:
    """Return the heartbeat with the first metrics only, and with the starts of their names.

    Thousands would make the status so large that the operator refuses to read it.
    """
    progress = heartbeat.progress
    if progress is None or not progress.metrics:
        return heartbeat
    named = islice(progress.metrics.items(), METRICS)
    first = {name[:METRIC_NAME_CHARACTERS]: value for name, value in named}
    shown = progress.model_copy(update={"metrics": first})
    return heartbeat.model_copy(update={"progress": shown})


def _with_record(heartbeat: LocalHeartbeat, record: ActivityRecord | None) -> LocalHeartbeat:
    """Return the heartbeat with the rank's current activity and completed step."""
    if record is None:
        return heartbeat
    idle = min(max(0.0, time.monotonic() - record.since), 1e9)
    now = {"activity": record.activity.name.lower(), "idle_seconds": round(idle, 1)}
    heartbeat = heartbeat.model_copy(update=now)
    if record.step <= heartbeat.step:
        return heartbeat
    at = time.time() - time.monotonic() + record.since
    return heartbeat.model_copy(update={"step": record.step, "at": max(at, heartbeat.at)})


def all_joined(heartbeats: Sequence[Heartbeat], ranks: int) -> bool:
    """Return whether every local rank has joined the process group."""
    joined = {RankPhase.TRAINING, RankPhase.DONE}
    return len(heartbeats) == ranks and all(one.phase in joined for one in heartbeats)


def common_result(directory: Path, attempt: int, ranks: int) -> int | None:
    """Return the exit code that all local ranks announce after their work, or None before."""
    found = read_heartbeats(directory, attempt)
    results = {one.result for one in found if one.phase is RankPhase.DONE}
    return results.pop() if all_done(found, ranks) and len(results) == 1 else None


def all_done(heartbeats: Sequence[Heartbeat], ranks: int) -> bool:
    """Return whether every local rank has done its work."""
    return len(heartbeats) == ranks and all(one.phase is RankPhase.DONE for one in heartbeats)


def none_starts(heartbeats: Sequence[Heartbeat]) -> bool:
    """Return whether all ranks that write heartbeats have joined the process group.

    A command may write heartbeats on some ranks only, or on none.
    """
    return all_joined(heartbeats, len(heartbeats))


def all_spawned(log_dir: Path, ranks: int) -> bool:
    """Return whether torchrun has started every local rank, after the rendezvous.

    For a command without heartbeats, this is the only sign of training.
    """
    return len(list(log_dir.glob("*/attempt_0/*/stderr.log"))) >= ranks


def extend_timeline(known: Timeline, heartbeats: Sequence[Heartbeat], ranks: int) -> Timeline:
    """Return the timeline with all milestones that every local rank has reached.

    The time of a milestone is the time of the last rank.
    """
    joined = [one.joined_at for one in heartbeats if one.joined_at is not None]
    stepped = [one.first_step_at for one in heartbeats if one.first_step_at is not None]
    update = {
        "joined": max(joined) if len(joined) == ranks else known.joined,
        "stepped": max(stepped) if len(stepped) == ranks else known.stepped,
    }
    return known.model_copy(update=update)
