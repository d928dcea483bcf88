"""`ddpjob init`."""

from pathlib import Path

import click

from ddp_operator.cli.errors import one_sentence
from ddp_operator.client.errors import RequestError
from ddp_operator.client.template import JobSize, write_manifest


@click.command("init")
@click.argument("target", metavar="SCRIPT|TASK")
@click.option("--nodes", type=click.IntRange(1, 9999), default=1, show_default=True, help="Nodes.")
@click.option("--gpus", type=click.IntRange(0, 1024), default=0, help="GPUs per node. Default: 0.")
@click.option("--procs", type=click.IntRange(1, 1024), help="Ranks per node. Default: one per GPU.")
@click.option("--name", help="Name of the job. Default: that of the script or the module.")
@click.option("--claim", help="Claim for checkpoints. Default: the operator creates one.")
@click.option(
    "--code",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path(),
    show_default=True,
    help="Folder with the script or the module.",
)
@click.option(
    "-f",
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to create. Default: print the manifest.",
)
@one_sentence
def command(
    *,
    target: str,
    nodes: int,
    gpus: int,
    procs: int | None,
    name: str | None,
    claim: str | None,
    code: Path,
    file: Path | None,
) -> None:
    """Write a manifest that runs a script, or a task as module:function."""
    size = JobSize(nodes, gpus, procs)
    made = write_manifest(target, size, name=name, claim=claim, folder=code)
    if file is None:
        click.echo(made.text, nl=False)
    else:
        try:
            with file.open("x", encoding="utf-8") as new:
                new.write(made.text)
        except FileExistsError as error:
            raise RequestError(f"{file}: exists already") from error
        except OSError as error:
            raise RequestError(f"{file}: cannot be written: {error.strerror}") from error
        click.echo(file)
    for note in made.notes:
        click.echo(f"note: {note.replace('FILE', str(file or 'FILE'))}", err=True)
