"""Tests of the process-wide settings of torch's arithmetic."""

import pytest
import torch

from ddp_trainer.config import RunConfig
from ddp_trainer.config.settings import resolve
from ddp_trainer.numerics.model import prepare
from ddp_trainer.numerics.precision import with_precision
from tests.trainer.runs import opened


def test_setting_deterministic_switches_deterministic_algorithms_on_and_off() -> None:
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


def test_resumed_run_keeps_the_precision_that_auto_selected() -> None:
    run = opened(device="cpu")
    assert (run.config.precision, run.learner.precision) == ("fp32", "fp32")
    assert torch.get_float32_matmul_precision() == "highest"


class Pair(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, batch: dict[str, torch.Tensor], *, shift: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.layer(batch["x"]) + shift + batch["index"]
        return scores


def test_fp64_converts_inputs_by_name_and_in_dictionaries() -> None:
    model = prepare(Pair(), resolve({"precision": "fp64"}), torch.device("cpu"))
    found = model({"x": torch.ones(3, 2), "index": torch.arange(2)}, shift=torch.ones(2))
    assert found.dtype == torch.float64
