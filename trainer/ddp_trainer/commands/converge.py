"""`converge`: whether a task learns alike at other numbers of ranks and other batches."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ddp_trainer.commands.arguments import add_run_to, task_and_config
from ddp_trainer.errors import InputError
from ddp_trainer.stop import StopFlag
from ddp_wire.contract import ExitCode

WITHIN = 0.05


def add_to(commands: "argparse._SubParsersAction[Any]") -> None:
    """Adds the command's parser."""
    parser = commands.add_parser(
        "converge",
        help="compare what a task learns at several numbers of ranks and batches",
        description=(
            "Trains a task from the beginning at each number of ranks and each batch, on the same"
            " number of samples, and compares the losses. Epochs and max_steps, learning rate and"
            " warm-up are meant for the first batch; for the others the learning rate follows by"
            " the square root of the batch (linearly with sgd), unless schedule.base_batch is"
            " stated. Settings of the run as for train."
        ),
    )
    parser.add_argument("path", nargs="?", help="the task, as package.module:function")
    add_run_to(parser)
    parser.add_argument("--ranks", default="1,2", help="world sizes, with commas; default 1,2")
    parser.add_argument("--batches", help="global batches; default: global_batch and 4 times it")
    parser.add_argument(
        "--within",
        type=float,
        default=WITHIN,
        help=f"largest distance of a loss from that of the fewest ranks; default {WITHIN}",
    )
    parser.add_argument("--worse", type=float, help="how far a batch's loss may be above the first")
    parser.set_defaults(run=run)


def run(
    options: argparse.Namespace,
    rest: Sequence[str],
    environ: Mapping[str, str],
    stop: StopFlag,  # noqa: ARG001 - it ends with its ranks
) -> ExitCode:
    """Runs the command.

    Args:
        options: Parsed.
        rest: The settings.
        environ: The process's environment.
        stop: Raised by signals.

    Returns:
        FAILED if a loss is further from another than is allowed.

    Raises:
        InputError: If what was asked for cannot be trained.
    """
    options.task = options.path or options.task
    task, config = task_and_config("converge", options, rest, environ)
    world_sizes = sorted(_numbers("ranks", options.ranks))
    batch = config.global_batch
    batches = _numbers("batches", options.batches) if options.batches else [batch, 4 * batch]
    # The ranks share the machine's cores, and start as forks of this process: it must stay
    # without threads of its own, and it imports torch only now.
    threads = max(1, len(os.sched_getaffinity(0)) // world_sizes[-1])
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    from ddp_trainer.ranks.local_gang import run_ranks  # noqa: PLC0415
    from ddp_trainer.tools.converge import (  # noqa: PLC0415
        Limits,
        Way,
        data_size,
        judge,
        settings_of,
        table,
        train_once,
    )

    ways = [Way(ranks, size) for size in batches for ranks in world_sizes]
    for way in ways:
        settings_of(config, way, batches[0], None)  # refused before anything is built
    size = run_ranks(1, data_size, task, config.model_dump(mode="json", exclude_unset=True))
    documents = {way: settings_of(config, way, batches[0], size) for way in ways}
    outcomes = {}
    for way, document in documents.items():
        print(f"training {way.ranks} rank(s) with batch {way.batch}", file=sys.stderr, flush=True)
        outcomes[way] = run_ranks(way.ranks, train_once, task, document)
    rows = judge(outcomes, Limits(options.within, options.worse))
    print(table(rows))
    return ExitCode.FAILED if any(row.fault for row in rows) else ExitCode.OK


def _numbers(name: str, text: str) -> list[int]:
    """Numbers in the order in which they were stated, each once.

    Raises:
        InputError: If it is not a list of numbers.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise InputError(f'converge: --{name} must be numbers from 1 up with commas, not "{text}"')
    return list(dict.fromkeys(map(int, parts)))
