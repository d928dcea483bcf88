"""`converge`: compare the final losses of a task at several world sizes and global batches."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ddp_trainer.commands.arguments import add_run_to, numbers, task_and_config
from ddp_trainer.stop import StopFlag
from ddp_wire.contract import ExitCode

WITHIN = 0.05


def add_to(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add the parser of this command."""
    parser = commands.add_parser(
        "converge",
        help="compare the losses of a task at several world sizes and global batches",
        description=(
            "Train a task from the beginning at each world size and each global batch, on the same"
            " number of samples, and compare the losses. The settings epochs, max_steps, learning"
            " rate and warm-up apply to the first batch. For the other batches the learning rate"
            " is scaled by the square root of the batch (linearly with sgd), unless"
            " schedule.base_batch is set. Settings are given as for train."
        ),
    )
    parser.add_argument("path", nargs="?", metavar="MODULE:FUNCTION", help="same as --task")
    add_run_to(parser)
    parser.add_argument(
        "--ranks", default="1,2", help="world sizes, separated by commas; default: 1,2"
    )
    parser.add_argument(
        "--batches",
        help="global batches, separated by commas; default: global_batch and 4 times it",
    )
    parser.add_argument(
        "--within",
        type=float,
        default=WITHIN,
        help="largest relative distance of a loss from that of the fewest ranks with the same"
        f" batch; default: {WITHIN}",
    )
    parser.add_argument(
        "--worse",
        type=float,
        help="largest relative excess of a batch's loss over that of the first batch; default: not"
        " limited",
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
        FAILED if two losses differ by more than is permitted.

    Raises:
        InputError: If an option, the task or a setting is wrong.
    """
    options.task = options.path or options.task
    task, config = task_and_config("converge", options, rest, environ)
    world_sizes = sorted(numbers("converge", "ranks", options.ranks))
    batch = config.global_batch
    batches = [batch, 4 * batch]
    if options.batches:
        batches = numbers("converge", "batches", options.batches)
    # The ranks share the cores of the machine and are forks of this process. It must not start
    # threads, so it imports torch only after it has set OMP_NUM_THREADS.
    threads = max(1, len(os.sched_getaffinity(0)) // world_sizes[-1])
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    from ddp_trainer.ranks.local_gang import run_ranks  # noqa: PLC0415
    from ddp_trainer.tools.converge import (  # noqa: PLC0415
        Combination,
        Limits,
        compare,
        data_size,
        settings_for,
        table,
        train_once,
    )

    combinations = [Combination(ranks, size) for size in batches for ranks in world_sizes]
    for combination in combinations:
        settings_for(config, combination, batches[0], None)  # raises before any rank starts
    size = run_ranks(1, data_size, task, config.model_dump(mode="json", exclude_unset=True))
    documents = {
        combination: settings_for(config, combination, batches[0], size)
        for combination in combinations
    }
    outcomes = {}
    for combination, document in documents.items():
        ranks, batch = combination.ranks, combination.batch
        print(f"training {ranks} rank(s) with batch {batch}", file=sys.stderr, flush=True)
        outcomes[combination] = run_ranks(ranks, train_once, task, document)
    comparisons = compare(outcomes, Limits(options.within, options.worse))
    print(table(comparisons))
    return ExitCode.FAILED if any(row.problem for row in comparisons) else ExitCode.OK
