"""`profile`: request a trace of the next updates of a training run."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddp_trainer.errors import InputError
from ddp_trainer.stop import StopFlag
from ddp_wire.contract import PROFILE_REQUEST, PROFILES, Env, ExitCode
from ddp_wire.inspections import MOST_PROFILED_STEPS

STEPS = 5
"""Default number of updates in a trace."""


def add_to(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add the parser of this command."""
    parser = commands.add_parser(
        "profile",
        help="request a trace of some updates of a run in progress",
        description=(
            "Write a request to the run's directory. Rank 0 of the run finds it within seconds,"
            " profiles the updates and writes a trace for Perfetto or Chrome to the folder"
            " profiles in the same directory."
        ),
    )
    parser.add_argument(
        "directory", nargs="?", help=f"directory of the run; default: ${Env.CHECKPOINT_DIR}"
    )
    parser.add_argument(
        "--steps", type=int, default=STEPS, help=f"updates to trace; default: {STEPS}"
    )
    parser.add_argument(
        "--from",
        type=int,
        default=0,
        dest="first",
        help="first update to trace; default: the next one",
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
        InputError: If the directory is not a run's directory, or an option is out of range.
    """
    if rest:
        raise InputError(f"profile: unknown argument {rest[0]}")
    directory = options.directory or environ.get(Env.CHECKPOINT_DIR)
    if not directory:
        raise InputError(
            f"profile: name the run's directory or set the variable {Env.CHECKPOINT_DIR}"
        )
    if not (Path(directory) / "config.json").is_file():
        raise InputError(
            f"profile: {directory} must be the directory of a run, with its config.json"
        )

    from ddp_trainer.checkpoint.store.directory import replace_json  # noqa: PLC0415

    if not 1 <= options.steps <= MOST_PROFILED_STEPS or options.first < 0:
        raise InputError(
            f"profile: --steps must be from 1 to {MOST_PROFILED_STEPS}, and --from 0 or more"
        )
    replace_json(Path(directory) / PROFILE_REQUEST, {"from": options.first, "steps": options.steps})
    print(f"requested; rank 0 will write the trace to {Path(directory) / PROFILES}")
    return ExitCode.OK
