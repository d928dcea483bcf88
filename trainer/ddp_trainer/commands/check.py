"""`check`: check that a task can train on its data, without a GPU or other ranks."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from ddp_trainer.commands.arguments import add_run_to, check_positive, task_and_config
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.stop import StopFlag
from ddp_wire.contract import ExitCode

SAMPLES = 1000
"""Default maximum number of samples per data set."""


def add_to(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add the parser of this command."""
    parser = commands.add_parser(
        "check",
        help="check settings and data without training",
        description=(
            "Build the task on the CPU, read samples, collate them and compute their loss. At the"
            " first mistake, print one sentence and exit with code 2. Settings are given as for"
            " train."
        ),
    )
    add_run_to(parser)
    parser.add_argument(
        "--samples",
        type=int,
        default=SAMPLES,
        help=f"samples to read of each data set; default: {SAMPLES}",
    )
    parser.add_argument(
        "--world-size",
        type=int,
        default=1,
        help="number of ranks that will train; default: 1",
    )
    parser.set_defaults(run=run)


def run(
    options: argparse.Namespace,
    rest: Sequence[str],
    environ: Mapping[str, str],
    stop: StopFlag,  # noqa: ARG001 - part of the interface of commands
) -> ExitCode:
    """Run the command.

    Raises:
        InputError: If an option, a setting or a sample is wrong. The message names the first wrong
            one.
    """
    check_positive("check", options, "samples", "world_size")
    path, config = task_and_config("check", options, rest, environ)
    config.batch_split(options.world_size)

    # They import torch, slowly.
    from ddp_trainer.observe.events import EventLog, prints_json  # noqa: PLC0415
    from ddp_trainer.tools.check.run import check_run  # noqa: PLC0415

    events = EventLog(Ranks(), 0, as_json=prints_json(environ, config.log.format))
    check_run(path, config, options.samples, options.world_size, events.emit)
    ranks = "1 rank" if options.world_size == 1 else f"{options.world_size} ranks"
    events.emit("ok", message=f"{path} can train on {ranks} with these settings")
    return ExitCode.OK
