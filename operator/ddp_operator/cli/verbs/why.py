"""`ddpjob why`."""

import click

from ddp_operator.cli.errors import one_sentence
from ddp_operator.cli.facts import print_paragraph
from ddp_operator.cli.options import Place, output_option, place_options
from ddp_operator.cli.output import print_object


@click.command("why")
@click.argument("name", metavar="JOB")
@output_option()
@place_options
@one_sentence
def command(*, name: str, output: str | None, place: Place) -> None:
    """Say what is wrong with a job, what to do, and which command helps."""
    job = place.client().get(name)
    found = job.why()
    if output == "name":
        print_object(job.manifest(), output)
    elif output is not None:
        answer = {
            "job": name,
            "state": job.state,
            "problem": found.problem,
            "what": found.what,
            "advice": found.advice,
            "command": found.command,
        }
        print_object(answer, output)
    else:
        print_paragraph(found.paragraph, "yellow" if found.problem else "")
        if found.command:
            click.echo(f"  {found.command}")
