"""The same updates by one process and by several ranks, compared weight by weight."""

import contextlib
import io
import math
import os
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.distributed.fsdp
from safetensors.torch import load_file, save_file
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from ddp_trainer.config import Precision, RunConfig, StrategyName
from ddp_trainer.environment import Ranks
from ddp_trainer.errors import InputError, Refusal, refusal
from ddp_trainer.observe.beats import BeatWriter
from ddp_trainer.opening import Order, open_run
from ddp_trainer.parallel import process_group
from ddp_trainer.settings import Document, merge, resolve
from ddp_trainer.state import gather
from ddp_trainer.stop import StopFlag
from ddp_trainer.train import loop

ACCUMULATION = 4
WORLDS = (2, 4)


@dataclass(frozen=True, slots=True)
class Case:
    """One way to compute the same updates."""

    ranks: int
    """1 is a process without a group."""
    strategy: StrategyName = "ddp"
    accumulation: int = 1

    @property
    def file(self) -> str:
        """Where its weights are left."""
        return f"{self.ranks}-{self.strategy}-{self.accumulation}.safetensors"


STRATEGIES: tuple[tuple[StrategyName, int], ...] = (
    ("ddp", 1),
    ("ddp", ACCUMULATION),
    ("zero1", 1),
    ("fsdp2", 1),
)


@dataclass(frozen=True, slots=True)
class Bench:
    """Where cases are computed."""

    task: str
    document: Document
    folder: Path

    def differences(self, cases: Sequence[Case], precision: Precision) -> dict[Case, float]:
        """The largest difference of each case from one process.

        Args:
            cases: What to compare.
            precision: Arithmetic of all of them.
        """
        reference = Case(1)
        document = self.document | {"precision": precision}
        for world in sorted({1} | {case.ranks for case in cases}):
            here = [case for case in cases if case.ranks == world]
            if world == 1:
                here = [reference, *here]
            _launch(world, here, self.task, document, str(self.folder))
        weights = load_file(self.folder / reference.file)
        return {
            case: largest_difference(weights, load_file(self.folder / case.file)) for case in cases
        }


def verify(task: str, config: RunConfig, steps: int, tolerance: float) -> bool:
    """Trains in every way, and prints a table of the largest differences.

    In fp32 a last bit can decide on which side of a kink (of a ReLU, a maximum) a sample falls, and
    from then on two right computations differ by much. So what differs by too much in fp32 is
    computed again in fp64, where that is a billion times less likely; a real fault is still there.

    Args:
        task: Import path `package.module:function`.
        config: What the user asked for; what would make the ways differ is taken out.
        steps: Updates.
        tolerance: Largest difference of a weight from that of one process.

    Returns:
        Whether all differences are within the tolerance, in fp32 or else in fp64.

    Raises:
        InputError: If the samples cannot be shared out.
        Refusal: What a rank refused.
    """
    most = max(WORLDS) * ACCUMULATION
    if config.global_batch % most:
        raise InputError(f"verify: global_batch {config.global_batch} must be a multiple of {most}")
    cases = [Case(1, accumulation=ACCUMULATION)]
    cases += [Case(world, name, count) for world in WORLDS for name, count in STRATEGIES]
    with tempfile.TemporaryDirectory(prefix="verify-") as folder:
        bench = Bench(task, _comparable(config, steps), Path(folder))
        single = bench.differences(cases, "fp32")
        doubtful = [case for case in cases if single[case] > tolerance]
        double = bench.differences(doubtful, "fp64") if doubtful else {}
    print(f"{steps} updates of {config.global_batch} samples, tolerance {tolerance:g}")
    print("ranks  strategy  accumulation  largest difference")
    for case in cases:
        print(_row(case, single[case], double.get(case), tolerance))
    return all(apart <= tolerance for apart in double.values())


def _row(case: Case, single: float, double: float | None, tolerance: float) -> str:
    strategy = case.strategy if case.ranks > 1 else "-"
    row = f"{case.ranks:5}  {strategy:8}  {case.accumulation:12}  {single:18.1e}"
    if double is None:
        return f"{row}  ok"
    return f"{row}  {'ok' if double <= tolerance else 'TOO LARGE'}, {double:.1e} in fp64"


def largest_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Of any two numbers in the same place; infinite where one is not a number, or is missing."""
    if one.keys() != other.keys():
        return math.inf
    largest = 0.0
    for name, tensor in one.items():
        if tensor.numel():
            apart = float((tensor.double() - other[name].double()).abs().max())
            largest = max(largest, apart if math.isfinite(apart) else math.inf)
    return largest


def _comparable(config: RunConfig, steps: int) -> Document:
    """The user's settings without those that make ranks differ, and with nothing kept."""
    over: Document = {
        "epochs": None,
        "max_steps": steps,
        "max_seconds": None,
        "compile": False,
        "eval_every_steps": steps + 1,
        "sync_batch_norm": False,
        "log": {"every_steps": steps + 1},
    }
    without = {"checkpoint", "ema", "nonfinite"}
    document = config.model_dump(mode="json", exclude=without)
    document["parallel"] = {"timeout_seconds": config.parallel.timeout_seconds}
    return merge(document, over)


def _launch(world: int, cases: Sequence[Case], task: str, document: Document, folder: str) -> None:
    """Runs cases one after another in one gang of ranks, by torch's launcher on loopback."""
    launch = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=world,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=0.05,
        start_method="fork",
    )
    answers = elastic_launch(launch, _rank)(list(cases), task, document, folder)
    for answer in answers.values():
        if answer is not None:
            raise refusal(*answer)


def _rank(cases: list[Case], task: str, document: Document, folder: str) -> Any:
    """One rank of a gang; what it refuses, it returns as code and sentence."""
    ranks = Ranks.from_environment(os.environ)
    if ranks.world_size == 1:
        ranks = Ranks()
    try:
        for case in cases:
            _train(case, ranks, task, document, Path(folder))
    except Refusal as refused:
        return int(refused.code), str(refused)
    process_group.leave()
    return None


def _train(case: Case, ranks: Ranks, task: str, document: Document, folder: Path) -> None:
    micro = document["global_batch"] // case.ranks // case.accumulation
    over = {"micro_batch": micro, "parallel": {"strategy": case.strategy}}
    order = Order(task, resolve(merge(document, over)))
    with contextlib.redirect_stdout(io.StringIO()):
        run = open_run(order, ranks, StopFlag(), BeatWriter(None, ranks, 0))
        # Dropout and BatchNorm depend on which rank has which sample; gradients flow all the same.
        run.learner.model.eval()
        loop(run)
        taken = gather(run.learner)
    if taken:
        save_file(taken.model, folder / case.file)
