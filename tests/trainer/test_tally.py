"""What updates came to, whatever the task does with its tensors afterwards."""

import torch

from ddp_trainer.numerics.tally import KEPT, Tally


def test_a_task_may_go_on_with_the_tensors_that_it_returned() -> None:
    tally, total, count = Tally(torch.device("cpu")), torch.tensor(6.0), torch.tensor(3.0)
    tally.passed(total, count)
    total.fill_(10.0)
    count.fill_(5.0)
    tally.passed(total, count)
    assert tally.read().tolist() == [16.0, 8.0, 0.0]


def test_what_is_added_up_on_the_way_is_counted_once() -> None:
    tally = Tally(torch.device("cpu"))
    updates = 2 * KEPT + 1
    for update in range(updates):
        tally.passed(torch.tensor(2.0), torch.tensor(1.0))
        tally.updated(torch.tensor(float(update == KEPT)))
    assert tally.read().tolist() == tally.read().tolist() == [2.0 * updates, updates, 1.0]
    tally.clear()
    assert tally.read().tolist() == [0.0, 0.0, 0.0]
