"""Tests that weight names in checkpoints do not depend on torch.compile."""

import torch
from torch import nn

from ddp_trainer.checkpoint.snapshot import put_model, put_optimizer, take
from ddp_trainer.config import EmaConfig
from ddp_trainer.names import plain_name
from ddp_trainer.numerics.ema import Ema


def model(*, compiled: bool) -> nn.Module:
    inner = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    part = torch.compile(inner, backend="eager") if compiled else inner
    return nn.ModuleDict({"inner": part, "head": nn.Linear(4, 2)})  # type: ignore[dict-item]


def trained(*, compiled: bool) -> tuple[nn.Module, torch.optim.Optimizer, Ema]:
    made = model(compiled=compiled)
    optimizer = torch.optim.AdamW(made.parameters(), lr=0.1)
    for param in made.parameters():
        param.grad = torch.randn_like(param)
    optimizer.step()
    return made, optimizer, Ema(made, EmaConfig(), 0.9)


def test_parameter_names_omit_the_prefix_of_the_compiled_model() -> None:
    assert plain_name("encoder._orig_mod.0.weight") == "encoder.0.weight"
    assert plain_name("exp_avg/_orig_mod.encoder._orig_mod.bias") == "exp_avg/encoder.bias"


def test_state_moves_between_a_compiled_and_a_plain_model() -> None:
    for saves in (False, True):
        one, its_optimizer, its_average = trained(compiled=saves)
        other, other_optimizer, other_average = trained(compiled=not saves)
        saved = take(one, its_optimizer)
        assert "inner.0.weight" in saved.model
        assert "exp_avg/inner.0.weight" in saved.optimizer
        put_model(other, saved.model)
        put_optimizer(
            other, other_optimizer, saved.optimizer, saved.optimizer_rest, keep_groups=True
        )
        other_average.load(its_average.state())
        moved = take(other, other_optimizer)
        for kept, new in ((saved.model, moved.model), (saved.optimizer, moved.optimizer)):
            before, after = dict(kept.items()), dict(new.items())
            assert before.keys() == after.keys()
            assert all(torch.equal(before[name], after[name]) for name in before)
        average, expected = other_average.state(), its_average.state()
        assert all(torch.equal(average[name], expected[name]) for name in expected)


def test_parameter_names_of_an_older_release_are_read() -> None:
    made = model(compiled=False)
    saved = {
        name.replace("inner.", "inner._orig_mod."): tensor + 1.0 if tensor.dim() else tensor
        for name, tensor in made.state_dict().items()
    }
    put_model(made, saved)
    assert torch.equal(made.state_dict()["head.bias"], saved["head.bias"])
    assert torch.equal(made.state_dict()["inner.0.bias"], saved["inner._orig_mod.0.bias"])
