"""Reads the beats that the ranks of this node leave."""

import logging
from pathlib import Path

from pydantic import ValidationError

from ddp_wire.contract import Beat, RankPhase, Timeline

_log = logging.getLogger(__name__)


def read_beats(directory: Path, attempt: int) -> list[Beat]:
    """The newest beat of each local rank in this attempt, by local rank."""
    found = []
    for path in sorted(directory.glob("*.json")):
        try:
            beat = Beat.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            _log.debug("beat %s is left out: %s", path, error)
            continue
        if beat.attempt == attempt:
            found.append(beat)
    return sorted(found, key=lambda beat: beat.local_rank)


def all_train(beats: list[Beat], ranks: int) -> bool:
    """Whether every local rank has been in the process group."""
    joined = {RankPhase.TRAINING, RankPhase.DONE}
    return len(beats) == ranks and all(beat.phase in joined for beat in beats)


def all_spawned(log_dir: Path, ranks: int) -> bool:
    """Whether torchrun has started every local rank: after the rendezvous of all nodes.

    The best that is known of a command that reports nothing itself.
    """
    return len(list(log_dir.glob("*/attempt_0/*/stderr.log"))) >= ranks


def timeline(known: Timeline, beats: list[Beat], ranks: int) -> Timeline:
    """The timeline with what the beats add to it: the last rank counts."""
    joined = [beat.joined_at for beat in beats if beat.joined_at is not None]
    stepped = [beat.first_step_at for beat in beats if beat.first_step_at is not None]
    update = {
        "joined": max(joined) if len(joined) == ranks else known.joined,
        "stepped": max(stepped) if len(stepped) == ranks else known.stepped,
    }
    return known.model_copy(update=update)
