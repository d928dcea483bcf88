"""Functions that ranks of tests run inside a memory limit, as a container has it."""

import ctypes
import os
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from torch import Tensor, nn

from ddp_trainer.commands.main import main
from ddp_trainer.task import RunEnv, Update, Weighted

_CLONE_NEWNS = 0x20000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_libc = ctypes.CDLL(None, use_errno=True)


def run_limited(argument: dict[str, Any]) -> int:
    """Train inside a control group, which the process sees as that of its container."""
    group, shown = Path(argument["group"]), argument["shown"]
    (group / "cgroup.procs").write_text(str(os.getpid()))
    _call("unshare", _CLONE_NEWNS)
    _call("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
    _call("mount", str(group).encode(), shown.encode(), None, _MS_BIND, None)
    code = main(["train", *argument["arguments"]])
    return int(code)


def _call(name: str, *arguments: Any) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


class Settings(BaseModel):
    width: int = 1600
    burst_mib: int = 0
    """Memory that the task uses for a moment after update 12."""


class LargeTask:
    """A task with 2 * width^2 weights."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.model = nn.Sequential(
            nn.Linear(settings.width, settings.width), nn.Linear(settings.width, settings.width)
        )
        generator = torch.Generator().manual_seed(0)
        self.train_data = torch.utils.data.TensorDataset(
            torch.randn(64, settings.width, generator=generator)
        )
        self.eval_data = None

    def loss(self, model: nn.Module, batch: list[Tensor]) -> Weighted:
        (x,) = batch
        return Weighted((model(x) - x).square().mean(1).sum(), len(x))

    def after_update(self, update: Update) -> None:
        if update.step == 12 and self.settings.burst_mib:
            pieces = [torch.ones(1 << 18) for _ in range(self.settings.burst_mib)]
            assert sum(float(piece[0]) for piece in pieces) == len(pieces)


def build(settings: Settings, _: RunEnv) -> LargeTask:
    return LargeTask(settings)
