"""`check`: whether a task can train on its data as configured; no GPU, no other ranks."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from ddp_trainer.commands.arguments import add_run_to, task_and_config
from ddp_trainer.errors import InputError
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.stop import StopFlag
from ddp_wire.contract import ExitCode

SAMPLES = 1000


def add_to(commands: "argparse._SubParsersAction[Any]") -> None:
    """Adds the command's parser."""
    parser = commands.add_parser(
        "check",
        help="look at configuration and data, without training",
        description=(
            "Builds the task on the CPU, reads samples, joins them to batches and computes their"
            " loss. Ends with 2 and one sentence at the first thing that is wrong."
        ),
    )
    add_run_to(parser)
    parser.add_argument(
        "--samples", type=int, default=SAMPLES, help=f"most to read of each data set; {SAMPLES}"
    )
    parser.add_argument(
        "--world-size", type=int, default=1, help="ranks that the batch must divide among"
    )
    parser.set_defaults(run=run)


def run(
    options: argparse.Namespace,
    rest: Sequence[str],
    environ: Mapping[str, str],
    stop: StopFlag,  # noqa: ARG001 - as all commands
) -> ExitCode:
    """Runs the command.

    Raises:
        InputError: With the first thing that is wrong.
    """
    for name in ("samples", "world_size"):
        if getattr(options, name) < 1:
            flag = name.replace("_", "-")
            raise InputError(f"check: --{flag} must be 1 or more, not {getattr(options, name)}")
    path, config = task_and_config("check", options, rest, environ)
    config.batch_split(options.world_size)

    import torch  # noqa: PLC0415 - it takes longer than all of the above

    from ddp_trainer.data.loader import make_sampler  # noqa: PLC0415
    from ddp_trainer.observe.events import EventLog  # noqa: PLC0415
    from ddp_trainer.run.building import build_task  # noqa: PLC0415
    from ddp_trainer.tools.check import check_data  # noqa: PLC0415

    events = EventLog(Ranks(), 0)
    task, config = build_task(path, config, Ranks(), torch.device("cpu"))
    make_sampler(task, config)
    for name in ("train_data", "eval_data"):
        data = getattr(task, name)
        if data is not None:
            found = check_data(task, name, config, options.samples)
            size = len(data) if hasattr(data, "__len__") else None
            events.emit("check", data=name, size=size, **found.as_fields())
    return ExitCode.OK
