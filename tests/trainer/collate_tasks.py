"""Task whose `collate` reads and changes attributes of the task."""

from typing import Any

from torch import Tensor
from torch.utils.data import default_collate

from ddp_trainer.task import RunEnv, Update
from tests.trainer.sample_tasks import ProbeConfig, ProbeTask


class RampTask(ProbeTask):
    """Task that scales its batches by a factor that grows with the updates."""

    def __init__(self, cfg: ProbeConfig, env: RunEnv) -> None:
        super().__init__(cfg, env)
        self.factor = 1.0
        self.batches = 0

    def collate(self, samples: list[tuple[Tensor, ...]]) -> Any:
        self.batches += 1
        x, *rest = default_collate(samples)
        return x * self.factor, *rest

    def after_update(self, update: Update) -> None:
        self.factor = 1.0 + update.step

    def state_dict(self) -> dict[str, Any]:
        return {"factor": self.factor, "batches": self.batches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.factor, self.batches = state["factor"], state["batches"]


def build(cfg: ProbeConfig, env: RunEnv) -> RampTask:
    return RampTask(cfg, env)
