"""`export`: a trained model as files that other programs load."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddp_trainer.commands.arguments import add_run_to, task_and_config
from ddp_trainer.errors import InputError
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.stop import StopFlag
from ddp_wire.contract import ExitCode

FORMATS = ("safetensors", "torch", "onnx")


def add_to(commands: "argparse._SubParsersAction[Any]") -> None:
    """Adds the command's parser."""
    parser = commands.add_parser(
        "export",
        help="write a trained model for other programs",
        description=(
            "Loads the newest whole checkpoint, writes the model in each format with a"
            " metadata.json, and compares what each file computes with the model itself. Ends with"
            " 1 if any differs."
        ),
    )
    add_run_to(parser)
    parser.add_argument(
        "--checkpoint", help="a checkpoint or a run's directory; default checkpoint.directory"
    )
    parser.add_argument("--output", required=True, help="a folder, which must not exist")
    parser.add_argument(
        "--formats", default="safetensors,torch", help="of safetensors, torch (.pt2) and onnx"
    )
    parser.add_argument(
        "--weights",
        choices=("average", "last"),
        default="average",
        help="the moving average where the checkpoint has one, or the last weights",
    )
    parser.set_defaults(run=run)


def run(
    options: argparse.Namespace,
    rest: Sequence[str],
    environ: Mapping[str, str],
    stop: StopFlag,  # noqa: ARG001 - as all commands
) -> ExitCode:
    """Runs the command.

    Returns:
        FAILED if a file computes something else than the model.

    Raises:
        InputError: If there is nothing to export, or nowhere to.
    """
    path, config = task_and_config("export", options, rest, environ)
    formats = list(dict.fromkeys(options.formats.split(",")))
    for name in formats:
        if name not in FORMATS:
            raise InputError(f'export: "{name}" is not one of {", ".join(FORMATS)}')
    source = options.checkpoint or config.checkpoint.directory
    if not source:
        raise InputError("export: state --checkpoint, or checkpoint.directory")

    import torch  # noqa: PLC0415 - it takes longer than all of the above

    from ddp_trainer.observe.events import EventLog  # noqa: PLC0415
    from ddp_trainer.run.building import build_task  # noqa: PLC0415
    from ddp_trainer.tools import export  # noqa: PLC0415

    checkpoint = export.find_checkpoint(Path(source))
    task, _ = build_task(path, config, Ranks(), torch.device("cpu"))
    averaged = options.weights == "average"
    averaged = export.load_weights(task.model, checkpoint, averaged=averaged)
    metadata = {**export.origin(checkpoint), "averaged": averaged}
    folder = Path(options.output)
    found = export.export(export.trace(task), formats, folder, metadata)
    events = EventLog(Ranks(), 0)
    for file, difference in found.differences.items():
        failed = file in found.failed
        events.emit(
            "export", file=str(folder / file), largest_difference=difference, same=not failed
        )
    return ExitCode.FAILED if found.failed else ExitCode.OK
