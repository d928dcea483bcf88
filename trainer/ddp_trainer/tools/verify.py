"""Make the same updates in one process and on several ranks, and compare the weights."""

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
from ddp_trainer.observe.heartbeats import HeartbeatWriter
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.ranks.local_gang import run_ranks
from ddp_trainer.run.building import build_task
from ddp_trainer.run.opening import RunRequest, open_run
from ddp_trainer.run.state import gather
from ddp_trainer.stop import StopFlag
from ddp_trainer.task import HasOptimizer
from ddp_trainer.tools.check_reading import random_sample, unrepeatable_sample
from ddp_trainer.tools.verify_buffers import BufferReport, compare_buffers
from ddp_trainer.train import loop

ACCUMULATION = 4
"""Micro-batches per rank and update in the cases with accumulation."""
BUFFER_STEPS = 5
"""Updates after which the buffers of the ranks are compared."""
WORLD_SIZES = (2, 4)
"""World sizes that are compared with one process."""


@dataclass(frozen=True, slots=True)
class Case:
    """One way to compute the same updates."""

    ranks: int
    """Number of ranks. 1 is a single process without a process group."""
    strategy: StrategyName = "ddp"
    accumulation: int = 1
    """Micro-batches per rank and update."""

    @property
    def file(self) -> str:
        """Return the name of the file for the trained weights."""
        return f"{self.ranks}-{self.strategy}-{self.accumulation}.safetensors"


STRATEGIES: tuple[tuple[StrategyName, int], ...] = (
    ("ddp", 1),
    ("ddp", ACCUMULATION),
    ("zero1", 1),
    ("fsdp2", 1),
)
"""Strategy and accumulation of the cases at each world size."""


@dataclass(frozen=True, slots=True)
class Differences:
    """The differences of all cases from one process."""

    weights: dict[Case, float]
    """Largest difference of a weight, by case."""
    buffers: BufferReport | None
    """The buffers that training changes; None if there are none."""


@dataclass(frozen=True, slots=True)
class CaseRunner:
    """Task, settings and folder with which the cases are trained."""

    task: str
    document: Document
    graph: Document
    """Settings of `parallel` about the parts of the model that an update uses."""
    folder: Path

    def differences(self, cases: Sequence[Case], precision: Precision) -> Differences:
        """Train the cases and compare the weights of each with those of one process.

        Args:
            cases: The cases to compare.
            precision: The precision of all cases and of the one process.
        """
        buffers: BufferReport | None = None
        reference = Case(1)
        document = self.document | {"precision": precision}
        for world in sorted({1} | {case.ranks for case in cases}):
            here = [case for case in cases if case.ranks == world]
            if world == 1:
                here = [reference, *here]
            settings = [(case, self._settings(case, document)) for case in here]
            found = run_ranks(world, _train_all, settings, self.task, str(self.folder))
            buffers = buffers or found
        weights = load_file(self.folder / reference.file)
        by_case = {
            case: largest_difference(weights, load_file(self.folder / case.file)) for case in cases
        }
        return Differences(by_case, buffers)

    def _settings(self, case: Case, document: Document) -> Document:
        """Return the settings of a case. fsdp2 has no static graph."""
        graph = dict(self.graph)
        if case.strategy == "fsdp2":
            graph.pop("static_graph", None)
        return merge(document, {"parallel": graph})


def verify(
    task: str, config: RunConfig, steps: int, tolerance: float, *, optimizer_stated: bool
) -> bool:
    """Train all cases and print a table of the largest differences.

    A case whose difference in fp32 is too large is repeated in fp64. In fp32 the last bit can
    decide on which side of a kink (of a ReLU or a maximum) a sample falls. After that, two correct
    computations diverge. In fp64 this is a billion times less likely, but a real fault
    remains.

    Args:
        task: Import path `package.module:function`.
        config: The user's settings. Settings that make the cases differ are removed.
        steps: Number of updates.
        tolerance: Largest permitted difference between a weight and that of one process.
        optimizer_stated: Whether the user set the optimizer.

    Returns:
        Whether every difference is within the tolerance, in fp32 or else in fp64.

    Raises:
        InputError: If the global batch cannot be divided among the ranks, or if a sample differs
            when it is read twice with the same seeds.
        ReportedError: If a rank reports an error.
    """
    divisor = max(WORLD_SIZES) * ACCUMULATION
    if config.global_batch % divisor:
        raise InputError(
            f"verify: global_batch {config.global_batch} must be a multiple of {divisor}"
        )
    cases = [Case(1, accumulation=ACCUMULATION)]
    cases += [Case(world, name, count) for world in WORLD_SIZES for name, count in STRATEGIES]
    with tempfile.TemporaryDirectory(prefix="verify-") as folder:
        document = _comparable_settings(config, steps)
        if not optimizer_stated:
            document = _without_unused_optimizer(task, document)
        random = run_ranks(1, _random_sample, task, document)
        runner = CaseRunner(task, document, _graph_settings(config), Path(folder))
        found = runner.differences(cases, "fp32")
        in_fp32 = found.weights
        repeated = [case for case in cases if in_fp32[case] > tolerance]
        in_fp64 = runner.differences(repeated, "fp64").weights if repeated else {}
    print(f"{steps} updates of {config.global_batch} samples, tolerance {tolerance:g}")
    print("ranks  strategy  accumulation  largest difference")
    for case in cases:
        print(_row(case, in_fp32[case], in_fp64.get(case), tolerance))
    if found.buffers:
        print(found.buffers.sentence)
    if repeated and random:
        print(
            f"{random} depends on the seed, and each rank has its own: turn off random preparation"
            " of samples in the settings of the task to compare the ranks"
        )
    equal = all(difference <= tolerance for difference in in_fp64.values())
    return equal and (found.buffers is None or found.buffers.valid)


