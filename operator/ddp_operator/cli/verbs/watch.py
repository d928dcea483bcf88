"""`ddpjob watch`."""

import sys

import click

from ddp_operator.cli.errors import one_sentence
from ddp_operator.cli.options import Place, place_options
from ddp_operator.cli.waiting import wait_and_show, watch_story


@click.command("watch")
@click.argument("name", metavar="JOB")
@place_options
@one_sentence
def command(*, name: str, place: Place) -> None:
    """Show the state of a job until it ends: live on a terminal, a line per change elsewhere."""
    job = place.client().get(name)
    sys.exit(watch_story(job) if sys.stdout.isatty() else wait_and_show(job, (), None))
