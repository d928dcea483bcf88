"""Options that several verbs share."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ddp_operator.client.client import Client

RUNS = Path("ddp-runs")
"""Folder of local runs, unless `--dir` names another one."""


@dataclass(frozen=True)
class Place:
    """Where the jobs of a command are."""

    namespace: str | None
    context: str | None
    local: bool
    home: Path | None

    def folder(self) -> Path | None:
        """Return the folder of the runs of this machine, or None for a cluster.

        Raises:
            RequestError: Options for a cluster and for this machine are mixed.
        """
        from ddp_operator.client.errors import RequestError  # noqa: PLC0415 - as in `client`

        if not self.local and self.home is None:
            return None
        if self.namespace is not None or self.context is not None:
            sentence = "--local and --dir select this machine, -n and --context a cluster"
            raise RequestError(f"{sentence}: give only one of them")
        return self.home or RUNS

    def client(self) -> "Client":
        """Return the client of a cluster, or of this machine.

        Without options, the jobs are those on the cluster of the kubeconfig.

        Raises:
            RequestError: Options for a cluster and for this machine are mixed.
            NoClusterError: No cluster is configured.
        """
        # Imported here, because `--help` of a verb needs none of it.
        from ddp_operator.client.client import connect, local  # noqa: PLC0415
        from ddp_operator.cluster.errors import NoClusterError  # noqa: PLC0415

        if (folder := self.folder()) is not None:
            return local(folder)
        try:
            return connect(self.namespace, self.context)
        except NoClusterError as error:
            raise NoClusterError(f"{error}; --local selects the runs of this machine") from error


def job_file_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument FILE and the option `--set`. The verb gets them as `file` and `settings`."""

    @click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
    @click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        help="Set a field of the spec, for example config.epochs=5. Can be repeated.",
    )
    @functools.wraps(verb)
    def wrapped(*args: Any, **given: Any) -> Any:
        return verb(*args, **given)

    return wrapped


def place_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select a cluster or this machine. The verb gets them as `place`."""

    @click.option("-n", "--namespace", help="Namespace. Default: that of the context.")
    @click.option("--context", help="Context of the kubeconfig. Default: the current one.")
    @click.option("--local", is_flag=True, help="Runs of this machine, in place of a cluster.")
    @click.option(
        "--dir",
        "home",
        type=click.Path(path_type=Path, file_okay=False),
        help=f"Folder of the runs of this machine. Default with --local: {RUNS}.",
    )
    @functools.wraps(verb)
    def call(
        *args: Any,
        namespace: str | None,
        context: str | None,
        local: bool,
        home: Path | None,
        **kwargs: Any,
    ) -> Any:
        return verb(*args, place=Place(namespace, context, local, home), **kwargs)

    return call


def output_option(*more: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option `-o` with the formats json, yaml, name and further ones."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["json", "yaml", "name", *more]),
        help="Format for programs. Default: text for people.",
    )
