"""The learning rate as a pure function of the update: nothing to save, nothing to step."""

import math

from ddp_trainer.config import ScheduleConfig

WARMUP_PART = 20
"""One in so many updates warms up, when the configuration states no number."""


def lr_factor(update: int, total: int, config: ScheduleConfig) -> float:
    """Learning rate of one update as a factor of the peak.

    The warm-up rises linearly and reaches the peak with its last update (Goyal et al. 2017,
    arXiv:1706.02677); the cosine is that of Loshchilov and Hutter 2017 (arXiv:1608.03983) without
    restarts.

    Args:
        update: Index of the update, from 0.
        total: Updates of the whole run.
        config: Shape.

    Returns:
        A factor from 0 to 1.
    """
    warmup = config.warmup_steps
    if warmup is None:
        warmup = total // WARMUP_PART
    if update < warmup:
        return (update + 1) / warmup
    if config.name == "constant":
        return 1.0
    done = min(1.0, (update - warmup) / max(1, total - warmup))
    falling = 1.0 - done if config.name == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return config.final_fraction + (1.0 - config.final_fraction) * falling
