"""Tests that LossTotals keeps correct sums when the task reuses its tensors afterwards."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from ddp_trainer.numerics.totals import LossTotals
from ddp_trainer.parallel.objective import Objective
from ddp_trainer.task import Weighted


@pytest.mark.parametrize("number", [False, True], ids=["tensor", "number"])
@pytest.mark.parametrize("scale", [lambda x: x, lambda x: 8 * x], ids=["unscaled", "scaled"])
def test_task_may_reuse_the_tensors_that_its_loss_returned(
    number: bool, scale: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    totals, total, count = LossTotals(torch.device("cpu")), torch.zeros(()), torch.zeros(())
    objective = Objective(nn.Linear(1, 1), lambda *_: Weighted(total, counts[0]))
    counts: list[torch.Tensor | float] = [0.0]
    for value in (6.0, 10.0, 10.0):
        total.fill_(value)
        counts[0] = value / 2 if number else count.fill_(value / 2)
        _, summed, counted, _ = objective(None, scale)
        totals.add_loss(summed, counted)
    assert totals.read().tolist() == [26.0, 13.0, 0.0]


def test_clear_sets_all_loss_sums_to_zero() -> None:
    totals = LossTotals(torch.device("cpu"))
    for update in range(129):
        totals.add_loss(torch.tensor(2.0), torch.tensor(1.0))
        totals.add_update(torch.tensor(float(update == 64)))
    assert totals.read().tolist() == totals.read().tolist() == [258.0, 129.0, 1.0]
    totals.clear()
    assert totals.read().tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("bad", [0, 63, 64, 100])
@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_loss_of_a_skipped_update_that_is_not_finite_is_left_out(bad: int, loss: float) -> None:
    totals = LossTotals(torch.device("cpu"))
    for update in range(129):
        for _ in range(2):
            totals.add_loss(torch.tensor(loss if update == bad else 2.0), torch.tensor(1.0))
        totals.add_update(torch.tensor(float(update == bad)))
    assert totals.read().tolist() == totals.read().tolist() == [512.0, 256.0, 1.0]


def test_loss_that_is_not_finite_is_reported_if_the_gradients_were_finite() -> None:
    totals = LossTotals(torch.device("cpu"))
    totals.add_loss(torch.tensor(float("inf")), torch.tensor(1.0))
    totals.add_update(torch.tensor(0.0))
    assert totals.read().tolist() == [float("inf"), 1.0, 0.0]
