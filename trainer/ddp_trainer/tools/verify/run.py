"""Make the same updates in one process and on several ranks, and compare the weights."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from ddp_trainer.config import RunConfig, StrategyName
from ddp_trainer.config.settings import Document, merge
from ddp_trainer.ranks.local_gang import run_ranks
from ddp_trainer.tools.verify.cases import Case, VerificationPlan
from ddp_trainer.tools.verify.comparison import CaseRunner
from ddp_trainer.tools.verify.training import find_random_sample, has_optimizer


@dataclass(frozen=True, slots=True)
class Verification:
    """Result of `verify`."""

    equal: bool
    """Whether every difference is within the tolerance, in fp32 or else in fp64."""
    refused: dict[StrategyName, str]
    """Reason why a strategy cannot train the task, by strategy."""


def verify(
    task: str, config: RunConfig, plan: VerificationPlan, *, optimizer_stated: bool
) -> Verification:
    """Train all cases and print a table of the largest differences.

    If a case differs too much in fp32, the function repeats it in fp64. In fp32 the last bit can
    decide on which side of a kink (of a ReLU or a maximum) a sample falls. After that, two correct
    computations diverge. In fp64 this is a billion times less likely, but a real error stays
    visible.

    Args:
        task: Import path `package.module:function`.
        config: The user's settings. The function removes settings that make the cases differ.
        plan: Cases to compare, and the tolerance.
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
        random = run_ranks(1, find_random_sample, task, document)
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
            f"{random} depends on the seed, and each rank has its own seed: turn off random"
            " preparation of samples in the settings of the task to compare the ranks"
        )
    equal = all(difference <= plan.tolerance for difference in in_fp64.values())
    equal = equal and (found.buffers is None or found.buffers.valid)
    return Verification(equal, {case.strategy: why for case, why in found.refused.items()})


def _label(case: Case, config: RunConfig) -> str:
    """Return the first columns of a row."""
    strategy = case.strategy if case.ranks > 1 else "-"
    split = config.model_copy(update={"micro_batch": case.micro_batch(config.global_batch)})
    return f"{case.ranks:5}  {strategy:8}  {split.batch_split(case.ranks).accumulation:12}"


def _row(in_fp32: float, in_fp64: float | None, tolerance: float) -> str:
    if in_fp64 is None:
        return f"{in_fp32:18.1e}  ok"
    result = "ok" if in_fp64 <= tolerance else "TOO LARGE"
    return f"{in_fp32:18.1e}  {result}, {in_fp64:.1e} in fp64"


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
    """Return the settings `find_unused_parameters` and `static_graph` that the user changed."""
    names = {"find_unused_parameters", "static_graph"} & config.parallel.changed()
    return {name: getattr(config.parallel, name) for name in sorted(names)}


def _without_unused_optimizer(task: str, document: Document) -> Document:
    """Return the settings without `optimizer` if the task has an optimizer of its own."""
    plain = {key: value for key, value in document.items() if key != "optimizer"}
    return plain if run_ranks(1, has_optimizer, task, plain) else document
