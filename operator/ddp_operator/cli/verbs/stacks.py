"""`ddpjob stacks`."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from ddp_operator.cli.errors import one_sentence
from ddp_operator.cli.options import RUNS
from ddp_operator.client.client import local
from ddp_operator.client.errors import RequestError
from ddp_operator.client.local_stacks import read_local_stacks


@click.command("stacks")
@click.argument("name", metavar="JOB")
@click.option(
    "--dir",
    "home",
    type=click.Path(path_type=Path, file_okay=False),
    default=RUNS,
    show_default=True,
    help="Folder that --dir of `ddpjob run` named.",
)
@click.option("-o", "--output", type=click.Choice(["json"]), help="Format for programs.")
@one_sentence
def command(*, name: str, home: Path, output: str | None) -> None:
    """Show where all ranks of a run of this machine are now.

    The ranks go on. On a cluster the operator collects the stack of a rank that hangs, in
    status.lastFailure.traceback.
    """
    job = local(home).get(name).read()
    found = read_local_stacks(job.metadata.uid, job.spec.ranks_per_node)
    if not found:
        raise RequestError(f"{name} has no ranks on this machine now")
    if output is not None:
        click.echo(json.dumps([asdict(one) for one in found], indent=2))
        return
    for one in found:
        click.echo(click.style(f"rank {one.rank} (process {one.process})", bold=True))
        click.echo(one.stacks or "no answer within 2 s")
        click.echo()
