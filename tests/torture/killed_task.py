"""Task of the runs whose ranks and pods are killed. It says where its ranks are and what they do.

Each rank writes its process id to `ranks/` before it opens the run's directory, and rank 0 the
newest step that a state in memory or on the volume has then. After each update rank 0 writes its
step.
"""

import os
import time
from pathlib import Path

from ddp_trainer.task import RunEnv, Update
from ddp_wire.contract import Env
from tests.torture.lab import is_whole
from tests.trainer.sample_tasks import ProbeConfig, ProbeTask

MOST_STARTS = 2
"""Attempts that may start from one record (docs/use/checkpoints.md)."""


class KilledConfig(ProbeConfig):
    """Where the ranks write, and how long an update takes."""

    notes: str
    update_seconds: float = 0.01


class KilledTask(ProbeTask):
    def __init__(self, cfg: KilledConfig, env: RunEnv) -> None:
        super().__init__(cfg, env)
        self.seconds, self.notes = cfg.update_seconds, Path(cfg.notes)
        attempt = int(os.environ[Env.ATTEMPT])
        if env.rank == 0:
            floor = newest_step(*state_folders())
            replace(self.notes / "floors" / str(attempt), str(floor))
        replace(self.notes / "ranks" / str(env.rank), f"{attempt} {os.getpid()}")

    def after_update(self, update: Update) -> None:
        time.sleep(self.seconds)
        if self.env.rank == 0:
            replace(self.notes / "step", f"{os.environ[Env.ATTEMPT]} {update.step}")


def state_folders() -> list[Path]:
    """Return the run's directory, and the folders of records of all nodes of this job."""
    own = Path(os.environ[Env.RECORDS_DIR])
    nodes = own.parent.glob(f"{own.name.rpartition('-')[0]}-*")
    return [Path(os.environ[Env.CHECKPOINT_DIR]), *nodes]


def newest_step(*folders: Path) -> int:
    """Return the newest step of a whole state from which an attempt may start; 0 without one."""
    found = [0]
    for folder in folders:
        for path in folder.glob("step-*"):
            starts = path.with_name(f"{path.name}.starts")
            used = int(starts.read_text() or 0) if starts.exists() else 0
            if path.suffix.startswith(".attempt-") and used < MOST_STARTS and is_whole(path):
                found.append(int(path.name.removeprefix("step-").partition(".")[0]))
    return max(found)


def replace(path: Path, text: str) -> None:
    """Replace a file as a whole."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_text(text)
    new.rename(path)


def build(cfg: KilledConfig, env: RunEnv) -> KilledTask:
    return KilledTask(cfg, env)
