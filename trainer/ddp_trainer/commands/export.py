"""`export`: write a trained model to files that other programs load."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddp_trainer.commands.arguments import add_run_to, stated_settings
from ddp_trainer.config.settings import merge, resolve
from ddp_trainer.errors import InputError
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.stop import StopFlag
from ddp_wire.contract import Env, ExitCode

FORMATS = ("safetensors", "torch", "onnx")


def add_to(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add the parser of this command."""
    parser = commands.add_parser(
        "export",
        help="write a trained model for other programs",
        description=(
            "Load the newest complete checkpoint, write the model in each format together with a"
            " metadata.json, and compare the output of each file with that of the model. Exit with"
            " code 1 if one differs. Task and task settings are those of the checkpoint, unless"
            " stated otherwise."
        ),
    )
    add_run_to(parser)
    parser.add_argument(
        "--checkpoint", help="checkpoint or run directory; default: checkpoint.directory"
    )
    parser.add_argument("--output", required=True, help="folder to create; must not exist")
    parser.add_argument(
        "--formats",
        default="safetensors,torch",
        help="any of safetensors, torch (.pt2) and onnx, separated by commas; default:"
        " safetensors,torch",
    )
    parser.add_argument(
        "--weights",
        choices=("average", "last"),
        default="average",
        help="the moving average if the checkpoint has one, or the last weights; default: average",
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
        FAILED if a file computes other outputs than the model.

    Raises:
        InputError: If no complete checkpoint exists, or an option, task or setting is wrong.
    """
    document = stated_settings(options, rest, environ)
    formats = list(dict.fromkeys(options.formats.split(",")))
    for name in formats:
        if name not in FORMATS:
            raise InputError(f'export: --formats must be from {", ".join(FORMATS)}, not "{name}"')
    source = options.checkpoint or resolve(document).checkpoint.directory
    if not source:
        raise InputError("export: set --checkpoint or --checkpoint.directory")

    import torch  # noqa: PLC0415 - slow to import

    from ddp_trainer.checkpoint.reading import kept  # noqa: PLC0415
    from ddp_trainer.observe.events import EventLog, prints_json  # noqa: PLC0415
    from ddp_trainer.run.building import build_task  # noqa: PLC0415
    from ddp_trainer.tools.export.run import export  # noqa: PLC0415
    from ddp_trainer.tools.export.source import (  # noqa: PLC0415
        checkpoint_metadata,
        find_checkpoint,
        load_weights,
    )
    from ddp_trainer.tools.export.tracing import trace  # noqa: PLC0415

    checkpoint = find_checkpoint(Path(source))
    saved = checkpoint_metadata(checkpoint)
    path = options.task or environ.get(Env.TASK) or saved["task"]
    if path == saved["task"]:
        document = merge({"task": saved["config"]["task"]}, document)
    task, _ = build_task(path, resolve(document), Ranks(), torch.device("cpu"))
    averaged = options.weights == "average"
    with kept(checkpoint):
        averaged = load_weights(task.model, checkpoint, averaged=averaged)
    metadata = {**saved, "averaged": averaged}
    folder = Path(options.output)
    result = export(trace(task), formats, folder, metadata)
    events = EventLog(Ranks(), 0, as_json=prints_json(environ))
    for file, difference in result.differences.items():
        failed = file in result.failed
        events.emit(
            "export", file=str(folder / file), largest_difference=difference, same=not failed
        )
    return ExitCode.FAILED if result.failed else ExitCode.OK
