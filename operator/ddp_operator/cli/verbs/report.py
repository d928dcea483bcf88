"""`ddpjob report`."""

import logging
from pathlib import Path

import click

from ddp_operator.cli.errors import one_sentence, refuse
from ddp_operator.cli.options import Place, place_options


@click.command("report")
@click.argument("target", metavar="JOB|DIR")
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
@place_options
@one_sentence
def command(*, target: str, run_dir: Path | None, output: Path | None, place: Place) -> None:
    """Write one HTML page about a running or finished run, and print its path.

    JOB is a DDPJob on the cluster, or with --local a run of this machine. DIR is the directory of a
    run on a volume, or the folder of a local run, for example ddp-runs/digits. The page shows loss,
    throughput, step times, goodput, attempts and faults. It needs no network. The exit code is 2
    when there is no such job or directory.
    """
    # Imported here, because `--help` needs none of it.
    from ddp_operator.cli.report import ReportError, write_report  # noqa: PLC0415
    from ddp_operator.client.run_folder import folder_of  # noqa: PLC0415

    logging.basicConfig(level=logging.CRITICAL)  # The client logs what the error says.
    if (folder := place.folder()) is not None:
        target = str(folder_of(folder, target))
    try:
        path = write_report(
            target,
            output,
            namespace=place.namespace,
            context=place.context,
            run_directory=run_dir,
        )
    except ReportError as error:
        refuse(str(error))
    click.echo(path)
