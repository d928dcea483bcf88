"""`ddpjob status`."""

from datetime import UTC, datetime

import click

from ddp_operator.cli.errors import one_sentence
from ddp_operator.cli.facts import print_story
from ddp_operator.cli.options import Place, output_option, place_options
from ddp_operator.cli.output import print_object
from ddp_operator.report.story import tell


@click.command("status")
@click.argument("name", metavar="JOB")
@output_option()
@place_options
@one_sentence
def command(*, name: str, output: str | None, place: Place) -> None:
    """Show the story of a job on one screen: attempts, progress, where the time went."""
    job = place.client().get(name)
    if output is not None:
        print_object(job.manifest(), output)
        return
    print_story(tell(job.read(), datetime.now(UTC), place=job.backend.place))
