"""`ddpjob profile`."""

import click

from ddp_operator.cli.errors import one_sentence
from ddp_operator.cli.options import Place, place_options
from ddp_wire.inspections import MOST_PROFILED_STEPS
from ddp_wire.plain_text import plain_text


@click.command("profile")
@click.argument("name", metavar="JOB")
@click.option(
    "--steps",
    type=click.IntRange(1, MOST_PROFILED_STEPS),
    default=5,
    show_default=True,
    help="Updates to trace.",
)
@place_options
@one_sentence
def command(*, name: str, steps: int, place: Place) -> None:
    """Request a trace of the next updates of rank 0, for Perfetto or Chrome.

    The bundled loop writes it to the run's directory, and prints a line when it is there.
    """
    click.echo(plain_text(place.client().get(name).profile(steps)))
