"""`ddpjob resume`."""

import click

from ddp_operator.cli.errors import one_sentence
from ddp_operator.cli.options import Place, place_options
from ddp_operator.client.errors import RequestError
from ddp_operator.report.rows import ENDS, state_of


@click.command("resume")
@click.argument("name", metavar="JOB")
@place_options
@one_sentence
def command(*, name: str, place: Place) -> None:
    """Start a suspended job again from its newest checkpoint."""
    job = place.client().get(name)
    state = state_of(job.read())
    if state in ENDS:
        raise RequestError(f"{name} is {state}: create it again to train on")
    job.resume()
    click.echo(f"{name} resumes")
