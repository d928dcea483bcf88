"""Tests of the process-wide settings of torch's arithmetic."""

import torch

from tests.trainer.runs import opened


def test_setting_switches_deterministic_algorithms_on_and_off() -> None:
    try:
        opened(deterministic=True)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        opened()
    assert not torch.are_deterministic_algorithms_enabled()
