"""Reads the heartbeats of this node's ranks, and derives the attempt's milestones from them."""

import logging
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from ddp_wire.contract import Heartbeat, LocalHeartbeat, RankPhase, Timeline
from ddp_wire.step_file import read_step

_log = logging.getLogger(__name__)


def read_heartbeats(directory: Path, attempt: int) -> list[LocalHeartbeat]:
    """Return the newest heartbeat of each local rank in this attempt, sorted by local rank."""
    found = []
    for path in sorted(directory.glob("*.json")):
        try:
            heartbeat = LocalHeartbeat.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            _log.debug("ignoring the unreadable heartbeat %s: %s", path, error)
            continue
        if heartbeat.attempt == attempt:
            found.append(_with_newest_step(directory, heartbeat))
    return sorted(found, key=lambda heartbeat: heartbeat.local_rank)


def _with_newest_step(directory: Path, heartbeat: LocalHeartbeat) -> LocalHeartbeat:
    """Return the heartbeat with the step that the rank has done since it wrote the heartbeat."""
    newest = read_step(directory, heartbeat.local_rank, heartbeat.attempt)
    if newest is None or newest[0] <= heartbeat.step:
        return heartbeat
    step, at = newest
    return heartbeat.model_copy(update={"step": step, "at": max(at, heartbeat.at)})


def all_joined(heartbeats: Sequence[Heartbeat], ranks: int) -> bool:
    """Return whether every local rank has joined the process group."""
    joined = {RankPhase.TRAINING, RankPhase.DONE}
    return len(heartbeats) == ranks and all(one.phase in joined for one in heartbeats)


def all_spawned(log_dir: Path, ranks: int) -> bool:
    """Return whether torchrun has started every local rank, which it does after the rendezvous.

    For a command that writes no heartbeats, this is the only sign of training.
    """
    return len(list(log_dir.glob("*/attempt_0/*/stderr.log"))) >= ranks


def extend_timeline(known: Timeline, heartbeats: Sequence[Heartbeat], ranks: int) -> Timeline:
    """Return the timeline with the milestones that all local ranks have reached.

    The time of a milestone is the time of the last rank.
    """
    joined = [one.joined_at for one in heartbeats if one.joined_at is not None]
    stepped = [one.first_step_at for one in heartbeats if one.first_step_at is not None]
    update = {
        "joined": max(joined) if len(joined) == ranks else known.joined,
        "stepped": max(stepped) if len(stepped) == ranks else known.stepped,
    }
    return known.model_copy(update=update)
