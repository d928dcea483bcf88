"""What most commands ask for: a task and the settings of a run."""

import argparse
from collections.abc import Mapping, Sequence

from ddp_trainer.config import RunConfig
from ddp_trainer.config.settings import (
    environment_document,
    merge,
    read_document,
    read_overrides,
    resolve,
)
from ddp_trainer.errors import InputError
from ddp_wire.contract import Env


def add_run_to(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments for a task and its configuration."""
    parser.add_argument("--task", help=f"package.module:function; default ${Env.TASK}")
    parser.add_argument("--config", help=f"JSON text or the path of a file; default ${Env.CONFIG}")


def task_and_config(
    command: str, options: argparse.Namespace, rest: Sequence[str], environ: Mapping[str, str]
) -> tuple[str, RunConfig]:
    """The task's import path and the run's settings, from arguments and environment.

    Args:
        command: Its name, for the sentence.
        options: Parsed.
        rest: Arguments that the parser does not know: the settings.
        environ: The process's environment.

    Raises:
        InputError: If no task is stated or a setting is wrong.
    """
    task = options.task or environ.get(Env.TASK)
    if not task:
        raise InputError(f"{command}: state --task package.module:function, or set {Env.TASK}")
    document = environment_document(environ)
    source = options.config or environ.get(Env.CONFIG)
    if source:
        document = merge(document, read_document(source))
    return task, resolve(merge(document, read_overrides(rest)))
