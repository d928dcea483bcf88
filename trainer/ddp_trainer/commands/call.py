"""`call`: call a function with the settings of a run, as an init step of a job does."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from ddp_trainer.commands.arguments import stated_settings
from ddp_trainer.imports import import_function
from ddp_trainer.stop import StopFlag
from ddp_wire.contract import Env, ExitCode


def add_to(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add the parser of this command."""
    parser = commands.add_parser(
        "call",
        help="call a function with the settings of a run",
        description=(
            "Import a function and call it once, without ranks and without torch. Its argument is"
            " the settings as given, a dictionary. A step of spec.init with a task runs this."
        ),
    )
    parser.add_argument(
        "function", metavar="MODULE:FUNCTION", help="function to call, for example data:fetch"
    )
    parser.add_argument(
        "--config",
        metavar="JSON",
        help=f"settings as JSON text or as a file path; default: ${Env.CONFIG}",
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
        InputError: If a setting is wrong or there is no such function.
    """
    settings = stated_settings(options, rest, environ)
    import_function(options.function, "call")(settings)
    return ExitCode.OK
