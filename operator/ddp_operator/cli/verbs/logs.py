"""`ddpjob logs`."""

import json
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import click

from ddp_operator.cli.durations import parse_duration
from ddp_operator.cli.errors import one_sentence
from ddp_operator.cli.exit_codes import CommandCode
from ddp_operator.cli.log_view import LogView
from ddp_operator.cli.options import Place, place_options
from ddp_operator.cli.output import print_notes
from ddp_operator.client.claim_logs import copied_logs
from ddp_operator.client.jobs import Job
from ddp_operator.client.log_lines import LogLine


@click.command("logs")
@click.argument("name", metavar="JOB")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job is over.")
@click.option(
    "--rank",
    "ranks",
    type=click.IntRange(0),
    multiple=True,
    help="Only this rank. Can be repeated.",
)
@click.option("--attempt", type=click.IntRange(1), help="Only this attempt.")
@click.option(
    "--since", metavar="DURATION", help="Only lines of the last time, for example 90s, 10m, 2h."
)
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path),
    help="Directory of the run of JOB, if its volume is mounted here: it has the output of pods"
    " that are gone.",
)
@click.option(
    "--copies",
    is_flag=True,
    help="Also read the copies on the claim of JOB with a temporary job: they have the output of"
    " pods that are gone.",
)
@click.option("-t", "--timestamps", is_flag=True, help="Show the time of each line.")
@click.option(
    "-o", "--output", type=click.Choice(["json"]), help="Format for programs: one object a line."
)
@place_options
@one_sentence
def command(
    *,
    name: str,
    follow: bool,
    ranks: tuple[int, ...],
    attempt: int | None,
    since: str | None,
    run_dir: Path | None,
    copies: bool,
    timestamps: bool,
    output: str | None,
    place: Place,
) -> None:
    """Show the output of all ranks in all attempts, in order.

    Each line begins with its rank, or with the pod for a line of the agent. With -f, the command
    goes on when a pod is replaced, and ends with the job.
    """
    if copies and (follow or run_dir is not None):
        raise click.UsageError("--copies cannot be used with -f or --run-dir")
    age = parse_duration(since, "--since") if since is not None else None
    job = place.client().get(name)
    view, shown = LogView(timestamps=timestamps), False
    with _directory(job, run_dir, attempt, copies=copies) as directory:
        for line in job.logs(
            follow=follow, ranks=ranks, attempt=attempt, since=age, run_directory=directory
        ):
            shown = True
            click.echo(_as_json(line) if output == "json" else view.format(line))
    print_notes(job.backend.notes())
    if not shown and not job.backend.notes():
        print_notes([f"{name} has no such lines"])
    if job.backend.lost_lines:
        sys.exit(CommandCode.NO_CLUSTER)


def _directory(
    job: Job, run_dir: Path | None, attempt: int | None, *, copies: bool
) -> AbstractContextManager[Path | None]:
    """Return the directory with the copies of the logs, or None for the logs of the pods."""
    return copied_logs(job, attempt) if copies else nullcontext(run_dir)


def _as_json(line: LogLine) -> str:
    time = line.time.isoformat() if line.time is not None else None
    fields = {"time": time, "attempt": line.attempt, "rank": line.rank, "pod": line.pod}
    return json.dumps({**fields, "text": line.text})
