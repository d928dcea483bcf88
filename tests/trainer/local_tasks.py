"""Task of which each rank uses other weights."""

import torch
from torch import Tensor, nn

from ddp_trainer.task import RunEnv
from tests.trainer.sample_tasks import ProbeConfig, ProbeTask


class Branches(nn.Module):
    """Model with one branch per rank."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self.first = nn.Linear(6, 8)
        self.last = nn.Linear(8, 3)
        self.branches = nn.ModuleDict({str(each): nn.Linear(8, 8) for each in range(2)})

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.last(self.branches[str(self.rank)](torch.tanh(self.first(x))))
        return scores


class BranchTask(ProbeTask):
    def __init__(self, cfg: ProbeConfig, env: RunEnv) -> None:
        super().__init__(cfg, env)
        self.model = Branches(env.rank % 2)


def build(cfg: ProbeConfig, env: RunEnv) -> BranchTask:
    return BranchTask(cfg, env)
