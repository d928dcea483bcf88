"""`ddpjob stacks`."""

from dataclasses import asdict

import click

from ddp_operator.cli.errors import one_sentence
from ddp_operator.cli.options import Place, place_options
from ddp_operator.cli.output import print_object
from ddp_operator.client.errors import RequestError
from ddp_wire.plain_text import plain_lines


@click.command("stacks")
@click.argument("name", metavar="JOB")
@click.option("--rank", "ranks", type=click.IntRange(0), multiple=True, help="Rank to show.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["json", "yaml"]),
    help="Format for programs. Default: text for people.",
)
@place_options
@one_sentence
def command(*, name: str, ranks: tuple[int, ...], output: str | None, place: Place) -> None:
    """Show where all ranks are now, as stacks of Python. The ranks go on.

    On a cluster the ranks answer in the logs of their pods.
    """
    job = place.client().get(name)
    found = [one for one in job.stacks() if not ranks or one.rank in ranks]
    if not found:
        raise RequestError(f"no rank of {name} has answered")
    if output is not None:
        print_object([asdict(one) for one in found], output)
        return
    for one in found:
        click.echo(click.style(f"rank {one.rank}", bold=True))
        click.echo(plain_lines(one.stacks) or "no answer")
        click.echo()
