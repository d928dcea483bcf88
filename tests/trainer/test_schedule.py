import pytest

from ddp_trainer.config import ScheduleConfig
from ddp_trainer.numerics.schedule import lr_factor

SHAPES = {
    "cosine": ScheduleConfig(name="cosine", warmup_steps=4),
    "linear": ScheduleConfig(name="linear", warmup_steps=0, final_fraction=0.1),
    "constant": ScheduleConfig(name="constant", warmup_steps=2),
    "default": ScheduleConfig(),
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
    ],
)
def test_the_factor_of_an_update(shape: str, update: int, total: int, factor: float) -> None:
    assert lr_factor(update, total, SHAPES[shape]) == pytest.approx(factor)
