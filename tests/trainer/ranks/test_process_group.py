"""Errors of NCCL that are the user's mistakes, and the timeout of collectives."""

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from ddp_trainer.errors import InputError
from ddp_trainer.ranks import process_group
from ddp_trainer.ranks.environment import Ranks

RECORDED = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:93, invalid usage (run with"
    " NCCL_DEBUG=WARN for details), NCCL version 2.28.9\n"
    "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
    "Last error:\n"
)
"""Error that torch 2.11 raised when two ranks used the same H100."""
DUPLICATE = "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 60"
TWO = Ranks(rank=1, world_size=2, local_rank=1, local_world_size=2, launched=True)


def join_with(monkeypatch: pytest.MonkeyPatch, last_error: str) -> None:
    """Join a group whose NCCL, which this machine may not have, fails with this error."""

    def fail(*_: Any, **_settings: Any) -> None:
        raise dist.DistBackendError(RECORDED + last_error)

    monkeypatch.setattr(process_group, "wait_until_reachable", lambda *_: None)
    monkeypatch.setattr(dist, "init_process_group", fail)
    process_group.join(TWO, torch.device("cuda", 0), timeout_seconds=1)


def test_two_ranks_on_one_gpu_are_an_input_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError) as caught:
        join_with(monkeypatch, DUPLICATE)
    assert str(caught.value) == (
        "config: each rank needs its own GPU, but ranks 0 and 1 use the same one; this node has 2"
        " ranks. Start one rank for each GPU, or set device: cpu"
    )


def test_other_errors_of_nccl_are_raised_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(dist.DistBackendError, match="unhandled system error"):
        join_with(monkeypatch, "ncclSystemError: unhandled system error")


def test_process_group_timeout_is_set_without_a_deprecation_warning_of_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Since torch 2.14 there is a public function, and the private function warns in each rank."""
    used: list[tuple[str, timedelta]] = []
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    private = "_set_pg_timeout"
    monkeypatch.setattr(distributed_c10d, private, lambda to: used.append((private, to)))
    monkeypatch.delattr(dist, "set_timeout", raising=False)
    process_group.set_timeout(7.5)
    monkeypatch.setattr(dist, "set_timeout", lambda to: used.append(("public", to)), raising=False)
    process_group.set_timeout(8.5)
    assert used == [(private, timedelta(seconds=7.5)), ("public", timedelta(seconds=8.5))]
