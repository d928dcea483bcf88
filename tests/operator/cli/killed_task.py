"""Task that kills its ranks at given updates and records the updates that it begins."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from torch import nn

from ddp_trainer.task import RunEnv, Weighted
from ddp_wire.contract import Env
from tests.trainer.sample_tasks import ProbeConfig, ProbeTask

ALL = -1


class KilledConfig(ProbeConfig):
    """Kills of the first attempts, one per attempt."""

    kills: list[list[int]]
    """Rank to kill, and number of completed updates of the attempt after which it is killed. Rank
    -1 stands for all ranks, which are killed in one moment."""
    record_dir: str
    """Folder in which rank 0 counts the updates that each attempt begins."""
    update_seconds: float = 0.02


class KilledTask(ProbeTask):
    def __init__(self, cfg: KilledConfig, env: RunEnv) -> None:
        super().__init__(cfg, env)
        self.killed = cfg
        self.attempt = int(os.environ[Env.ATTEMPT])
        (Path(cfg.record_dir) / f"{env.rank}.pid").write_text(str(os.getpid()))

    def loss(self, model: nn.Module, batch: Any) -> Weighted:
        if model.training:
            self._begin_update()
        return super().loss(model, batch)

    def _kill_all(self) -> None:
        """Kill all ranks of the run, which is on one machine, this one last."""
        pids = [int(path.read_text()) for path in Path(self.killed.record_dir).glob("*.pid")]
        for pid in sorted(pids, key=lambda pid: pid == os.getpid()):
            os.kill(pid, signal.SIGKILL)

    def _begin_update(self) -> None:
        time.sleep(self.killed.update_seconds)
        if self.attempt <= len(self.killed.kills):
            rank, updates = self.killed.kills[self.attempt - 1]
            if self.env.rank == rank and self.passes == updates:
                os.kill(os.getpid(), signal.SIGKILL)
            if rank == ALL and self.env.rank == 0 and self.passes == updates:
                self._kill_all()
        if self.env.rank == 0:
            with (Path(self.killed.record_dir) / f"{self.attempt}.txt").open("a") as file:
                file.write("update\n")


def build(cfg: KilledConfig, env: RunEnv) -> KilledTask:
    return KilledTask(cfg, env)