def _row(case: Case, in_fp32: float, in_fp64: float | None, tolerance: float) -> str:
    strategy = case.strategy if case.ranks > 1 else "-"
    row = f"{case.ranks:5}  {strategy:8}  {case.accumulation:12}  {in_fp32:18.1e}"
    if in_fp64 is None:
        return f"{row}  ok"
    return f"{row}  {'ok' if in_fp64 <= tolerance else 'TOO LARGE'}, {in_fp64:.1e} in fp64"


def largest_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Return the largest difference between two numbers at the same place.

    Return infinity if the names differ or a difference is not finite.
    """
    if one.keys() != other.keys():
        return math.inf
    largest = 0.0
    for name, tensor in one.items():
        if tensor.numel():
            difference = float((tensor.double() - other[name].double()).abs().max())
            largest = max(largest, difference if math.isfinite(difference) else math.inf)
    return largest


def _comparable_settings(config: RunConfig, steps: int) -> Document:
    """Return the user's settings without those that make ranks differ or save anything."""
    over: Document = {
        "global_batch": config.global_batch,
        "epochs": None,
        "max_steps": steps,
        "max_seconds": None,
        "compile": False,
        "eval_every_steps": steps + 1,
        "sync_batch_norm": False,
        # The number of workers changes no result, but each of them takes seconds to start.
        "data": {"workers": 0},
        "log": {"every_steps": steps + 1},
    }
    without = {"checkpoint", "compile_dynamic", "compile_mode", "ema", "nonfinite"}
    document = config.model_dump(mode="json", exclude=without, exclude_unset=True)
    document["parallel"] = {
        "timeout_seconds": config.parallel.timeout_seconds,
        "buffers": config.parallel.buffers,
    }
    return merge(document, over)


def _graph_settings(config: RunConfig) -> Document:
    """Return the user's settings about the parts of the model that an update uses."""
    names = {"find_unused_parameters", "static_graph"} & config.parallel.changed()
    return {name: getattr(config.parallel, name) for name in sorted(names)}


def _without_unused_optimizer(task: str, document: Document) -> Document:
    """Return the settings without `optimizer` if the task has its own, which forbids it."""
    plain = {key: value for key, value in document.items() if key != "optimizer"}
    return plain if run_ranks(1, _has_optimizer, task, plain) else document


def _has_optimizer(ranks: Ranks, task: str, document: Document) -> bool:
    built, _ = build_task(task, resolve(document), ranks, torch.device("cpu"))
    return isinstance(built, HasOptimizer)


def _random_sample(ranks: Ranks, task: str, document: Document) -> str | None:
    """Return the place of a training sample that depends on the seed; None if none does.

    Raises:
        InputError: If a sample cannot be repeated even with the same seeds.
    """
    built, _ = build_task(task, resolve(document), ranks, torch.device("cpu"))
    sentence = unrepeatable_sample(built.train_data, "train_data")
    if sentence:
        raise InputError(f"verify: {sentence}")
    return random_sample(built.train_data, "train_data")


def _train_all(
    ranks: Ranks, cases: Sequence[tuple[Case, Document]], task: str, folder: str
) -> BufferReport | None:
    """Train this rank's part of the cases with their settings, one after another."""
    live = False
    for case, document in cases:
        live |= _train(case, ranks, task, document, Path(folder))
    if not live:
        return None
    document = merge(cases[0][1], {"micro_batch": None, "max_steps": BUFFER_STEPS})
    with contextlib.redirect_stdout(io.StringIO()):
        return compare_buffers(task, resolve(document), ranks)


def _train(case: Case, ranks: Ranks, task: str, document: Document, folder: Path) -> bool:
    """Train one case, save its weights, and return whether training changes buffers."""
    micro_batch = document["global_batch"] // case.ranks // case.accumulation
    over = {"micro_batch": micro_batch, "parallel": {"strategy": case.strategy}}
    request = RunRequest(task, resolve(merge(document, over)))
    with contextlib.redirect_stdout(io.StringIO()):
        run = open_run(request, ranks, StopFlag(), HeartbeatWriter(None, ranks, 0))
        # Dropout and BatchNorm depend on which rank has which sample: eval() turns both off.
        run.learner.model.eval()
        loop(run)
        snapshot = gather(run.learner, run.task)
    if snapshot:
        save_file(dict(snapshot.model.items()), folder / case.file)
    return run.learner.buffers is not None and bool(run.learner.buffers.names)
