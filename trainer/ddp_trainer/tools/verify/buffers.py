"""Compare between ranks the buffers that training changes."""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from ddp_trainer.config import RunConfig
from ddp_trainer.observe.heartbeats import HeartbeatWriter
from ddp_trainer.ranks.collectives import broadcast
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.run.opening import RunRequest, open_run
from ddp_trainer.stop import StopFlag
from ddp_trainer.train import loop


@dataclass(frozen=True, slots=True)
class BufferReport:
    """Report on the buffers that training changes."""

    sentence: str
    valid: bool
    """Whether the buffers follow the policy of `parallel.buffers`."""


def compare_buffers(task: str, config: RunConfig, ranks: Ranks) -> BufferReport | None:
    """Train in training mode and compare the live buffers of all ranks. Every rank must call this.

    Only buffers are compared: live buffers, and so the weights, depend on each rank's samples.

    Args:
        task: Import path `package.module:function`.
        config: Settings of the run.
        ranks: This process's rank.

    Returns:
        The report, equal on all ranks. None without live buffers.
    """
    run = open_run(RunRequest(task, config), ranks, StopFlag(), HeartbeatWriter(None, ranks, 0))
    loop(run)
    buffers = run.learner.buffers
    policy = buffers.sentence(local=False) if buffers else None
    if buffers is None or policy is None:
        return None
    differing = torch.zeros((), device=run.learner.device)
    for tensor in buffers.tensors():
        first = broadcast(tensor.contiguous().clone())
        differing += (first != tensor).sum()
    dist.all_reduce(differing)
    count, own = int(differing.item()), buffers.policy == "per_rank"
    found = f"{count} of their numbers differ" if count else "they are equal"
    valid = own or not count
    sentence = f"{policy}; on {ranks.world_size} ranks after {config.max_steps} updates {found}"
    return BufferReport(f"{sentence}  {'ok' if valid else 'NOT EQUAL'}", valid)
