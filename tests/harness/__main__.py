"""`python -m tests.harness COMMAND`: control the cluster and its images from the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tests.harness import binaries, debian, ending, gobuild, images, machine
from tests.harness.cluster import Cluster
from tests.harness.errors import HarnessError
from tests.harness.run import Figures, print_line

_FAILED: Final = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Return the exit code: 0, or 2 with a message on stderr."""
    arguments = _parser().parse_args(argv)
    command: Callable[[argparse.Namespace], None] = arguments.run
    try:
        command(arguments)
    except HarnessError as error:
        print(error, file=sys.stderr)
        return _FAILED
    except OSError as error:
        print(f"An operating system call failed: {error}.", file=sys.stderr)
        return _FAILED
    except KeyboardInterrupt:
        return ending.INTERRUPTED
    return 0


def _tools(_: argparse.Namespace) -> None:
    machine.check()
    figures = Figures()
    tools = binaries.everything(figures)
    for package, version in debian.versions(tools.folders[0]).items():
        print_line(f"{package} {version}")
    for tool_set in gobuild.EVERY_RUN:
        print_line(f"{tool_set.name} {tool_set.version}")


def _up(arguments: argparse.Namespace) -> None:
    cluster = Cluster.up(arguments.nodes)
    print_line(f"export KUBECONFIG={cluster.kubeconfig}")


def _down(_: argparse.Namespace) -> None:
    figures = Figures()
    with figures.phase("down"):
        Cluster.clean()


def _base_image(_: argparse.Namespace) -> None:
    print_line(str(images.build_base()))


def _image(arguments: argparse.Namespace) -> None:
    build_args = dict(_pair(text) for text in arguments.build_arg)
    print_line(str(images.build(arguments.target, arguments.tag, build_args, arguments.wheels)))


def _load(arguments: argparse.Namespace) -> None:
    machine.check()
    cluster = Cluster.attach()
    if cluster is None:
        raise HarnessError("No cluster is running on this machine; start one with `up`.")
    figures = Figures()
    with figures.phase(f"load {arguments.archive.name}"):
        cluster.load_image(arguments.archive)


def _pair(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator:
        raise HarnessError(f"--build-arg must have the form KEY=VALUE, got {text}.")
    return key, value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.harness", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(
        name: str, run: Callable[[argparse.Namespace], None], text: str
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        return command

    add("tools", _tools, "download and build all tools into the cache")
    up = add("up", _up, "remove any old cluster, then start a new one")
    up.add_argument("--nodes", type=int, default=2, help="real nodes; 0: control plane only")
    add("down", _down, "stop and remove the cluster")
    add("base-image", _base_image, "build the base image of all others")
    image = add("image", _image, "build one target of the Dockerfile into an archive")
    image.add_argument("--target", required=True)
    image.add_argument(
        "--tag", required=True, help="the image's name, with a tag other than latest"
    )
    image.add_argument("--build-arg", action="append", default=[], metavar="K=V")
    image.add_argument("--wheels", type=Path, help="a folder that the build mounts at /wheels")
    load = add("load", _load, "load an image archive into all nodes")
    load.add_argument("archive", type=Path)
    return parser


if __name__ == "__main__":
    ending.clean_up_when_terminated()
    sys.exit(main())
