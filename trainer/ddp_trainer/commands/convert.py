"""`convert`: convert weights between safetensors, torch.save, torch's DCP and checkpoints."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddp_trainer.errors import InputError
from ddp_trainer.stop import StopFlag
from ddp_wire.contract import ExitCode

TARGETS = ("safetensors", "torch", "dcp", "checkpoint")


def add_to(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add the parser of this command."""
    parser = commands.add_parser(
        "convert",
        help="convert weights between file formats",
        description=(
            "Convert weights between a safetensors file, a file of torch.save, a folder of"
            " torch.distributed.checkpoint (DCP) and a checkpoint, bit by bit. Code in the source"
            " is never run."
        ),
    )
    parser.add_argument(
        "source",
        help="file, folder, checkpoint or run's directory, or its address, such as s3://bucket/run",
    )
    parser.add_argument("destination", help="file or folder to create; must not exist")
    parser.add_argument(
        "--to",
        choices=TARGETS,
        help="format to write; default: by the suffix of the destination (.safetensors, .pt, .pth,"
        " .bin)",
    )
    parser.add_argument(
        "--key",
        help="entry of a nested state with the weights; default: the state itself, or its only"
        " entry of model, state_dict and model_state_dict",
    )
    parser.add_argument(
        "--weights",
        choices=("last", "average"),
        default="last",
        help="the last weights of a checkpoint, or their moving average; default: last",
    )
    parser.set_defaults(run=run)


def run(
    options: argparse.Namespace,
    rest: Sequence[str],
    environ: Mapping[str, str],  # noqa: ARG001 - part of the interface of commands
    stop: StopFlag,  # noqa: ARG001 - likewise
) -> ExitCode:
    """Run the command.

    Raises:
        InputError: If the source holds no weights, or the destination exists or has no format.
        VolumeError: If the volume fails.
    """
    if rest:
        raise InputError(f"convert: unknown argument {rest[0]}")
    destination = Path(options.destination)

    from ddp_trainer.checkpoint.remote.fetching import local_copy  # noqa: PLC0415 - imports pydantic
    from ddp_trainer.tools.conversion import FORMATS, convert  # noqa: PLC0415 - it imports torch

    target = options.to or FORMATS.get(destination.suffix)
    if target is None:
        raise InputError(
            f"convert: set --to, because the suffix of {destination} names no format"
            f" ({', '.join(FORMATS)})"
        )
    averaged = options.weights == "average"
    with local_copy(options.source, command="convert") as source:
        count = convert(source, destination, target, key=options.key, averaged=averaged)
    print(f"{destination}: {count} tensors as {target}")
    return ExitCode.OK
