"""A gang of ranks that a command starts on this machine, connected over loopback."""

import os
import uuid
from collections.abc import Callable
from typing import Any

# Imported before any fork, so that the ranks do not import them again.
import torch._dynamo
import torch.distributed.fsdp  # noqa: F401
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from ddp_trainer.errors import ReportedError, reported_error
from ddp_trainer.ranks import process_group
from ddp_trainer.ranks.environment import Ranks


def run_ranks(world_size: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function on every rank of a new gang, started by torch's launcher.

    The ranks are forks of this process, so this process must have no other threads.

    Args:
        world_size: Number of ranks. A single rank has no process group.
        function: Function that each rank calls with its `Ranks` and then `arguments`.
        arguments: Further arguments, the same for all ranks.

    Returns:
        The result of rank 0.

    Raises:
        ReportedError: If a rank raised one.
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
    for error, _ in answers.values():
        if error:
            raise reported_error(*error)
    return answers[0][1]


def _rank(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, Any]:
    """Run one rank. Return its error as (exit code, sentence) or None, and its result."""
    ranks = Ranks.from_environment(os.environ)
    if ranks.world_size == 1:
        ranks = Ranks()
    try:
        result = function(ranks, *arguments)
    except ReportedError as error:
        return (int(error.code), str(error)), None
    process_group.leave()
    return None, result
