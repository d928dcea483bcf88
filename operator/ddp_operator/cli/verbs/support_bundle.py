"""`ddpjob support-bundle`."""

from pathlib import Path

import click

from ddp_operator.cli.errors import one_sentence
from ddp_operator.cli.options import Place, place_options
from ddp_operator.cli.output import print_notes
from ddp_operator.client.bundle import write_bundle


@click.command("support-bundle")
@click.argument("name", metavar="JOB")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Path of the archive. Default: JOB-support.tar.gz in the current directory.",
)
@place_options
@one_sentence
def command(*, name: str, output: Path | None, place: Place) -> None:
    """Collect status, Events, output and reports of a job in one archive, without its secrets."""
    path = output or Path(f"{name}-support.tar.gz")
    print_notes(write_bundle(place.client().get(name), path))
    click.echo(path)
