"""The state of an optimizer is restored bit by bit, in the types with which it was saved."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddp_trainer.checkpoint.snapshot import put_model, put_optimizer, take


class KeepsWeights(torch.optim.Optimizer):
    """Optimizer with a copy of the weights of another type, a counter, and a mask."""

    def __init__(self, params: Any, kept: torch.dtype) -> None:
        super().__init__(params, {"lr": 1e-3})
        self.kept = kept

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert closure is None
        for param in self.param_groups[0]["params"]:
            state = self.state[param]
            if not state:
                state["kept"] = param.detach().to(self.kept)
                state["seen"] = torch.zeros((), dtype=torch.int64)
                state["mask"] = torch.ones_like(param, dtype=torch.bool)
            state["seen"] += 1
            state["mask"] &= param.grad > -2
            state["kept"] -= self.param_groups[0]["lr"] * param.grad.to(self.kept) * state["mask"]
            param.copy_(state["kept"])


def built(weights: torch.dtype, kept: torch.dtype) -> tuple[nn.Module, KeepsWeights]:
    torch.manual_seed(0)
    model = nn.Linear(4, 4).to(weights)
    return model, KeepsWeights(model.parameters(), kept)


def update(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for param in model.parameters():
        param.grad = torch.randn(param.shape, generator=generator).to(param.dtype)
    optimizer.step()


def equal(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


@pytest.mark.parametrize(
    ("weights", "kept"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float64),
        (torch.float64, torch.float32),
        (torch.float32, torch.float32),
    ],
)
def test_state_of_other_types_than_the_weights_is_restored_as_it_was(
    weights: torch.dtype, kept: torch.dtype
) -> None:
    model, optimizer = built(weights, kept)
    for seed in range(5):
        update(model, optimizer, seed)
    saved = take(model, optimizer)
    again, resumed = built(weights, kept)
    put_model(again, saved.model)
    put_optimizer(again, resumed, saved.optimizer, saved.optimizer_rest, keep_groups=True)
    for param, loaded in zip(model.parameters(), again.parameters(), strict=True):
        assert {k: v.dtype for k, v in resumed.state[loaded].items()} == {
            "kept": kept, "seen": torch.int64, "mask": torch.bool,
        }  # fmt: skip
        for key, value in optimizer.state[param].items():
            assert equal(resumed.state[loaded][key], value), key
    for seed in range(5, 25):
        update(model, optimizer, seed)
        update(again, resumed, seed)
    for param, loaded in zip(model.parameters(), again.parameters(), strict=True):
        assert equal(loaded, param)


def test_hyperparameter_that_is_a_tensor_stays_one() -> None:
    def adam(lr: float) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Linear(4, 4)
        return model, torch.optim.AdamW(model.parameters(), lr=torch.tensor(lr))

    model, optimizer = adam(0.1)
    for seed in range(3):
        update(model, optimizer, seed)
    saved = take(model, optimizer)
    again, resumed = adam(0.5)
    put_model(again, saved.model)
    put_optimizer(again, resumed, saved.optimizer, saved.optimizer_rest, keep_groups=False)
    assert equal(resumed.param_groups[0]["lr"], torch.tensor(0.1))
    for seed in range(3, 9):
        update(model, optimizer, seed)
        update(again, resumed, seed)
    assert all(map(equal, model.parameters(), again.parameters()))
