"""`verify`: check that one process and several ranks end with the same weights."""

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ddp_trainer.config.settings import Document, merge, read_document, read_overrides, resolve
from ddp_trainer.errors import InputError
from ddp_trainer.stop import StopFlag
from ddp_wire.contract import Env, ExitCode

STEPS = 20
"""Default number of updates."""
TOLERANCE = 1e-6
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
        help="compare the weights of one process with those of 2 and 4 ranks",
        description=(
            "Train a task for some updates in one process and on 2 and 4 ranks, with each strategy"
            " and with accumulation, and compare the weights. Exit with code 1 if a difference is"
            " above the tolerance. The precision is fp32, and the device is the CPU by default."
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
        InputError: If an option, the task or a setting is wrong.
    """
    task = options.path or options.task or environ.get(Env.TASK)
    if not task:
        raise InputError(f"verify: set --task package.module:function or the variable {Env.TASK}")
    if options.steps < 1:
        raise InputError(f"verify: --steps must be 1 or more, not {options.steps}")
    stated = read_document(options.config) if options.config else {}
    stated = merge(stated, read_overrides(rest))
    config = resolve(merge(DEFAULTS, stated))
    # The ranks share the cores of the machine and are forks of this process. It must not start
    # threads, so it imports torch only after it has set OMP_NUM_THREADS.
    os.environ["OMP_NUM_THREADS"] = "1"
    from ddp_trainer.tools.verify import verify  # noqa: PLC0415

    optimizer_stated = "optimizer" in stated
    equal = verify(
        task, config, options.steps, options.tolerance, optimizer_stated=optimizer_stated
    )
    return ExitCode.OK if equal else ExitCode.FAILED
