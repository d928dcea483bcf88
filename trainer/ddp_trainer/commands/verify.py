"""`verify`: check that one process and several ranks end with the same weights."""

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ddp_trainer.commands.arguments import check_positive, numbers
from ddp_trainer.config import StrategyName
from ddp_trainer.config.settings import Document, merge, read_document, read_overrides, resolve
from ddp_trainer.errors import InputError
from ddp_trainer.stop import StopFlag
from ddp_wire.contract import Env, ExitCode

STEPS = 20
"""Default number of updates per run."""
TOLERANCE = 1e-6
RANKS = "2,4"
"""Default world sizes."""
STRATEGIES: tuple[StrategyName, ...] = ("ddp", "zero1", "fsdp2")
DEFAULTS: Document = {
    "device": "cpu",
    # Adam divides by the size of the gradient. The last bit of a tiny gradient would then count as
    # much as a large gradient, and the comparison would show only noise.
    "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
}


def add_to(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add the parser of this command."""
    parser = commands.add_parser(
        "verify",
        help="compare the weights of one process with those of several ranks",
        description=(
            "Train a task for some updates in one process and on several ranks, with each strategy"
            " and with accumulation, and compare the weights. Exit with code 1 if a difference is"
            " above the tolerance. A strategy that cannot train the task is listed with the reason."
            " The exit code is then 2 if --strategies or parallel.strategy states it. The precision"
            " is fp32, and the device is the CPU by default."
            " Dropout is off and BatchNorm is in evaluation mode, because both depend on which"
            " rank has which sample. Settings are given as for train."
        ),
    )
    parser.add_argument("path", nargs="?", metavar="MODULE:FUNCTION", help="same as --task")
    parser.add_argument(
        "--task",
        metavar="MODULE:FUNCTION",
        help=f"function that builds the task; default: ${Env.TASK}",
    )
    parser.add_argument("--config", metavar="JSON", help="settings as JSON text or as a file path")
    parser.add_argument(
        "--steps", type=int, default=STEPS, help=f"number of updates; default: {STEPS}"
    )
    parser.add_argument(
        "--ranks", default=RANKS, help=f"world sizes, separated by commas; default: {RANKS}"
    )
    parser.add_argument(
        "--strategies", help=f"strategies, separated by commas; default: {','.join(STRATEGIES)}"
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        default=TOLERANCE,
        help=f"largest permitted difference of a weight; default: {TOLERANCE}",
    )
    parser.set_defaults(run=run)


def run(
    options: argparse.Namespace,
    rest: Sequence[str],
    environ: Mapping[str, str],
    stop: StopFlag,  # noqa: ARG001 - torch's launcher handles signals
) -> ExitCode:
    """Run the command.

    Args:
        options: Parsed options.
        rest: Arguments that the parser does not know, which are settings.
        environ: Environment of the process.
        stop: Not used, because torch's launcher handles signals.

    Returns:
        FAILED if any difference is too large.

    Raises:
        InputError: If an option, the task or a setting is wrong, or if a stated strategy cannot
            train the task.
    """
    task = options.path or options.task or environ.get(Env.TASK)
    if not task:
        raise InputError(f"verify: set --task package.module:function or the variable {Env.TASK}")
    check_positive("verify", options, "steps")
    stated = read_document(options.config) if options.config else {}
    stated = merge(stated, read_overrides(rest))
    config = resolve(merge(DEFAULTS, stated))
    strategies = _strategies(options.strategies)
    ranks = tuple(sorted(numbers("verify", "ranks", options.ranks, above=1)))
    # The ranks share the cores of the machine and are forks of this process. It must not start
    # threads, so it imports torch only after it has set OMP_NUM_THREADS.
    os.environ["OMP_NUM_THREADS"] = "1"
    from ddp_trainer.tools.verify.cases import VerificationPlan  # noqa: PLC0415
    from ddp_trainer.tools.verify.run import verify  # noqa: PLC0415

    plan = VerificationPlan(options.steps, options.tolerance, ranks, strategies or STRATEGIES)
    verdict = verify(task, config, plan, optimizer_stated="optimizer" in stated)
    if not verdict.equal:
        return ExitCode.FAILED
    wanted = {*strategies, *filter(None, [stated.get("parallel", {}).get("strategy")])}
    for name in wanted & verdict.refused.keys():
        raise InputError(verdict.refused[name])
    return ExitCode.OK


def _strategies(text: str | None) -> tuple[StrategyName, ...]:
    """Return the strategies of a comma-separated list, in a fixed order; empty without a list.

    Raises:
        InputError: If the text is not a list of strategies.
    """
    if text is None:
        return ()
    names = {part.strip() for part in text.split(",")}
    if not names <= {*STRATEGIES}:
        raise InputError(
            f"verify: --strategies must be from {', '.join(STRATEGIES)}, separated by commas, not"
            f' "{text}"'
        )
    return tuple(name for name in STRATEGIES if name in names)
