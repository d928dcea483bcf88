"""`train`: trains a task, from the beginning or from its newest checkpoint."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddp_agent.contract import Env, ExitCode, RankPhase
from ddp_trainer.environment import Ranks, integer
from ddp_trainer.errors import InputError
from ddp_trainer.observe.beats import BeatWriter
from ddp_trainer.settings import (
    describe,
    environment_document,
    merge,
    read_document,
    read_overrides,
    resolve,
)
from ddp_trainer.stop import StopFlag

if TYPE_CHECKING:
    from ddp_trainer.opening import Order


def add_to(commands: "argparse._SubParsersAction[Any]") -> None:
    """Adds the command's parser."""
    parser = commands.add_parser(
        "train",
        help="train a task; every start is a resume",
        description="Trains a task; every start is a resume.",
        epilog=f"settings and their defaults:\n{describe()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--task", help=f"package.module:function; default ${Env.TASK}")
    parser.add_argument("--config", help=f"JSON text or the path of a file; default ${Env.CONFIG}")
    parser.set_defaults(run=run)


def run(
    options: argparse.Namespace, rest: Sequence[str], environ: Mapping[str, str], stop: StopFlag
) -> ExitCode:
    """Runs the command.

    Args:
        options: Parsed.
        rest: Arguments that the parser does not know: the settings.
        environ: The process's environment.
        stop: Raised by signals.

    Raises:
        InputError: If the run can never succeed as it was asked for.
    """
    ranks = Ranks.from_environment(environ)
    attempt = integer(environ, Env.ATTEMPT)
    beats_dir = environ.get(Env.BEATS_DIR)
    beats = BeatWriter(Path(beats_dir) if beats_dir else None, ranks, attempt or 0)
    beats.phase(RankPhase.STARTING)

    # Only now, because it imports torch, which takes longer than all of the above.
    from torch.distributed.elastic.multiprocessing.errors import record  # noqa: PLC0415

    @record
    def recorded() -> ExitCode:
        from ddp_trainer.train import train  # noqa: PLC0415

        return train(_order(options, rest, environ, attempt), ranks, stop, beats)

    return recorded() or ExitCode.OK


def _order(
    options: argparse.Namespace,
    rest: Sequence[str],
    environ: Mapping[str, str],
    attempt: int | None,
) -> "Order":
    from ddp_trainer.opening import Order  # noqa: PLC0415

    task = options.task or environ.get(Env.TASK)
    if not task:
        raise InputError(f"train: state --task package.module:function, or set {Env.TASK}")
    document = environment_document(environ)
    source = options.config or environ.get(Env.CONFIG)
    if source:
        document = merge(document, read_document(source))
    config = resolve(merge(document, read_overrides(rest)))
    return Order(task, config, attempt, environ.get(Env.JOB_UID, ""))
