"""Tests of activation checkpointing with blocks whose forward pass changes state."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from ddp_trainer.config.settings import resolve
from ddp_trainer.errors import InputError
from ddp_trainer.numerics.model import prepare
from tests.trainer.rank_processes import Launcher
from tests.trainer.runs import trained


def prepared(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(make(), make())
    return prepare(model, resolve({"activation_checkpointing": True}), torch.device("cpu"))


def state_of(**settings: Any) -> dict[str, Tensor]:
    run = trained("block_tasks:build", global_batch=8, micro_batch=4, max_steps=4, **settings)
    return run.learner.model.state_dict()


def test_activation_checkpointing_keeps_the_bits_of_weights_and_live_buffers() -> None:
    plain, lean = (state_of(activation_checkpointing=on) for on in (False, True))
    assert plain["0.0.live.0.passes"] == 8
    different = [name for name, value in plain.items() if not torch.equal(value, lean[name])]
    assert not different


def test_buffer_that_begins_to_change_later_is_refused_with_activation_checkpointing() -> None:
    with pytest.raises(
        InputError, match=r'the buffer "live.0.mean" .* class Block began to change'
    ):
        state_of(activation_checkpointing=True, task={"late": 4})


@pytest.mark.slow
def test_activation_checkpointing_keeps_the_bits_with_fsdp2(
    launcher: Launcher, tmp_path: Path
) -> None:
    arguments = ["--task=block_tasks:build", "--task.codebook=false", "--global_batch=8"]
    arguments += ["--max_steps=4", "--parallel.strategy=fsdp2"]
    found = []
    for on in ("false", "true"):
        extra = [f"--activation_checkpointing={on}", f"--checkpoint.directory={tmp_path / on}"]
        gang = launcher.train(*arguments, *extra, world=2)
        assert gang.wait() == [0, 0], gang.err(0)
        found.append(load_file(max((tmp_path / on).glob("step-*")) / "model.safetensors"))
    plain, lean = found
    assert plain["0.0.live.0.passes"] == 4
    assert not [name for name, value in plain.items() if not torch.equal(value, lean[name])]


class Counting(nn.Module):
    """Block that multiplies by the number of its passes, which the backward pass reads."""

    passes: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("passes", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.passes += 1
        return x * self.weight * self.passes


def test_block_that_is_computed_twice_in_a_pass_gets_the_buffers_of_each_pass() -> None:
    model = prepared(Counting)
    block = model[0] if isinstance(model, nn.Sequential) else model
    x = torch.ones(2)
    (block(x).sum() + 10 * block(x).sum()).backward()
    assert isinstance(block, Counting)
    assert block.weight.grad is not None
    assert block.weight.grad.tolist() == [21.0, 21.0]
    assert block.passes.tolist() == [2.0, 2.0]


def test_second_backward_pass_recomputes_from_the_same_buffers() -> None:
    model = prepared(Counting)
    total = model(torch.ones(2)).sum()
    total.backward(retain_graph=True)
    first = [param.grad.clone() for param in model.parameters() if param.grad is not None]
    model.zero_grad()
    total.backward()
    second = [param.grad for param in model.parameters() if param.grad is not None]
    assert len(first) == 2
    assert all(map(torch.equal, first, second))


def draws() -> tuple[float, float]:
    """Draw from the global generators of Python and NumPy."""
    return random.random(), float(np.random.rand())  # noqa: NPY002, S311


def test_recomputation_leaves_the_random_generators_and_buffers_as_they_were() -> None:
    model = prepared(Counting)
    buffers = list(model.buffers())
    total = model(torch.ones(2)).sum()
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002 - as user code
    drawn = draws()
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    total.backward()
    assert draws() == drawn
    assert all(one is other for one, other in zip(buffers, model.buffers(), strict=True))


def test_constant_tables_are_not_copied_after_the_first_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Table(nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 2)
            self.register_buffer("table", torch.ones(100))

    model = prepared(Table)
    model(torch.ones(2)).sum().backward()
    copied: list[int] = []
    clone = Tensor.clone

    def counted(tensor: Tensor) -> Tensor:
        copied.append(tensor.numel())
        return clone(tensor)

    monkeypatch.setattr(Tensor, "clone", counted)
    model(torch.ones(2)).sum().backward()
    assert 100 not in copied
