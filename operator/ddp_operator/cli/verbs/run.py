"""`ddpjob run`."""

import logging
import sys
from pathlib import Path

import click

from ddp_operator.cli.errors import one_sentence, refuse
from ddp_operator.cli.options import job_file_options


@click.command("run")
@job_file_options
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
@one_sentence
def command(*, file: Path, settings: tuple[str, ...], home: Path, verbose: bool) -> None:
    """Run the DDPJob in FILE on this machine, without a cluster.

    FILE may be -, for standard input. Pods are processes on loopback addresses. All other code is
    the same as on a cluster. A second run resumes from the newest checkpoint. The output of rank 0
    is shown if the job has a command. Ctrl-C saves a checkpoint and stops. The exit code is 0 when
    the job completes, 1 when it fails, 2 when the input is invalid, 130 after Ctrl-C.
    """
    # Imported here, because `--help` needs none of it.
    import asyncio  # noqa: PLC0415

    from rich.console import Console  # noqa: PLC0415

    from ddp_operator.cli.local_run import run_locally  # noqa: PLC0415
    from ddp_operator.client.manifest import read_job_file  # noqa: PLC0415
    from ddp_operator.cluster.errors import ClusterError  # noqa: PLC0415

    logging.basicConfig(
        level=logging.INFO if verbose else logging.ERROR, format="%(name)s: %(message)s"
    )
    given = read_job_file(file)
    manifest = given.manifest(settings)
    folder = home / manifest["metadata"]["name"]
    try:
        code = asyncio.run(
            run_locally(manifest, given.config_maps(), folder, Console(), verbose=verbose)
        )
    except ClusterError as error:  # The job needs a cluster, or the folder cannot be used.
        refuse(str(error))
    sys.exit(code)
