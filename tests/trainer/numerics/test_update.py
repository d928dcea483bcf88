"""The optimizers' updates: to the bit those of torch, without its look-ups."""

from copy import deepcopy
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from ddp_trainer.config import OptimizerConfig, ParallelConfig
from ddp_trainer.numerics.guard import Guard
from ddp_trainer.numerics.optimizer import begin_momentum, build_optimizer
from ddp_trainer.numerics.precision import grad_scaler
from ddp_trainer.numerics.update import FusedUpdate, make_by_torch
from ddp_trainer.parallel.strategy import Strategy
from tests.trainer.runs import opened

RULES: list[dict[str, Any]] = [
    {"name": "sgd", "lr": 0.1, "momentum": 0.0, "nesterov": False},
    {"name": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    {"name": "adamw", "lr": 0.01, "weight_decay": 0.1},
]
STEPS = 6


class Pair:
    """A model that is updated by the trainer, and its twin that torch updates."""

    def __init__(self, rule: dict[str, Any]) -> None:
        torch.manual_seed(0)
        own = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3))
        config = OptimizerConfig(**rule)
        self.models = own, deepcopy(own)
        self.optimizers = [build_optimizer(model.parameters(), config) for model in self.models]
        for optimizer in self.optimizers:
            begin_momentum(optimizer)
        self.update = FusedUpdate(self.optimizers[0])

    def step(self, number: int, broken: float = 0.0, without: str | None = None) -> None:
        """Updates both with the same random gradients, and a learning rate of the update's own."""
        generator = torch.Generator().manual_seed(number)
        for (name, one), other in zip(
            self.models[0].named_parameters(), self.models[1].parameters(), strict=True
        ):
            grad = torch.randn(one.shape, generator=generator)
            one.grad, other.grad = (None, None) if name == without else (grad, grad.clone())
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = 0.1 / (number + 1)
        flag = torch.tensor(broken)
        self.update.make(flag)
        make_by_torch(self.optimizers[1], flag)

    def assert_equal(self) -> None:
        """Weights and state, to the bit."""
        weights = [list(model.parameters()) for model in self.models]
        states = [_flat(optimizer.state_dict()["state"]) for optimizer in self.optimizers]
        assert states[0].keys() == states[1].keys()
        assert all(one.equal(other) for one, other in zip(*weights, strict=True))
        assert all(states[0][key].equal(states[1][key]) for key in states[0])


def _flat(state: dict[int, dict[str, Tensor]]) -> dict[tuple[int, str], Tensor]:
    return {(n, key): value for n, values in state.items() for key, value in values.items()}


@pytest.mark.parametrize("rule", RULES)
def test_updates_are_those_of_torch(rule: dict[str, Any]) -> None:
    pair = Pair(rule)
    before = [param.clone() for param in pair.models[0].parameters()]
    for number in range(STEPS):
        pair.step(number, broken=float(number == STEPS // 2))
        pair.assert_equal()
    after = pair.models[0].parameters()
    assert not any(one.equal(other) for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("number", [0, 3])
def test_a_parameter_may_lack_its_gradient_at_times(rule: dict[str, Any], number: int) -> None:
    pair = Pair(rule)
    for step in range(STEPS):
        pair.step(step, without="0.bias" if step == number else None)
        pair.assert_equal()


@pytest.mark.parametrize("rule", RULES)
def test_a_loaded_state_is_taken_up(rule: dict[str, Any]) -> None:
    pair = Pair(rule)
    pair.step(0)
    saved = [deepcopy(optimizer.state_dict()) for optimizer in pair.optimizers]
    pair.step(1)
    for optimizer, state in zip(pair.optimizers, saved, strict=True):
        optimizer.load_state_dict(state)
    for number in range(2, STEPS):
        pair.step(number)
        pair.assert_equal()


@pytest.mark.parametrize("rule", RULES)
def test_torch_makes_the_first_update_alone(rule: dict[str, Any]) -> None:
    pair = Pair(rule)
    own = type(pair.optimizers[0])
    with patch.object(own, "step", autospec=True, side_effect=own.step) as by_torch:
        for number in range(STEPS):
            pair.step(number)
    mine = [call for call in by_torch.call_args_list if call.args[0] is pair.optimizers[0]]
    assert len(mine) == 1
    assert by_torch.call_count == 1 + STEPS


@pytest.mark.parametrize("bundled", [True, False])
def test_an_optimizer_that_is_not_bundled_is_left_to_itself(bundled: bool) -> None:
    pair = Pair(RULES[0])
    optimizer = pair.optimizers[0]
    strategy = Strategy(torch.device("cpu"), ParallelConfig())
    guard = Guard(strategy, optimizer, None, bundled=bundled)
    seen: list[int] = []
    optimizer.register_step_post_hook(lambda *_: seen.append(1))
    for param in pair.models[0].parameters():
        param.grad = torch.zeros_like(param)
    for _ in range(STEPS):
        guard.step(grad_scaler("fp32", strategy.device))
    assert len(seen) == (1 if bundled else STEPS)


@pytest.mark.parametrize("task", ["build", "build_own"])
def test_only_a_tasks_own_optimizer_is_not_bundled(task: str) -> None:
    with patch("ddp_trainer.learner.Guard", wraps=Guard) as guard:
        opened(f"sample_tasks:{task}", **({"optimizer": {}} if task == "build_own" else {}))
    assert guard.call_args.kwargs == {"bundled": task == "build"}
