"""Tests of the moving average of the weights."""

from typing import Any

import pytest
import torch
from torch import nn

from ddp_trainer.config import EmaConfig
from ddp_trainer.data.loader import by_update
from ddp_trainer.data.prefetch import on_device
from ddp_trainer.numerics.ema import Ema
from ddp_trainer.run.evaluating import evaluate_run
from ddp_trainer.step import train_step
from tests.trainer.runs import opened, trained


@pytest.mark.parametrize("warmup", [True, False])
def test_moving_average_of_weights_follows_its_recurrence(warmup: bool) -> None:
    run = opened(global_batch=10, ema={"decay": 0.6, "warmup": warmup})
    assert run.learner.ema
    expected = [param.detach().clone() for param in run.learner.model.parameters()]
    updates = by_update(on_device(run.train_loader, run.learner.device))
    for step in range(4):
        train_step(run.learner, next(updates), step, 1.0)
        decay = min(0.6, (1 + step) / (10 + step)) if warmup else 0.6
        for average, param in zip(expected, run.learner.model.parameters(), strict=True):
            average.mul_(decay).add_(param.detach(), alpha=1 - decay)
    found = run.learner.ema.state().values()
    assert all(a.allclose(b, atol=1e-6) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_use_of_the_average_changes_neither_it_nor_the_weights(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 8).to(dtype)
    ema = Ema(model, EmaConfig(decay=0.9), 0.9)
    for step in range(3):
        with torch.no_grad():
            for param in model.parameters():
                param.add_(torch.randn_like(param))
        ema.update(step)
    weights = [param.detach().clone() for param in model.parameters()]
    average = [tensor.clone() for tensor in ema.state().values()]
    with ema.applied():
        for param, expected in zip(model.parameters(), average, strict=True):
            assert torch.equal(param, expected.to(dtype))
    assert all(map(torch.equal, weights, model.parameters()))
    assert all(map(torch.equal, average, ema.state().values()))


@pytest.mark.slow
def test_evaluation_uses_the_moving_average_and_restores_the_weights() -> None:
    settings: dict[str, Any] = {"global_batch": 10, "epochs": 2}
    plain = trained(**settings)
    evaluate_run(plain)
    found = {}
    for evaluate in (True, False):
        run = trained(ema={"decay": 0.9, "evaluate": evaluate}, **settings)
        before = [param.clone() for param in run.learner.model.parameters()]
        run.evaluated_step = -1
        evaluate_run(run)
        found[evaluate] = run.metrics["loss"]
        assert all(a.equal(b) for a, b in zip(before, run.learner.model.parameters(), strict=True))
    assert found[False] == plain.metrics["loss"]
    assert found[True] != plain.metrics["loss"]
