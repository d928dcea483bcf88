"""Parse arguments that several commands share: a task, the settings of a run, and numbers."""

import argparse
from collections.abc import Mapping, Sequence

from ddp_trainer.config import RunConfig
from ddp_trainer.config.settings import (
    Document,
    environment_document,
    merge,
    read_document,
    read_overrides,
    resolve,
)
from ddp_trainer.errors import InputError
from ddp_wire.contract import Env


def add_run_to(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for a task and its settings."""
    parser.add_argument(
        "--task",
        metavar="MODULE:FUNCTION",
        help=f"function that builds the task; default: ${Env.TASK}",
    )
    parser.add_argument(
        "--config",
        metavar="JSON",
        help=f"settings as JSON text or as a file path; default: ${Env.CONFIG}",
    )


def task_and_config(
    command: str, options: argparse.Namespace, rest: Sequence[str], environ: Mapping[str, str]
) -> tuple[str, RunConfig]:
    """Return the task's import path and the run's settings, from arguments and environment.

    Args:
        command: Name of the command, for error messages.
        options: Parsed options.
        rest: Arguments that the parser does not know, which are settings.
        environ: Environment of the process.

    Raises:
        InputError: If the task is missing or a setting is wrong.
    """
    task = options.task or environ.get(Env.TASK)
    if not task:
        raise InputError(
            f"{command}: set --task package.module:function or the variable {Env.TASK}"
        )
    return task, resolve(stated_settings(options, rest, environ))


def stated_settings(
    options: argparse.Namespace, rest: Sequence[str], environ: Mapping[str, str]
) -> Document:
    """Return the unchecked settings from environment, `--config` and arguments.

    Args:
        options: Parsed options.
        rest: Arguments that the parser does not know, which are settings.
        environ: Environment of the process.

    Raises:
        InputError: If an argument is not a setting, or the document cannot be read.
    """
    document = environment_document(environ)
    source = options.config or environ.get(Env.CONFIG)
    if source:
        document = merge(document, read_document(source))
    return merge(document, read_overrides(rest))


def check_positive(command: str, options: argparse.Namespace, *names: str) -> None:
    """Check that options are 1 or more.

    Args:
        command: Name of the command, for the message.
        options: Parsed options.
        names: Names of the options, as attributes.

    Raises:
        InputError: If an option is less than 1.
    """
    for name in names:
        if (value := getattr(options, name)) < 1:
            flag = name.replace("_", "-")
            raise InputError(f"{command}: --{flag} must be 1 or more, not {value}")


def numbers(command: str, option: str, text: str, above: int = 0) -> list[int]:
    """Return the numbers of a comma-separated list in their order, without repetitions.

    Args:
        command: Name of the command, for the message.
        option: Name of the option.
        text: Numbers, separated by commas.
        above: Exclusive lower bound of the numbers.

    Raises:
        InputError: If the text is not a list of numbers above the bound.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > above for part in parts):
        raise InputError(
            f"{command}: --{option} must be integers above {above}, separated by commas, not"
            f' "{text}"'
        )
    return list(dict.fromkeys(map(int, parts)))
