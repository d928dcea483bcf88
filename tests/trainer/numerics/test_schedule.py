import pytest

from ddp_trainer.config import ScheduleConfig
from ddp_trainer.numerics.schedule import lr_factor, peak_factor
from tests.trainer.runs import opened

SHAPES = {
    "cosine": ScheduleConfig(name="cosine", warmup_steps=4),
    "linear": ScheduleConfig(name="linear", warmup_steps=0, final_fraction=0.1),
    "constant": ScheduleConfig(name="constant", warmup_steps=2),
    "default": ScheduleConfig(),
    "wsd": ScheduleConfig(name="wsd", warmup_steps=2, decay_steps=4, final_fraction=0.2),
    "short": ScheduleConfig(name="wsd", warmup_steps=0),
}


@pytest.mark.parametrize(
    ("shape", "update", "total", "factor"),
    [
        ("cosine", 0, 12, 0.25),
        ("cosine", 3, 12, 1.0),
        ("cosine", 4, 12, 1.0),
        ("cosine", 8, 12, 0.5),
        ("cosine", 12, 12, 0.0),
        ("cosine", 40, 12, 0.0),
        ("linear", 0, 10, 1.0),
        ("linear", 5, 10, 0.55),
        ("linear", 10, 10, 0.1),
        ("constant", 0, 10, 0.5),
        ("constant", 9, 10, 1.0),
        ("default", 0, 100, 0.2),
        ("default", 4, 100, 1.0),
        ("default", 0, 10, 1.0),
        ("default", 0, 1, 1.0),
        ("wsd", 0, 10, 0.5),
        ("wsd", 2, 10, 1.0),
        ("wsd", 6, 10, 1.0),
        ("wsd", 8, 10, 0.6),
        ("wsd", 10, 10, 0.2),
        ("short", 7, 10, 1.0),
        ("short", 9, 10, 0.5),
    ],
)
def test_learning_rate_factor_follows_the_schedule(
    shape: str, update: int, total: int, factor: float
) -> None:
    assert lr_factor(update, total, SHAPES[shape]) == pytest.approx(factor)


@pytest.mark.parametrize(
    ("batch", "config", "factor"),
    [
        (512, ScheduleConfig(), 1.0),
        (512, ScheduleConfig(base_batch=256), 2.0),
        (1024, ScheduleConfig(base_batch=256, scaling="sqrt"), 2.0),
        (64, ScheduleConfig(base_batch=256, scaling="sqrt"), 0.5),
    ],
)
def test_peak_learning_rate_scales_with_the_batch(
    batch: int, config: ScheduleConfig, factor: float
) -> None:
    assert peak_factor(batch, config) == factor


def test_learning_rate_of_an_update_is_peak_times_factor() -> None:
    run = opened(global_batch=20, schedule={"name": "constant", "base_batch": 10})
    assert run.learner.peak_lrs == pytest.approx([0.2, 0.2])
