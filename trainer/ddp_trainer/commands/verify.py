"""`verify`: whether one process and several ranks end with the same weights."""

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ddp_trainer.config.settings import Document, merge, read_document, read_overrides, resolve
from ddp_trainer.errors import InputError
from ddp_trainer.stop import StopFlag
from ddp_wire.contract import Env, ExitCode

STEPS = 20
TOLERANCE = 1e-6
DEFAULTS: Document = {
    "device": "cpu",
    # Adam divides by the gradient's size, so a last bit of a tiny gradient would weigh as much as a
    # large one: what is compared then is noise.
    "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
}


def add_to(commands: "argparse._SubParsersAction[Any]") -> None:
    """Adds the command's parser."""
    parser = commands.add_parser(
        "verify",
        help="compare the weights of one process with those of 2 and 4 ranks",
        description=(
            "Trains a task for some updates in one process and on 2 and 4 ranks, with each strategy"
            " and with accumulation, and compares the weights. In fp32, on the CPU unless the"
            " settings say otherwise, with dropout off and BatchNorm as in evaluation, because"
            " these depend on who computes what."
        ),
    )
    parser.add_argument("path", nargs="?", help="the task, as package.module:function")
    parser.add_argument("--task", help=f"the same; default ${Env.TASK}")
    parser.add_argument("--config", help="JSON text or the path of a file")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"updates; default {STEPS}")
    parser.add_argument(
        "--tolerance",
        type=float,
        default=TOLERANCE,
        help=f"largest difference of a weight; default {TOLERANCE}",
    )
    parser.set_defaults(run=run)


def run(
    options: argparse.Namespace,
    rest: Sequence[str],
    environ: Mapping[str, str],
    stop: StopFlag,  # noqa: ARG001
) -> ExitCode:
    """Runs the command.

    Args:
        options: Parsed.
        rest: The settings.
        environ: The process's environment.
        stop: Raised by signals; it ends with its ranks.

    Returns:
        FAILED if any difference is too large.

    Raises:
        InputError: If the task or its settings cannot be verified.
    """
    task = options.path or options.task or environ.get(Env.TASK)
    if not task:
        raise InputError(f"verify: state package.module:function, or set {Env.TASK}")
    if options.steps < 1:
        raise InputError(f"verify: --steps must be 1 or more, not {options.steps}")
    stated = read_document(options.config) if options.config else {}
    stated = merge(stated, read_overrides(rest))
    config = resolve(merge(DEFAULTS, stated))
    # The ranks share the machine's cores, and start as forks of this process: it must stay
    # without threads of its own, and it imports torch only now.
    os.environ["OMP_NUM_THREADS"] = "1"
    from ddp_trainer.tools.verify import verify  # noqa: PLC0415

    chosen = "optimizer" in stated
    alike = verify(task, config, options.steps, options.tolerance, rule_stated=chosen)
    return ExitCode.OK if alike else ExitCode.FAILED
