"""Run commands in the files of an image, without a container runtime."""

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.harness import images
from tools.release.oci_archive import OciArchive

_SCRIPT = """
set -e
root=$1 user=$2
shift 2
mount --bind "$root" "$root"
mount --bind /proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/tmp"
mount -o remount,bind,ro "$root"
exec chroot --userspec="$user" "$root" /usr/bin/env -i "$@"
"""
ANY_USER = "12345:0"
"""A user without an entry in /etc/passwd, with group 0, as OpenShift chooses them."""


@dataclass(frozen=True)
class Sandbox:
    """The files of an image, as the read-only root of processes that may write to /tmp only."""

    image: OciArchive
    root: Path

    @classmethod
    def of(cls, archive: Path, tag: str, folder: Path) -> Self:
        """Unpack the image of an archive."""
        oci = folder / f"{archive.stem}.oci.tar"
        images.write_oci(archive, tag, oci, compress=False)
        root = folder / archive.stem
        OciArchive(oci).unpack(root)
        return cls(OciArchive(oci), root)

    @property
    def settings(self) -> dict[str, Any]:
        """Return user, environment, labels and entry point of the image."""
        settings: dict[str, Any] = self.image.config()["config"]
        return settings

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command with the environment of the image and these variables."""
        given = [f"{key}={value}" for key, value in variables.items()]
        place = [f"--chdir={self.settings['WorkingDir']}", *self.settings["Env"], *given]
        script = ["unshare", "--mount", "sh", "-c", _SCRIPT, "sh", str(self.root), ANY_USER]
        return subprocess.run(
            [*script, *place, *command], capture_output=True, text=True, check=False, timeout=280
        )
