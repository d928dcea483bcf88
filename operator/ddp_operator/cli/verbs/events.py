"""`ddpjob events`."""

import click

from ddp_operator.cli.errors import one_sentence
from ddp_operator.cli.facts import print_events
from ddp_operator.cli.options import Place, output_option, place_options
from ddp_operator.cli.output import print_objects


@click.command("events")
@click.argument("name", metavar="JOB")
@output_option()
@place_options
@one_sentence
def command(*, name: str, output: str | None, place: Place) -> None:
    """Show what the operator has reported about a job, oldest first."""
    found = place.client().get(name).events()
    if output is not None:
        print_objects(found, output)
    elif found:
        print_events(found)
    else:
        click.echo(f"{name} has no Events; a cluster deletes them after an hour", err=True)
