"""`ddpjob checkpoints`."""

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ddp_operator.cli.errors import one_sentence
from ddp_operator.cli.exit_codes import CommandCode
from ddp_operator.cli.options import Place, place_options
from ddp_operator.cli.output import print_object, print_table
from ddp_operator.client.checkpoints import (
    WHOLE,
    Checkpoints,
    DirectoryCheckpoints,
    RunCheckpoints,
    checkpoints_of,
    download,
)

_HEAD = ("UPDATE", "STATE", "ATTEMPT", "SIZE", "WRITTEN BY", "NAME")
_THOUSAND = 1000


@click.group("checkpoints")
def command() -> None:
    """List, verify or download the checkpoints of a job.

    On a cluster a temporary job with one process reads the claim, and prints into its log.
    """


def _of_run(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Add the job and the options that find its checkpoints. The verb gets them as `source`."""

    @click.argument("name", metavar="JOB")
    @click.option(
        "--run-dir",
        type=click.Path(path_type=Path),
        help="Directory of the run of JOB, if its volume is mounted here.",
    )
    @place_options
    @one_sentence
    @functools.wraps(verb)
    def call(*, name: str, run_dir: Path | None, place: Place, **kwargs: Any) -> Any:
        source: Checkpoints
        if run_dir is None:
            source = checkpoints_of(place.client().get(name))
        else:
            source = DirectoryCheckpoints(run_dir)
        return verb(source=source, **kwargs)

    return call


_OUTPUT = click.option(
    "-o",
    "--output",
    type=click.Choice(["json", "yaml"]),
    help="Format for programs. Default: text for people.",
)


@command.command("list")
@_OUTPUT
@_of_run
def list_all(*, source: Checkpoints, output: str | None) -> None:
    """List the checkpoints of a job, newest first. Only their sizes are compared."""
    _show(source.inspect(quick=True), output)


@command.command("verify")
@_OUTPUT
@_of_run
def verify(*, source: Checkpoints, output: str | None) -> None:
    """Read all checkpoints of a job, and compare their checksums.

    The exit code is 1 if one of them is damaged.
    """
    found = source.inspect(quick=False)
    _show(found, output)
    sys.exit(CommandCode.FAILED if found.damaged else CommandCode.OK)


@command.command("download")
@click.option("--step", type=click.IntRange(0), help="Update. Default: the newest whole one.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("model.safetensors"),
    show_default=True,
    help="Path of the file, which must not exist.",
)
@_of_run
def download_model(*, source: Checkpoints, step: int | None, output: Path) -> None:
    """Verify the checkpoints of a job, and copy the weights of one to a safetensors file."""
    chosen = download(source, step, output)
    size = _size_text(output.stat().st_size)
    click.echo(f"{output}: the weights of update {chosen['step']:,}, {size}")


def _show(found: RunCheckpoints, output: str | None) -> None:
    if output is not None:
        run = {"directory": found.directory, "start": found.start}
        print_object({**run, "checkpoints": found.found}, output)
    elif found.found:
        rows = [
            (
                f"{one['step']:,}",
                one["state"] + (f": {one['reason']}" if one["reason"] else ""),
                str(one["attempt"]),
                _size_text(one["bytes"]),
                f"{one['world_size']} ranks, {one['strategy']}",
                one["name"],
            )
            for one in found.found
        ]
        styles = ["" if one["state"] == WHOLE else "red" for one in found.found]
        print_table(_HEAD, rows, styles)
        click.echo(f"A start uses {found.start}." if found.start else "A start uses none of them.")
    else:
        click.echo(f"There is no checkpoint in {found.directory}.", err=True)


def _size_text(size: int) -> str:
    """Return a size in bytes with a decimal unit."""
    value, units = float(size), iter(("B", "kB", "MB", "GB"))
    unit = next(units)
    for larger in units:
        if value < _THOUSAND:
            break
        value, unit = value / _THOUSAND, larger
    return f"{value:.4g} {unit}"
