"""`ddpjob validate`."""

from pathlib import Path

import click

from ddp_operator.api.job import parse_job
from ddp_operator.cli.errors import one_sentence
from ddp_operator.cli.options import job_file_options
from ddp_operator.client.manifest import read_job_file
from ddp_operator.report.text import count_text


@click.command("validate")
@job_file_options
@one_sentence
def command(*, file: Path, settings: tuple[str, ...]) -> None:
    """Check the DDPJob in FILE without a cluster: its fields, rules, and settings of the loop.

    FILE may be -, for standard input. The settings of the bundled loop in config are not checked if
    the job has an image of its own, and those in config.task only by the task.
    """
    job = parse_job(read_job_file(file).checked(settings))
    ranks = job.spec.nodes * job.spec.ranks_per_node
    size = f"{count_text(job.spec.nodes, 'node')}, {count_text(ranks, 'rank')}"
    click.echo(f"ok: {job.metadata.name} runs {job.spec.task or 'a command'} on {size}")
