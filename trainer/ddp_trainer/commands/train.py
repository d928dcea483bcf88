"""`train`: trains a task, from the beginning or from its newest checkpoint."""

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddp_trainer.commands.arguments import add_run_to, task_and_config
from ddp_trainer.config.settings import describe
from ddp_trainer.errors import Refusal
from ddp_trainer.observe.beats import BeatWriter
from ddp_trainer.ranks.environment import Ranks, integer
from ddp_trainer.ranks.slurm import variables_of_slurm
from ddp_trainer.stop import StopFlag
from ddp_wire.contract import Env, ExitCode, RankPhase

if TYPE_CHECKING:
    from ddp_trainer.run.opening import Order


def add_to(commands: "argparse._SubParsersAction[Any]") -> None:
    """Adds the command's parser."""
    parser = commands.add_parser(
        "train",
        help="train a task; every start is a resume",
        description="Trains a task; every start is a resume.",
        epilog=f"settings and their defaults:\n{describe()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run_to(parser)
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
    slurm = variables_of_slurm(environ)
    os.environ.update(slurm)  # where torch looks for its rendezvous
    ranks = Ranks.from_environment({**environ, **slurm})
    attempt = integer(environ, Env.ATTEMPT)
    beats_dir = environ.get(Env.BEATS_DIR)
    beats = BeatWriter(Path(beats_dir) if beats_dir else None, ranks, attempt or 0)
    beats.phase(RankPhase.STARTING)

    # Only now, because it imports torch, which takes longer than all of the above.
    from torch.distributed.elastic.multiprocessing.errors import record  # noqa: PLC0415

    @record
    def recorded() -> ExitCode:
        from ddp_trainer.train import train  # noqa: PLC0415

        try:
            return train(_order(options, rest, environ, attempt), ranks, stop, beats)
        except Refusal as refusal:
            # Where it was found says nothing to who reads torchrun's table.
            raise refusal.with_traceback(None) from None

    return recorded() or ExitCode.OK


def _order(
    options: argparse.Namespace,
    rest: Sequence[str],
    environ: Mapping[str, str],
    attempt: int | None,
) -> "Order":
    from ddp_trainer.run.opening import Order  # noqa: PLC0415

    task, config = task_and_config("train", options, rest, environ)
    return Order(task, config, attempt, environ.get(Env.JOB_UID, ""))
