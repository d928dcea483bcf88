"""`ddpjob delete`."""

import sys

import click

from ddp_operator.cli.errors import one_sentence
from ddp_operator.cli.options import Place, place_options
from ddp_operator.client.errors import RequestError


@click.command("delete")
@click.argument("name", metavar="JOB")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@place_options
@one_sentence
def command(*, name: str, yes: bool, place: Place) -> None:
    """Delete a job with its pods. Its checkpoints stay on their volume."""
    job = place.client().get(name)
    if not yes:
        if not sys.stdin.isatty():
            raise RequestError("delete asks on a terminal only: give --yes")
        click.confirm(f"Delete {name} in the {job.backend.place}?", abort=True)
    job.delete()
    click.echo(f"{name} is deleted")
