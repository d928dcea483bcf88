"""Open a run's directory as an attempt does that finds no state in memory."""

from typing import Any

from ddp_trainer.checkpoint.manager import CheckpointManager


def open_checked(
    manager: CheckpointManager, attempt: int | None, config: dict[str, Any], job: str = ""
) -> dict[str, Any]:
    """Claim the directory, and choose the newest complete checkpoint. Return both results."""
    return manager.open(attempt, config, job) | manager.choose()
