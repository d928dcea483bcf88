"""`python -m tests.harness COMMAND`: the cluster and its images from the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tests.harness import binaries, debian, ending, gobuild, images, machine
from tests.harness.cluster import Cluster
from tests.harness.errors import HarnessError
from tests.harness.run import Figures, say

_FAILED: Final = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status: 0, or 2 with one sentence on stderr."""
    arguments = _parser().parse_args(argv)
    command: Callable[[argparse.Namespace], None] = arguments.run
    try:
        command(arguments)
    except HarnessError as error:
        print(error, file=sys.stderr)
        return _FAILED
    except OSError as error:
        print(f"This machine refused: {error}.", file=sys.stderr)
        return _FAILED
    except KeyboardInterrupt:
        return ending.INTERRUPTED
    return 0


def _tools(_: argparse.Namespace) -> None:
    machine.check()
    figures = Figures()
    tools = binaries.everything(figures)
    for package, version in debian.versions(tools.folders[0]).items():
        say(f"{package} {version}")
    for family in (gobuild.KUBERNETES, gobuild.COREDNS, gobuild.HELM):
        say(f"{family.name} {family.version}")


def _up(arguments: argparse.Namespace) -> None:
    cluster = Cluster.up(arguments.nodes)
    say(f"export KUBECONFIG={cluster.kubeconfig}")


def _down(_: argparse.Namespace) -> None:
    figures = Figures()
    with figures.phase("down"):
        Cluster.clean()


def _base_image(_: argparse.Namespace) -> None:
    say(str(images.build_base()))


def _image(arguments: argparse.Namespace) -> None:
    build_args = dict(_pair(text) for text in arguments.build_arg)
    say(str(images.build(arguments.target, arguments.tag, build_args, arguments.wheels)))


def _load(arguments: argparse.Namespace) -> None:
    machine.check()
    cluster = Cluster.attach()
    if cluster is None:
        raise HarnessError("No cluster runs on this machine; bring one up first.")
    figures = Figures()
    with figures.phase(f"load {arguments.archive.name}"):
        cluster.load_image(arguments.archive)


def _pair(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator:
        raise HarnessError(f"--build-arg wants KEY=VALUE, not {text}.")
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

    add("tools", _tools, "fetch and build everything into the cache")
    up = add("up", _up, "end any left-over, then bring up a new cluster")
    up.add_argument("--nodes", type=int, default=2, help="real nodes; 0: a control plane alone")
    add("down", _down, "end everything")
    add("base-image", _base_image, "make the base image of all others")
    image = add("image", _image, "build one target of the Dockerfile into an archive")
    image.add_argument("--target", required=True)
    image.add_argument("--tag", required=True, help="its name, with a tag other than latest")
    image.add_argument("--build-arg", action="append", default=[], metavar="K=V")
    image.add_argument("--wheels", type=Path, help="a folder, seen as /wheels by the build")
    load = add("load", _load, "load an image archive into all nodes")
    load.add_argument("archive", type=Path)
    return parser


if __name__ == "__main__":
    ending.clean_up_when_terminated()
    sys.exit(main())
