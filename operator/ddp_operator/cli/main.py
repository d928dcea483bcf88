"""The `ddpjob` command."""

import asyncio
import logging
import sys
from pathlib import Path

import click
from rich.console import Console

from ddp_operator.api.job import InvalidJobError
from ddp_operator.cli.local_run import run_locally
from ddp_operator.cli.manifest import load_config_maps, load_manifest
from ddp_operator.cluster.base import ClusterError
from ddp_wire.contract import ExitCode


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ddp-trainer")
def main() -> None:
    """Multi-node PyTorch DDP training that finishes."""


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a field of the spec, as --set config.epochs=5. May be given several times.",
)
@click.option(
    "--dir",
    "home",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("ddp-runs"),
    show_default=True,
    help="Where volumes (checkpoints) and logs are kept.",
)
@click.option("-v", "--verbose", is_flag=True, help="Show what the operator does.")
def run(file: Path, settings: tuple[str, ...], home: Path, verbose: bool) -> None:
    """Run the DDPJob in FILE on this machine, with no cluster.

    Its pods are processes on loopback addresses; everything else is what a cluster runs. Run it
    again and it goes on from its newest checkpoint. Ctrl-C saves and stops. The exit code is 0 when
    the job completes, 1 when it fails, 2 when it cannot be run as asked, 130 after Ctrl-C.
    """
    logging.basicConfig(
        level=logging.INFO if verbose else logging.ERROR, format="%(name)s: %(message)s"
    )
    console = Console()
    try:
        manifest = load_manifest(file, settings)
        name = manifest["metadata"]["name"]
        code = asyncio.run(run_locally(manifest, load_config_maps(file), home / name, console))
    except (InvalidJobError, ClusterError) as error:
        click.echo(f"ddpjob: {error}", err=True)
        sys.exit(ExitCode.BAD_INPUT)
    sys.exit(code)


if __name__ == "__main__":
    main()
