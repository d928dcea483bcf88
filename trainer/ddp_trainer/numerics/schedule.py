"""Compute the learning rate as a pure function of the update, without state to save."""

import math

from ddp_trainer.config import ScheduleConfig

WARMUP_PART = 20
"""Divisor of the total updates that gives the default warm-up."""
DECAY_PART = 5
"""Divisor of the total updates that gives the default decay phase of wsd."""


def lr_factor(update: int, total: int, config: ScheduleConfig) -> float:
    """Return the learning rate of one update as a fraction of the peak.

    The warm-up rises linearly and reaches the peak with its last update (Goyal et al. 2017,
    arXiv:1706.02677); the cosine is that of Loshchilov and Hutter 2017 (arXiv:1608.03983) without
    restarts; warm-up, stable, decay is that of Hu et al. 2024 (arXiv:2404.06395), falling linearly.

    Args:
        update: Index of the update, from 0. Skipped updates count.
        total: Updates of the whole run.
        config: Shape of the schedule.

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
    begin = warmup
    if config.name == "wsd":
        begin = max(warmup, total - (config.decay_steps or total // DECAY_PART))
    done = min(1.0, max(0.0, (update - begin) / max(1, total - begin)))
    cosine = config.name == "cosine"
    falling = 0.5 * (1.0 + math.cos(math.pi * done)) if cosine else 1.0 - done
    return config.final_fraction + (1.0 - config.final_fraction) * falling


def peak_factor(global_batch: int, config: ScheduleConfig) -> float:
    """Return the factor by which the global batch scales the configured learning rate.

    Linear scaling is for SGD (Goyal et al. 2017), the square root for Adam (Malladi et al. 2022,
    arXiv:2205.10287).
    """
    if config.base_batch is None:
        return 1.0
    ratio = global_batch / config.base_batch
    return ratio if config.scaling == "linear" else math.sqrt(ratio)
