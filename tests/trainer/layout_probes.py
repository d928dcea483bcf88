"""Function that tests of layouts call on every rank: it compares resumed runs with whole ones."""

import contextlib
import gc
import io
import json
import os
from pathlib import Path
from typing import Any

from torch import Tensor

from ddp_trainer.config.settings import merge, resolve
from ddp_trainer.observe.heartbeats import HeartbeatWriter
from ddp_trainer.ranks import process_group
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.run.opening import RunRequest, open_run
from ddp_trainer.run.state import gather
from ddp_trainer.stop import StopFlag
from ddp_trainer.train import loop

STEPS = 6


def compare_resumed(given: tuple[str, list[dict[str, Any]]]) -> None:
    """Print the names of the tensors that a resume changes, by case.

    Args:
        given: A folder, and the settings of each case.
    """
    folder, cases = given
    ranks = Ranks.from_environment(os.environ)
    for number, settings in enumerate(cases):
        home = Path(folder) / f"{number}-{ranks.world_size}"
        whole = train(ranks, home / "whole", settings, STEPS)
        train(ranks, home / "broken", settings, STEPS // 2)
        resumed = train(ranks, home / "broken", settings, STEPS)
        different = [name for name, value in whole.items() if not value.equal(resumed[name])]
        if ranks.is_first:
            found = {"different": different, "compared": len(whole)}
            print(json.dumps({"event": "probe", **found}), flush=True)
    gc.collect()
    process_group.leave()


def train(ranks: Ranks, folder: Path, settings: dict[str, Any], steps: int) -> dict[str, Tensor]:
    """Train up to a step, and return weights, moments and average on rank 0."""
    folder.mkdir(parents=True, exist_ok=True)
    # A save averages the ranks of local SGD, so the whole run saves at the same step.
    saves = {"directory": str(folder), "every_steps": STEPS // 2}
    over = {"max_steps": steps, "epochs": None, "checkpoint": saves}
    request = RunRequest("layout_tasks:build", resolve(merge(settings, over)))
    with contextlib.redirect_stdout(io.StringIO()):
        run = open_run(request, ranks, StopFlag(), HeartbeatWriter(None, ranks, 0))
        loop(run)
        run.save(required=True)
    taken = gather(run.learner, run.task)
    if taken is None:
        return {}
    kinds = {"model": taken.model, "optimizer": taken.optimizer, "ema": taken.average}
    return {f"{kind}/{name}": t for kind, named in kinds.items() for name, t in named.items()}
