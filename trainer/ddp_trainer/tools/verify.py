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
from ddp_trainer.tools.check.repeats import random_sample, unrepeatable_sample
from ddp_trainer.tools.verify_buffers import BufferReport, compare_buffers
from ddp_trainer.train import loop

ACCUMULATION = 4
"""Micro-batches per rank and update in the cases with accumulation."""
BUFFER_STEPS = 5
"""Updates after which the buffers of the ranks are compared."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What `verify` compares with one process, and how."""

    steps: int
    """Number of updates."""
    tolerance: float
    """Largest permitted difference between a weight and that of one process."""
    ranks: tuple[int, ...]
    """World sizes, each at least 2."""
    strategies: tuple[StrategyName, ...]

    def cases(self) -> list["Case"]:
        """Return all cases. Only ddp accumulates, too: the other strategies do it alike."""
        kinds = [(name, count) for name in self.strategies for count in _accumulations(name)]
        several = [Case(world, name, count) for world in self.ranks for name, count in kinds]
        return [Case(1, accumulation=ACCUMULATION), *several]


def _accumulations(strategy: StrategyName) -> tuple[int, ...]:
    return (1, ACCUMULATION) if strategy == "ddp" else (1,)


@dataclass(frozen=True, slots=True)
class Case:
    """One way to compute the same updates."""

    ranks: int
    """Number of ranks. 1 is a single process without a process group."""
    strategy: StrategyName = "ddp"
    accumulation: int = 1
    """Most micro-batches per rank and update."""

    @property
    def file(self) -> str:
        """Return the name of the file for the trained weights."""
        return f"{self.ranks}-{self.strategy}-{self.accumulation}.safetensors"


REFERENCE = Case(1)
"""The single process that all cases are compared with."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What the ranks of one world size found."""

    refused: dict[Case, str]
    """Why a strategy cannot train the task, by case."""
    buffers: BufferReport | None
    """The buffers that training changes; None if there are none."""


@dataclass(frozen=True, slots=True)
class Differences:
    """The differences of all cases from one process."""

    weights: dict[Case, float]
    """Largest difference of a weight, by case that trained."""
    refused: dict[Case, str]
    """Why the other cases did not train."""
    buffers: BufferReport | None
    """The buffers that training changes; None if there are none."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of `verify`."""

    equal: bool
    """Whether every difference is within the tolerance, in fp32 or else in fp64."""
    refused: dict[StrategyName, str]
    """Why a strategy cannot train the task, by strategy."""


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
        refused: dict[Case, str] = {}
        document = self.document | {"precision": precision}
        for world in sorted({1} | {case.ranks for case in cases}):
            here = [case for case in cases if case.ranks == world]
            if world == 1:
                here = [REFERENCE, *here]
            settings = [(case, self._settings(case, document)) for case in here]
            found = run_ranks(world, _train_all, settings, self.task, str(self.folder))
            buffers = buffers or found.buffers
            refused |= found.refused
        weights = load_file(self.folder / REFERENCE.file)
        by_case = {
            case: largest_difference(weights, load_file(self.folder / case.file))
            for case in cases
            if case not in refused
        }
        return Differences(by_case, refused, buffers)

    def _settings(self, case: Case, document: Document) -> Document:
        """Return the settings of a case. fsdp2 has no static graph."""
        graph = dict(self.graph)
        if case.strategy == "fsdp2":
            graph.pop("static_graph", None)
        return merge(document, {"parallel": graph})


def verify(task: str, config: RunConfig, plan: Plan, *, optimizer_stated: bool) -> Verdict:
    """Train all cases and print a table of the largest differences.

    A case whose difference in fp32 is too large is repeated in fp64. In fp32 the last bit can
    decide on which side of a kink (of a ReLU or a maximum) a sample falls. After that, two correct
    computations diverge. In fp64 this is a billion times less likely, but a real fault
    remains.

    Args:
        task: Import path `package.module:function`.
        config: The user's settings. Settings that make the cases differ are removed.
        plan: What is compared.
        optimizer_stated: Whether the user set the optimizer.

    Raises:
        InputError: If the task cannot train in one process, or if a sample differs when it is read
            twice with the same seeds.
        ReportedError: If a rank reports an error.
    """
    config.batch_split(max(plan.ranks))  # Raises before any rank starts.
    cases = plan.cases()
    with tempfile.TemporaryDirectory(prefix="verify-") as folder:
        document = _comparable_settings(config, plan.steps)
        if not optimizer_stated:
            document = _without_unused_optimizer(task, document)
        random = run_ranks(1, _random_sample, task, document)
        runner = CaseRunner(task, document, _graph_settings(config), Path(folder))
        found = runner.differences(cases, "fp32")
        in_fp32 = found.weights
        repeated = [case for case in in_fp32 if in_fp32[case] > plan.tolerance]
        in_fp64 = runner.differences(repeated, "fp64").weights if repeated else {}
    print(f"{plan.steps} updates of {config.global_batch} samples, tolerance {plan.tolerance:g}")
    print("ranks  strategy  accumulation  largest difference")
    for case in cases:
        if case in found.refused:
            print(f"{_label(case, config)}  {'-':>18}  refused: {found.refused[case]}")
        else:
            row = _row(in_fp32[case], in_fp64.get(case), plan.tolerance)
            print(f"{_label(case, config)}  {row}")
    if found.buffers:
        print(found.buffers.sentence)
    if repeated and random:
        print(
            f"{random} depends on the seed, and each rank has its own: turn off random preparation"
            " of samples in the settings of the task to compare the ranks"
        )
    equal = all(difference <= plan.tolerance for difference in in_fp64.values())
    equal = equal and (found.buffers is None or found.buffers.valid)
    return Verdict(equal, {case.strategy: why for case, why in found.refused.items()})


def _label(case: Case, config: RunConfig) -> str:
    """Return the first columns of a row."""
    strategy = case.strategy if case.ranks > 1 else "-"
    split = config.model_copy(update={"micro_batch": _micro_batch(case, config.global_batch)})
    return f"{case.ranks:5}  {strategy:8}  {split.batch_split(case.ranks).accumulation:12}"


def _row(in_fp32: float, in_fp64: float | None, tolerance: float) -> str:
    if in_fp64 is None:
        return f"{in_fp32:18.1e}  ok"
    result = "ok" if in_fp64 <= tolerance else "TOO LARGE"
    return f"{in_fp32:18.1e}  {result}, {in_fp64:.1e} in fp64"


def _micro_batch(case: Case, global_batch: int) -> int:
    """Return the most samples in a forward pass of a rank."""
    return -(-global_batch // (case.ranks * case.accumulation))


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
) -> Findings:
    """Train this rank's part of the cases with their settings, one after another."""
    live: list[Document] = []
    refused: dict[Case, str] = {}
    for case, document in cases:
        try:
            if _train(case, ranks, task, document, Path(folder)):
                live.append(document)
        except InputError as error:
            # All ranks refuse a strategy alike, before the first update.
            if error.rank_specific or case == REFERENCE:
                raise
            refused[case] = str(error)
    if not live:
        return Findings(refused, None)
    document = merge(live[0], {"micro_batch": None, "max_steps": BUFFER_STEPS})
    with contextlib.redirect_stdout(io.StringIO()):
        return Findings(refused, compare_buffers(task, resolve(document), ranks))


def _train(case: Case, ranks: Ranks, task: str, document: Document, folder: Path) -> bool:
    """Train one case, save its weights, and return whether training changes buffers."""
    micro_batch = _micro_batch(case, document["global_batch"])
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
