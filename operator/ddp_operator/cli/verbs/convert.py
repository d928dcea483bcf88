"""`ddpjob convert`."""

import shlex
from pathlib import Path

import click
import yaml

from ddp_operator.api.job import InvalidJobError, parse_job
from ddp_operator.cli.errors import one_sentence
from ddp_operator.client.manifest import read_job_file
from ddp_operator.conversion.jobs import ConversionError, convert


@click.command("convert")
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@click.option(
    "--command",
    "text",
    metavar="TEXT",
    help='Command of each rank, for example "python /app/train.py". Needed if the job has none.',
)
@one_sentence
def command(*, file: Path, text: str | None) -> None:
    """Print the DDPJob for a PyTorchJob or TrainJob in FILE, and what it leaves out.

    FILE may be -, for standard input, and may hold the runtime of a TrainJob as well.
    """
    given = read_job_file(file)
    try:
        found = convert(given.objects, shlex.split(text or ""))
    except ConversionError as error:
        raise InvalidJobError(f"{given.name}: {error}") from error
    except ValueError as error:
        raise InvalidJobError(f"--command: must be a command as in a shell: {error}") from error
    for number, one in enumerate(found):
        name = one.job["metadata"]["name"]
        for note in one.notes:
            click.echo(f"{name}: {note}", err=True)
        try:
            parse_job({**one.job, "metadata": {"namespace": "default", **one.job["metadata"]}})
        except InvalidJobError as error:
            click.echo(f"{name}: correct this before you submit it: {error}", err=True)
        separator = "---\n" if number else ""
        click.echo(separator + yaml.safe_dump(one.job, sort_keys=False).rstrip())
