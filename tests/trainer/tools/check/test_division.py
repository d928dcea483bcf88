"""Tests of numbers of samples that `check` refuses or warns about."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from ddp_trainer.config import RunConfig
from ddp_trainer.config.settings import resolve
from ddp_trainer.errors import InputError
from ddp_trainer.task import RunEnv
from ddp_trainer.tools.check.division import check_batch_norm, check_shares
from tests.trainer.sample_tasks import ProbeConfig, ProbeTask


@pytest.mark.parametrize(
    ("world_size", "samples", "settings", "accepted"),
    [
        (1, 49, {}, False),
        (1, 49, {"data": {"drop_last": True}}, True),
        (1, 49, {"max_steps": 4}, True),
        (1, 49, {"max_steps": 5}, False),
        (1, 50, {}, True),
        (3, 52, {}, False),  # The last shares are 2, 1 and 1.
        (3, 54, {}, True),
        (3, 55, {"micro_batch": 2}, False),  # 3 samples are passes of 2 and 1.
        (3, 55, {"micro_batch": 4}, True),
        (3, 49, {"sync_batch_norm": True}, False),
        (3, 50, {"sync_batch_norm": True}, True),
    ],
)
def test_check_refuses_a_batch_that_gives_batch_norm_a_single_sample(
    world_size: int, samples: int, settings: dict[str, Any], accepted: bool
) -> None:
    config: RunConfig = resolve({"global_batch": 12, **settings})
    env = RunEnv(0, 1, 0, 1, torch.device("cpu"), 0)
    task = ProbeTask(ProbeConfig(samples=samples, batch_norm=True), env)
    with nullcontext() if accepted else pytest.raises(InputError, match="BatchNorm"):
        check_batch_norm(task, config, world_size)
    task.model.get_submodule("norm").eval()
    check_batch_norm(task, config, world_size)


def test_error_about_a_single_sample_in_batch_norm_names_the_batch_sizes() -> None:
    env = RunEnv(0, 1, 0, 1, torch.device("cpu"), 0)
    task = ProbeTask(ProbeConfig(samples=193, batch_norm=True), env)
    sentences = {}
    for batch in (16, 4):
        with pytest.raises(InputError) as refused:
            check_batch_norm(task, resolve({"global_batch": batch}), 4)
        sentences[batch] = str(refused.value)
    assert sentences == {
        16: (
            "check: BatchNorm would normalise a single sample by itself at the end of each epoch,"
            " where 1 of 193 samples are left (global_batch 16, micro_batch 4, world size 4): use"
            " data.drop_last=true or another global_batch"
        ),
        4: (
            "check: BatchNorm would normalise a single sample by itself, because a forward pass has"
            " only one (global_batch 4, micro_batch 1, world size 4): raise global_batch or"
            " micro_batch"
        ),
    }


def test_check_reports_ranks_with_different_numbers_of_samples() -> None:
    env = RunEnv(0, 1, 0, 1, torch.device("cpu"), 0)
    task = ProbeTask(ProbeConfig(samples=48, batch_norm=True), env)
    for settings in ({"global_batch": 16}, {"global_batch": 16, "micro_batch": 4}):
        check_batch_norm(task, resolve(settings), 3)  # 6, 5 and 5 samples, or 3, 3 and 3, 2
    with pytest.raises(InputError, match="because a forward pass has only one"):
        check_batch_norm(task, resolve({"global_batch": 4}), 3)
    local = {"parallel": {"local_sgd": {"period": 4}}, "global_batch": 16}
    sentence = check_shares(resolve(local), 3)
    assert sentence
    assert "of global_batch 16 some of the 3 ranks get 6 samples and others 5" in sentence
    assert check_shares(resolve(local), 4) is None
    assert check_shares(resolve({"global_batch": 16}), 3) is None
