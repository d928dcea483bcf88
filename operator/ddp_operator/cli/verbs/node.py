"""`ddpjob node`."""

from collections.abc import Callable
from pathlib import Path

import click

from ddp_operator.cli.errors import one_sentence, refuse
from ddp_operator.client.run_folder import folder_of, is_running
from ddp_operator.cluster.local.lost_nodes import LostNodes


@click.group("node")
def command() -> None:
    """Simulate the loss of a node in a local run, or bring the node back."""


_DIR = click.option(
    "--dir",
    "home",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("ddp-runs"),
    show_default=True,
    help="Folder that --dir of `ddpjob run` named.",
)


@command.command()
@click.argument("job")
@click.argument("index", type=click.IntRange(0, 9998))
@_DIR
@one_sentence
def lose(job: str, index: int, home: Path) -> None:
    """Kill all processes of node INDEX of the running JOB, and start no new ones on it."""
    _change_lost_nodes(folder_of(home, job), lambda lost: lost | {index})


@command.command()
@click.argument("job")
@click.argument("index", type=click.IntRange(0, 9998))
@_DIR
@one_sentence
def restore(job: str, index: int, home: Path) -> None:
    """Let the running JOB use node INDEX again."""
    _change_lost_nodes(folder_of(home, job), lambda lost: lost - {index})


def _change_lost_nodes(folder: Path, change: Callable[[frozenset[int]], frozenset[int]]) -> None:
    if not is_running(folder):
        refuse(f"JOB must run on this machine now, but no process runs it in {folder}")
    lost = LostNodes(folder)
    try:
        lost.write(change(lost.read()))
    except OSError as error:
        refuse(f"--dir: must name a folder that can be written, got {folder}: {error.strerror}")
