"""The `ddpjob` command.

Each command imports what it needs only when it runs, so that `--help` is quick.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import click

from ddp_wire.exit_codes import ExitCode

_SUSPEND = """kubectl patch ddpjob JOB --type merge -p '{"spec":{"suspend":%s}}'"""
_WITH_KUBECTL = {
    "apply": "kubectl apply -f FILE",
    "create": "kubectl apply -f FILE",
    "submit": "kubectl apply -f FILE",
    "get": "kubectl get ddpjobs",
    "list": "kubectl get ddpjobs",
    "ls": "kubectl get ddpjobs",
    "status": "kubectl get ddpjobs",
    "watch": "kubectl get ddpjobs --watch",
    "wait": (
        "kubectl wait --for=condition=Complete ddpjob/JOB --timeout=24h"
        " (a failed job gets the condition Failed instead)"
    ),
    "log": "kubectl logs JOB-0 --follow",
    "logs": "kubectl logs JOB-0 --follow",
    "describe": "kubectl describe ddpjob JOB",
    "events": "kubectl describe ddpjob JOB",
    "scale": "kubectl scale ddpjob JOB --replicas NODES",
    "suspend": _SUSPEND % "true",
    "stop": _SUSPEND % "true",
    "resume": _SUSPEND % "false",
    "cancel": "kubectl delete ddpjob JOB",
    "delete": "kubectl delete ddpjob JOB",
}
"""kubectl command for each `ddpjob` command that a user may expect but that does not exist."""


class _Commands(click.Group):
    """Group of commands that suggests the kubectl command when a command does not exist."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name."""
        name = args[0]
        if self.get_command(ctx, name) is None and name in _WITH_KUBECTL:
            sentence = f"No such command '{name}'. On a cluster: {_WITH_KUBECTL[name]}"
            raise click.UsageError(sentence, ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ddp-trainer")
def main() -> None:
    """Run multi-node PyTorch DDP training jobs."""


@main.command()
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
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

    FILE may be -, for standard input. Pods are processes on loopback addresses. All other code is
    the same as on a cluster. A second run resumes from the newest checkpoint. The output of rank 0
    is shown if the job has a command. Ctrl-C saves a checkpoint and stops. The exit code is 0 when
    the job completes, 1 when it fails, 2 when the input is invalid, 130 after Ctrl-C.
    """
    import asyncio  # noqa: PLC0415
    import logging  # noqa: PLC0415

    from rich.console import Console  # noqa: PLC0415

    from ddp_operator.api.job import InvalidJobError  # noqa: PLC0415
    from ddp_operator.cli.local_run import run_locally  # noqa: PLC0415
    from ddp_operator.cli.manifest import read_job_file  # noqa: PLC0415
    from ddp_operator.cluster.base import ClusterError  # noqa: PLC0415

    logging.basicConfig(
        level=logging.INFO if verbose else logging.ERROR, format="%(name)s: %(message)s"
    )
    try:
        given = read_job_file(file)
        manifest = given.manifest(settings)
        folder = home / manifest["metadata"]["name"]
        code = asyncio.run(
            run_locally(manifest, given.config_maps(), folder, Console(), verbose=verbose)
        )
    except (InvalidJobError, ClusterError) as error:
        _refuse(str(error))
    sys.exit(code)


@main.group()
def node() -> None:
    """Simulate the loss of a node in a local run, or bring the node back."""


_DIR = click.option(
    "--dir",
    "home",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("ddp-runs"),
    show_default=True,
    help="Folder that --dir of `ddpjob run` named.",
)


@node.command()
@click.argument("job")
@click.argument("index", type=click.IntRange(0, 9998))
@_DIR
def lose(job: str, index: int, home: Path) -> None:
    """Kill all processes of node INDEX of the running JOB, and start no new ones on it."""
    _change_lost_nodes(home / job, lambda lost: lost | {index})


@node.command()
@click.argument("job")
@click.argument("index", type=click.IntRange(0, 9998))
@_DIR
def restore(job: str, index: int, home: Path) -> None:
    """Let the running JOB use node INDEX again."""
    _change_lost_nodes(home / job, lambda lost: lost - {index})


def _change_lost_nodes(folder: Path, change: Callable[[frozenset[int]], frozenset[int]]) -> None:
    from ddp_operator.cli.run_folder import is_running  # noqa: PLC0415
    from ddp_operator.cluster.local.lost_nodes import LostNodes  # noqa: PLC0415

    if not is_running(folder):
        _refuse(f"JOB must run on this machine now, but no process runs it in {folder}")
    lost = LostNodes(folder)
    try:
        lost.write(change(lost.read()))
    except OSError as error:
        _refuse(f"--dir: must name a folder that can be written, got {folder}: {error.strerror}")


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
    import logging  # noqa: PLC0415

    from ddp_operator.cli.report import ReportError, write_report  # noqa: PLC0415

    logging.basicConfig(level=logging.CRITICAL)  # The client logs what the error says.
    try:
        path = write_report(
            target, output, namespace=namespace, context=context, run_directory=run_dir
        )
    except ReportError as error:
        _refuse(str(error))
    click.echo(path)


def _refuse(sentence: str) -> NoReturn:
    """Print an error message about invalid input, and exit."""
    click.echo(f"ddpjob: {sentence}", err=True)
    sys.exit(ExitCode.BAD_INPUT)


if __name__ == "__main__":
    main()
