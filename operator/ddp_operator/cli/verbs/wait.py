"""`ddpjob wait`."""

import sys

import click

from ddp_operator.cli.durations import parse_duration
from ddp_operator.cli.errors import one_sentence
from ddp_operator.cli.options import Place, place_options
from ddp_operator.cli.waiting import wait_and_show

STATES = [
    "Pending",
    "Starting",
    "Running",
    "Recovering",
    "Suspended",
    "Invalid",
    "Completed",
    "Failed",
]


@click.command("wait")
@click.argument("name", metavar="JOB")
@click.option(
    "--for",
    "states",
    type=click.Choice(STATES, case_sensitive=False),
    multiple=True,
    help="State to wait for. Default: the end of the job. Can be repeated.",
)
@click.option("--timeout", metavar="DURATION", help="Maximum time, for example 10m. Default: none.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
@place_options
@one_sentence
def command(
    *, name: str, states: tuple[str, ...], timeout: str | None, quiet: bool, place: Place
) -> None:
    """Wait until a job has ended. The exit code is 0 if it completed, and 1 if it failed."""
    limit = parse_duration(timeout, "--timeout").total_seconds() if timeout is not None else None
    sys.exit(wait_and_show(place.client().get(name), states, limit, quiet=quiet))
