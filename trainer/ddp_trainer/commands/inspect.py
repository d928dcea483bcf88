"""`inspect`: show the checkpoints of a run, and which of them a start would use."""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddp_trainer.errors import InputError
from ddp_trainer.stop import StopFlag
from ddp_wire.contract import Env, ExitCode

if TYPE_CHECKING:
    from ddp_trainer.tools.inspection import Found, Inspection

_HEAD = ("STEP", "ATTEMPT", "STATE", "SIZE", "TENSORS", "WRITTEN BY", "CONFIG", "NAME")
_THOUSAND = 1000


def add_to(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add the parser of this command."""
    parser = commands.add_parser(
        "inspect",
        help="show the checkpoints of a run, and which one a start would use",
        description=(
            "Check each checkpoint in a run's directory as a start does, and change nothing. Exit"
            " with code 1 if one is damaged or has an unknown format."
        ),
    )
    parser.add_argument(
        "directory",
        nargs="?",
        help=f"directory or address of the run, or a checkpoint; default: ${Env.CHECKPOINT_DIR}",
    )
    parser.add_argument(
        "--quick", action="store_true", help="compare sizes only, and read no checksums"
    )
    parser.add_argument(
        "-o", "--output", choices=("table", "json"), default="table", help="form of the output"
    )
    parser.set_defaults(run=run)


def run(
    options: argparse.Namespace,
    rest: Sequence[str],
    environ: Mapping[str, str],
    stop: StopFlag,  # noqa: ARG001 - part of the interface of commands
) -> ExitCode:
    """Run the command.

    Returns:
        FAILED if a checkpoint that a start may read is damaged or has an unknown format.

    Raises:
        InputError: If the directory is not a run's directory or a checkpoint.
        VolumeError: If the volume fails.
    """
    if rest:
        raise InputError(f"inspect: unknown argument {rest[0]}")
    directory = options.directory or environ.get(Env.CHECKPOINT_DIR)
    if not directory:
        raise InputError(
            f"inspect: name the run's directory or set the variable {Env.CHECKPOINT_DIR}"
        )

    from ddp_trainer.config.addresses import is_url  # noqa: PLC0415 - it imports pydantic
    from ddp_trainer.tools.inspection import inspect, inspect_url  # noqa: PLC0415 - likewise

    checksums = not options.quick
    if is_url(directory):
        found = inspect_url(directory, checksums=checksums)
    else:
        found = inspect(Path(directory), checksums=checksums)
    if options.output == "json":
        print(json.dumps(asdict(found) | {"sound": found.sound}, indent=1))
    else:
        print("\n".join(lines_of(found)))
    return ExitCode.OK if found.sound else ExitCode.FAILED


def lines_of(found: "Inspection") -> list[str]:
    """Return the inspection as a table, with a line per reason and about a start."""
    rows = [_HEAD, *map(_row, found.checkpoints)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    reasons = [f"{one.name}: {one.reason}" for one in found.checkpoints if one.reason]
    aside = [f"{name}: {_size(size)}, of a run that started over"
             for name, size in found.set_aside.items()]  # fmt: skip
    end = [found.outcome] if found.outcome else []
    return [*(table if found.checkpoints else []), *reasons, *aside, *end]


def _row(one: "Found") -> tuple[str, ...]:
    written = ""
    if one.world_size is not None:
        ranks = f"{one.world_size} rank{'' if one.world_size == 1 else 's'}"
        written = ", ".join(filter(None, [one.strategy, ranks, one.task]))
    numbers = ("" if value is None else str(value) for value in (one.step, one.attempt))
    tensors = "" if one.tensors is None else str(one.tensors)
    if one.has_average:
        tensors += " + average"
    return (*numbers, one.state, _size(one.bytes), tensors, written, one.config_digest or "",
            one.name)  # fmt: skip


def _size(number: int) -> str:
    """Return a number of bytes with a unit."""
    value, unit = float(number), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < _THOUSAND:
            break
        value, unit = value / _THOUSAND, larger
    return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
