"""The learning rate as a pure function of the update: nothing to save, nothing to step."""

import math

from ddp_trainer.config import ScheduleConfig

WARMUP_PART = 20
"""One in so many updates warms up, when the configuration states no number."""
DECAY_PART = 5
"""One in so many updates is the fall of wsd, when the configuration states no number."""


def lr_factor(update: int, total: int, config: ScheduleConfig) -> float:
    """Learning rate of one update as a factor of the peak.

    The warm-up rises linearly and reaches the peak with its last update (Goyal et al. 2017,
    arXiv:1706.02677); the cosine is that of Loshchilov and Hutter 2017 (arXiv:1608.03983) without
    restarts; warm-up, stable, decay is that of Hu et al. 2024 (arXiv:2404.06395), falling linearly.

    Args:
        update: Index of the update, from 0. Updates that are skipped count.
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
    begin = warmup
    if config.name == "wsd":
        begin = max(warmup, total - (config.decay_steps or total // DECAY_PART))
    done = min(1.0, max(0.0, (update - begin) / max(1, total - begin)))
    cosine = config.name == "cosine"
    falling = 0.5 * (1.0 + math.cos(math.pi * done)) if cosine else 1.0 - done
    return config.final_fraction + (1.0 - config.final_fraction) * falling


def peak_factor(global_batch: int, config: ScheduleConfig) -> float:
    """What the stated learning rate is multiplied by because of the batch.

    Linear for SGD (Goyal et al. 2017); the square root for Adam and its kin (Malladi et al. 2022,
    arXiv:2205.10287).
    """
    if config.base_batch is None:
        return 1.0
    ratio = global_batch / config.base_batch
    return ratio if config.scaling == "linear" else math.sqrt(ratio)
