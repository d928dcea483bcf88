"""Run buildah with separate storage, so that no other storage on the machine changes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.harness.run import command

_BUILD_LIMIT_S: Final = 3600
TIMESTAMP: Final = 1_000_000_000
"""Seconds of the Unix epoch: the time of all files and images, so that equal builds are equal and
layers are shared. A ZIP archive cannot hold the files of 1970."""


@dataclass(frozen=True)
class Storage:
    """A folder with the images and layers of builds.

    Attributes:
        folder: The folder; created on first use.
    """

    folder: Path

    def commit_root(self, root: Path, image: str) -> None:
        """Create an image of one layer from a root file system.

        Raises:
            HarnessError: buildah failed.
        """
        container = self._run(["from", "scratch"], "Creating an image").strip()
        self._run(["add", "--quiet", container, root, "/"], "Adding the root file system")
        settings = ["--env", "LANG=C.UTF-8", "--cmd", "python3"]
        self._run(["config", *settings, container], "Configuring the image")
        self._run(["commit", "--quiet", "--rm", container, image], "Committing the image")

    def load(self, archive: Path) -> None:
        """Load the image of an archive into the storage.

        Raises:
            HarnessError: buildah failed.
        """
        self._run(["pull", "--quiet", f"docker-archive:{archive}"], f"Reading {archive.name}")

    def build(
        self,
        *,
        context: Path,
        target: str,
        image: str,
        build_args: Mapping[str, str],
        mounts: Sequence[str],
    ) -> None:
        """Build one target of the Dockerfile in `context`, reusing layers of earlier builds.

        Args:
            context: The folder of the build's context.
            target: The name of the stage.
            image: The name of the image.
            build_args: Build arguments.
            mounts: Files of this machine that RUN instructions read, as `SOURCE:PATH:ro`.

        Raises:
            HarnessError: The build failed; its last lines are in the text.
        """
        options = ["--isolation=chroot", "--network=host", "--pull-never"]
        options += ["--layers", f"--timestamp={TIMESTAMP}"]
        pairs = [f"--build-arg={key}={value}" for key, value in build_args.items()]
        volumes = [f"--volume={mount}" for mount in mounts]
        names = [f"--target={target}", f"--tag={image}", f"--file={context / 'Dockerfile'}"]
        self._run(["bud", *options, *pairs, *volumes, *names, context], f"Building {image}")

    def export(self, image: str, archive: Path) -> None:
        """Write an image to an archive, uncompressed because it is read as often as written.

        Raises:
            HarnessError: buildah failed.
        """
        archive.unlink(missing_ok=True)
        self._run(["push", "--quiet", image, f"docker-archive:{archive}:{image}"], "Exporting")

    def export_oci(self, image: str, archive: Path, *, compress: bool) -> None:
        """Write an image to an OCI archive, with the layers compressed as in a registry or not.

        Raises:
            HarnessError: buildah failed.
        """
        archive.unlink(missing_ok=True)
        tag = image.rpartition(":")[2]
        options = ["--quiet", "--format=oci", *([] if compress else ["--disable-compression"])]
        self._run(["push", *options, image, f"oci-archive:{archive}:{tag}"], "Exporting")

    def _run(self, arguments: Sequence[str | Path], what: str) -> str:
        self.folder.mkdir(parents=True, exist_ok=True)
        policy = self.folder / "policy.json"
        policy.write_text(json.dumps({"default": [{"type": "insecureAcceptAnything"}]}))
        options: list[str | Path] = [
            f"--root={self.folder / 'root'}",
            f"--runroot={self.folder / 'run'}",
            "--storage-driver=overlay",
        ]
        verb, *rest = arguments
        signature = [] if verb in _WITHOUT_POLICY else [f"--signature-policy={policy}"]
        argv = ["buildah", *options, verb, *signature, *rest]
        return command(argv, what, timeout_s=_BUILD_LIMIT_S)


_WITHOUT_POLICY: Final = {"add", "config"}
