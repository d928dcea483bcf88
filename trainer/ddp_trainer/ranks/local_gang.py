"""Ranks that a command starts by itself, on this machine's loopback."""

import os
import uuid
from collections.abc import Callable
from typing import Any

# Before anything is forked: ranks that use them find them loaded.
import torch._dynamo
import torch.distributed.fsdp  # noqa: F401
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from ddp_trainer.errors import Refusal, refusal
from ddp_trainer.ranks import process_group
from ddp_trainer.ranks.environment import Ranks


def run_ranks(world_size: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function on every rank of a new gang, by torch's launcher.

    Ranks are forks of this process, which must have no threads of its own.

    Args:
        world_size: Ranks; one of them is a process without a group.
        function: Called with this rank's place and then the arguments.
        arguments: The same for all ranks.

    Returns:
        What rank 0's function returned.

    Raises:
        Refusal: What a rank refused.
    """
    launch = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=world_size,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=0.05,
        start_method="fork",
    )
    answers = elastic_launch(launch, _rank)(function, arguments)
    for refused, _ in answers.values():
        if refused:
            raise refusal(*refused)
    return answers[0][1]


def _rank(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, Any]:
    """One rank: what it refuses, as code and sentence, and what its function returned."""
    ranks = Ranks.from_environment(os.environ)
    if ranks.world_size == 1:
        ranks = Ranks()
    try:
        returned = function(ranks, *arguments)
    except Refusal as refused:
        return (int(refused.code), str(refused)), None
    process_group.leave()
    return None, returned
