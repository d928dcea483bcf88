"""The same updates by one process and by several ranks, compared weight by weight."""

import contextlib
import io
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from ddp_trainer.config import Precision, RunConfig, StrategyName
from ddp_trainer.config.settings import Document, merge, resolve
from ddp_trainer.errors import InputError
from ddp_trainer.observe.beats import BeatWriter
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.ranks.local_gang import run_ranks
from ddp_trainer.run.building import build_task
from ddp_trainer.run.opening import Order, open_run
from ddp_trainer.run.state import gather
from ddp_trainer.stop import StopFlag
from ddp_trainer.task import HasOptimizer
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
            run_ranks(world, _train_all, here, self.task, document, str(self.folder))
        weights = load_file(self.folder / reference.file)
        return {
            case: largest_difference(weights, load_file(self.folder / case.file)) for case in cases
        }


def verify(
    task: str, config: RunConfig, steps: int, tolerance: float, *, rule_stated: bool
) -> bool:
    """Trains in every way, and prints a table of the largest differences.

    In fp32 a last bit can decide on which side of a kink (of a ReLU, a maximum) a sample falls, and
    from then on two right computations differ by much. So what differs by too much in fp32 is
    computed again in fp64, where that is a billion times less likely; a real fault is still there.

    Args:
        task: Import path `package.module:function`.
        config: What the user asked for; what would make the ways differ is taken out.
        steps: Updates.
        tolerance: Largest difference of a weight from that of one process.
        rule_stated: Whether the user asked for an update rule.

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
        document = _comparable(config, steps)
        if not rule_stated:
            document = _without_rule_if_own(task, document)
        bench = Bench(task, document, Path(folder))
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
        "global_batch": config.global_batch,
        "epochs": None,
        "max_steps": steps,
        "max_seconds": None,
        "compile": False,
        "eval_every_steps": steps + 1,
        "sync_batch_norm": False,
        "log": {"every_steps": steps + 1},
    }
    without = {"checkpoint", "ema", "nonfinite"}
    document = config.model_dump(mode="json", exclude=without, exclude_unset=True)
    document["parallel"] = {"timeout_seconds": config.parallel.timeout_seconds}
    return merge(document, over)


def _without_rule_if_own(task: str, document: Document) -> Document:
    """The settings without an update rule, if the task brings its own: it would be refused."""
    plain = {key: value for key, value in document.items() if key != "optimizer"}
    return plain if run_ranks(1, _brings_optimizer, task, plain) else document


def _brings_optimizer(ranks: Ranks, task: str, document: Document) -> bool:
    built, _ = build_task(task, resolve(document), ranks, torch.device("cpu"))
    return isinstance(built, HasOptimizer)


def _train_all(
    ranks: Ranks, cases: Sequence[Case], task: str, document: Document, folder: str
) -> None:
    """One rank's part of cases, one after another."""
    for case in cases:
        _train(case, ranks, task, document, Path(folder))


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
