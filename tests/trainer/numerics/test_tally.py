"""What updates came to, whatever the task does with its tensors afterwards."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from ddp_trainer.numerics.tally import KEPT, Tally
from ddp_trainer.parallel.objective import Objective
from ddp_trainer.task import Weighted


@pytest.mark.parametrize("number", [False, True], ids=["a tensor", "a number"])
@pytest.mark.parametrize("scale", [lambda x: x, lambda x: 8 * x], ids=["as it is", "scaled"])
def test_a_task_may_go_on_with_the_tensors_that_it_returned(
    number: bool, scale: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    tally, total, count = Tally(torch.device("cpu")), torch.zeros(()), torch.zeros(())
    objective = Objective(nn.Linear(1, 1), lambda *_: Weighted(total, *counts))
    counts: list[torch.Tensor | float] = [0.0]
    for value in (6.0, 10.0, 10.0):
        total.fill_(value)
        counts[0] = value / 2 if number else count.fill_(value / 2)
        _, summed, counted = objective(None, scale)
        tally.passed(summed, counted)
    assert tally.read().tolist() == [26.0, 13.0, 0.0]


def test_what_is_added_up_on_the_way_is_counted_once() -> None:
    tally = Tally(torch.device("cpu"))
    updates = 2 * KEPT + 1
    for update in range(updates):
        tally.passed(torch.tensor([2.0]), torch.tensor(1.0))
        tally.updated(torch.tensor(float(update == KEPT)))
    assert tally.read().tolist() == tally.read().tolist() == [2.0 * updates, updates, 1.0]
    tally.clear()
    assert tally.read().tolist() == [0.0, 0.0, 0.0]
