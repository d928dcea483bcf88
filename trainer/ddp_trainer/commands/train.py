"""`train`: train a task, from the beginning or from its newest checkpoint."""

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddp_trainer.commands.arguments import add_run_to, task_and_config
from ddp_trainer.config.settings import describe
from ddp_trainer.errors import ReportedError
from ddp_trainer.observe.heartbeats import HeartbeatWriter
from ddp_trainer.observe.inspector import answering
from ddp_trainer.ranks.environment import Ranks, integer
from ddp_trainer.ranks.slurm import variables_of_slurm
from ddp_trainer.stop import StopFlag
from ddp_wire.contract import Env, ExitCode
from ddp_wire.messages import RankPhase
from ddp_wire.stacks import answer_stack_requests

if TYPE_CHECKING:
    from ddp_trainer.run.opening import RunRequest


def add_to(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add the parser of this command."""
    parser = commands.add_parser(
        "train",
        help="train a task, or resume it from its newest checkpoint",
        description="Train a task. Resume from its newest complete checkpoint if there is one.",
        epilog=f"settings and their defaults:\n{describe()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run_to(parser)
    parser.set_defaults(run=run)


def run(
    options: argparse.Namespace, rest: Sequence[str], environ: Mapping[str, str], stop: StopFlag
) -> ExitCode:
    """Run the command.

    Args:
        options: Parsed options.
        rest: Arguments that the parser does not know, which are settings.
        environ: Environment of the process.
        stop: Flag that signal handlers set.

    Raises:
        InputError: If the run can never succeed with these settings.
    """
    slurm = variables_of_slurm(environ)
    os.environ.update(slurm)  # torch reads the rendezvous address from there
    ranks = Ranks.from_environment({**environ, **slurm})
    attempt = integer(environ, Env.ATTEMPT)
    beats_dir = environ.get(Env.BEATS_DIR)
    heartbeats = HeartbeatWriter(Path(beats_dir) if beats_dir else None, ranks, attempt or 0)
    heartbeats.phase(RankPhase.STARTING)
    answer_stack_requests(beats_dir, str(ranks.local_rank))

    # Imported here, because it imports torch, which takes longer than all of the above.
    from torch.distributed.elastic.multiprocessing.errors import record  # noqa: PLC0415

    @record
    def recorded() -> ExitCode:
        from ddp_trainer.train import train  # noqa: PLC0415

        try:
            with answering(Path(beats_dir) if beats_dir else None, ranks.local_rank):
                return train(_run_request(options, rest, environ, attempt), ranks, stop, heartbeats)
        except ReportedError as error:
            # The message is complete: a traceback would only fill torchrun's error table.
            raise error.with_traceback(None) from None

    return recorded() or ExitCode.OK


def _run_request(
    options: argparse.Namespace,
    rest: Sequence[str],
    environ: Mapping[str, str],
    attempt: int | None,
) -> "RunRequest":
    from ddp_trainer.run.opening import RunRequest  # noqa: PLC0415

    task, config = task_and_config("train", options, rest, environ)
    records = environ.get(Env.RECORDS_DIR)
    job = environ.get(Env.JOB_UID, "")
    return RunRequest(task, config, attempt, job, Path(records) if records else None)
