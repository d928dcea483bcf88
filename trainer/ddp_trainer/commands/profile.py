"""`profile`: asks a run that is going on for a trace of its next updates."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddp_trainer.errors import InputError
from ddp_trainer.stop import StopFlag
from ddp_wire.contract import Env, ExitCode

STEPS = 5


def add_to(commands: "argparse._SubParsersAction[Any]") -> None:
    """Adds the command's parser."""
    parser = commands.add_parser(
        "profile",
        help="ask a running run for a trace of some updates",
        description=(
            "Leaves a request in the run's directory. Rank 0 of the run finds it within seconds,"
            " profiles those updates, and writes a trace for Perfetto or Chrome beside its"
            " checkpoints, under profiles/."
        ),
    )
    parser.add_argument("directory", nargs="?", help=f"the run's; default ${Env.CHECKPOINT_DIR}")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"updates; default {STEPS}")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first; default now")
    parser.set_defaults(run=run)


def run(
    options: argparse.Namespace,
    rest: Sequence[str],
    environ: Mapping[str, str],
    stop: StopFlag,  # noqa: ARG001 - as all commands
) -> ExitCode:
    """Runs the command.

    Raises:
        InputError: If there is no such run, or the number of updates is out of range.
    """
    if rest:
        raise InputError(f"profile: unknown argument {rest[0]}")
    directory = options.directory or environ.get(Env.CHECKPOINT_DIR)
    if not directory:
        raise InputError(f"profile: state the run's directory, or set {Env.CHECKPOINT_DIR}")
    if not (Path(directory) / "config.json").is_file():
        raise InputError(f"profile: {directory} is not the directory of a run")

    from ddp_trainer.checkpoint.writer import replace_json  # noqa: PLC0415 - imports torch
    from ddp_trainer.observe.trace import FOLDER, MOST_STEPS, REQUEST  # noqa: PLC0415

    if not 1 <= options.steps <= MOST_STEPS or options.first < 0:
        raise InputError(f"profile: --steps must be from 1 to {MOST_STEPS}, and --from 0 or more")
    replace_json(Path(directory) / REQUEST, {"from": options.first, "steps": options.steps})
    print(f"asked; the trace will be in {Path(directory) / FOLDER}")
    return ExitCode.OK
