"""`ddpjob suspend`."""

import click

from ddp_operator.cli.errors import one_sentence
from ddp_operator.cli.options import Place, place_options
from ddp_operator.report.rows import ENDS, state_of


@click.command("suspend")
@click.argument("name", metavar="JOB")
@place_options
@one_sentence
def command(*, name: str, place: Place) -> None:
    """Save a checkpoint, stop the ranks and free the nodes of a job."""
    job = place.client().get(name)
    if state_of(job.read()) in ENDS:
        click.echo(f"{name} has ended already", err=True)
        return
    job.suspend()
    click.echo(f"{name} saves and stops")
