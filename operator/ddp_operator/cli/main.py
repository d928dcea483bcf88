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
from ddp_operator.cli.report import ReportError, write_report
from ddp_operator.cluster.base import ClusterError
from ddp_wire.contract import ExitCode


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ddp-trainer")
def main() -> None:
    """Run multi-node PyTorch DDP training jobs."""


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a field of the spec, for example config.epochs=5. Can be repeated.",
)
@click.option(
    "--dir",
    "home",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("ddp-runs"),
    show_default=True,
    help="Folder of volumes (checkpoints) and logs.",
)
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Show the output of all ranks, each line after its rank, and the log of the operator.",
)
def run(file: Path, settings: tuple[str, ...], home: Path, verbose: bool) -> None:
    """Run the DDPJob in FILE on this machine, without a cluster.

    Pods are processes on loopback addresses. The rest is the same code as on a cluster. A second
    run resumes from the newest checkpoint. The output of rank 0 is shown if the job has a command.
    Ctrl-C saves a checkpoint and stops. The exit code is 0 when the job completes, 1 when it fails,
    2 when the input is invalid, 130 after Ctrl-C.
    """
    logging.basicConfig(
        level=logging.INFO if verbose else logging.ERROR, format="%(name)s: %(message)s"
    )
    console = Console()
    try:
        manifest = load_manifest(file, settings)
        name = manifest["metadata"]["name"]
        config_maps = load_config_maps(file)
        code = asyncio.run(
            run_locally(manifest, config_maps, home / name, console, verbose=verbose)
        )
    except (InvalidJobError, ClusterError) as error:
        click.echo(f"ddpjob: {error}", err=True)
        sys.exit(ExitCode.BAD_INPUT)
    sys.exit(code)


@main.command()
@click.argument("target", metavar="JOB|DIR")
@click.option("-n", "--namespace", help="Namespace of JOB. Default: that of the context.")
@click.option("--context", help="Context of the kubeconfig. Default: the current one.")
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path),
    help="Directory of the run of JOB, if its volume is mounted here.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Path of the page. Default: NAME-report.html in the current directory.",
)
def report(
    target: str,
    namespace: str | None,
    context: str | None,
    run_dir: Path | None,
    output: Path | None,
) -> None:
    """Write one HTML page about a running or finished run, and print its path.

    JOB is a DDPJob on the cluster. DIR is the directory of a run on a volume, or the folder of a
    local run, for example ddp-runs/digits. The page shows loss, throughput, step times, goodput,
    attempts and faults. It needs no network. The exit code is 2 when there is no such job or
    directory.
    """
    logging.basicConfig(level=logging.CRITICAL)  # The client logs what the error says.
    try:
        path = write_report(
            target, output, namespace=namespace, context=context, run_directory=run_dir
        )
    except ReportError as error:
        click.echo(f"ddpjob: {error}", err=True)
        sys.exit(ExitCode.BAD_INPUT)
    click.echo(path)


if __name__ == "__main__":
    main()
