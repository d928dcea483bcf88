"""Functions that open or train a run in the process of the test."""

from typing import Any

from torch import nn

from ddp_trainer.config import RunConfig
from ddp_trainer.config.settings import resolve
from ddp_trainer.observe.heartbeats import HeartbeatWriter
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.run.opening import RunRequest, open_run
from ddp_trainer.run.run import Run
from ddp_trainer.stop import StopFlag
from ddp_trainer.train import loop

SGD = {"optimizer": {"name": "sgd", "lr": 0.1}, "schedule": {"name": "constant"}}


def opened(path: str = "sample_tasks:build", /, **settings: Any) -> Run:
    config: RunConfig = resolve(SGD | {"device": "cpu"} | settings)
    request = RunRequest(path, config)
    return open_run(request, Ranks(), StopFlag(), HeartbeatWriter(None, Ranks(), 0))


def trained(path: str = "sample_tasks:build", /, **settings: Any) -> Run:
    run = opened(path, **settings)
    loop(run)
    return run


def distance(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)
