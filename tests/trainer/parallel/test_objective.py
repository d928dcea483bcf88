"""The objective: model and loss as one module, whose backward pass also carries the count."""

import pytest
import torch
from torch import nn

from ddp_trainer.parallel.objective import Objective, backward
from ddp_trainer.task import Weighted


@pytest.mark.parametrize("factor", [1.0, 0.25, 0.0])
def test_backward_pass_adds_gradients_and_sample_counts(factor: float) -> None:
    model = nn.Linear(1, 1, bias=False)
    objective = Objective(model, lambda m, batch: Weighted(m(batch).sum(), len(batch)))
    for batch in (torch.full((2, 1), 3.0), torch.full((4, 1), 1.0)):
        roots, _, count, _ = objective(batch, lambda total: 2 * total)
        backward(roots, count, factor)
    assert model.weight.grad is not None
    assert objective.count_param.grad is not None
    assert model.weight.grad.item() == 20.0 * factor, "the scale is that of the sum"
    assert objective.count_param.grad.tolist() == [6.0 * factor], "and not that of the count"


def test_loss_that_depends_on_no_weight_is_counted_without_gradients() -> None:
    model = nn.Linear(1, 1)
    objective = Objective(model, lambda *_: Weighted(torch.tensor(5.0), 2))
    roots, total, count, _ = objective(None, lambda total: total)
    backward(roots, count)
    assert (total.item(), count.item()) == (5.0, 2.0)
    assert model.weight.grad is None
    assert objective.count_param.grad is not None
    assert objective.count_param.grad.tolist() == [2.0]
