"""`ddpjob submit`."""

import sys
from pathlib import Path

import click

from ddp_operator.cli.errors import one_sentence
from ddp_operator.cli.log_view import LogView
from ddp_operator.cli.options import Place, job_file_options, place_options
from ddp_operator.cli.output import print_notes, print_object
from ddp_operator.cli.waiting import wait_and_show
from ddp_operator.client.manifest import read_job_file


@click.command("submit")
@job_file_options
@click.option(
    "--code",
    type=click.Path(path_type=Path),
    help="Folder whose files the pods see in /code, where Python also looks for modules.",
)
@click.option("--wait", is_flag=True, help="Wait until the job has ended.")
@click.option("--logs", is_flag=True, help="Show the output of all ranks until the job has ended.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["json", "yaml", "name"]),
    help="Print the created job in this format.",
)
@place_options
@one_sentence
def command(
    *,
    file: Path,
    settings: tuple[str, ...],
    code: Path | None,
    wait: bool,
    logs: bool,
    output: str | None,
    place: Place,
) -> None:
    """Check the DDPJob in FILE and create it. FILE may be -, for standard input.

    With --wait or --logs the exit code is 0 if the job completed, and 1 if it failed.
    """
    given = read_job_file(file)
    client = place.client()
    job = client.submit_file(given, settings, code)
    if output is not None:
        print_object(job.manifest(), output)
    else:
        click.echo(f"{job.name} is created in the {client.backend.place}")
    if logs:
        view = LogView()
        for line in job.logs(follow=True):
            click.echo(view.format(line))
        print_notes(job.backend.notes())
    if wait or logs:
        sys.exit(wait_and_show(job, (), None, quiet=logs))
