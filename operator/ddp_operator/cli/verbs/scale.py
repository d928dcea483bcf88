"""`ddpjob scale`."""

import click

from ddp_operator.cli.errors import one_sentence
from ddp_operator.cli.options import Place, place_options


@click.command("scale")
@click.argument("name", metavar="JOB")
@click.argument("nodes", type=click.IntRange(1, 9999))
@place_options
@one_sentence
def command(*, name: str, nodes: int, place: Place) -> None:
    """Change the number of nodes of a job, which goes on from its newest checkpoint."""
    place.client().get(name).scale(nodes)
    click.echo(f"{name} goes on with {nodes} {'node' if nodes == 1 else 'nodes'}")
