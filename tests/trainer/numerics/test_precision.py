"""Tests of the process-wide settings of torch's arithmetic."""

import pytest
import torch

from ddp_trainer.config import RunConfig
from ddp_trainer.numerics.precision import with_precision
from tests.trainer.runs import opened


def test_setting_switches_deterministic_algorithms_on_and_off() -> None:
    try:
        opened(deterministic=True)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        opened()
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(
    ("device", "stated", "expected"),
    [
        ("cpu", "auto", "fp32"),
        ("cuda", "auto", "tf32"),
        ("cuda", "fp32", "fp32"),
        ("cpu", "bf16", "bf16"),
    ],
)
def test_auto_precision_depends_on_the_device(device: str, stated: str, expected: str) -> None:
    config = RunConfig.model_validate({"precision": stated})
    assert with_precision(config, torch.device(device)).precision == expected


def test_run_keeps_the_precision_that_auto_means() -> None:
    run = opened()
    assert (run.config.precision, run.learner.precision) == ("fp32", "fp32")
    assert torch.get_float32_matmul_precision() == "highest"
