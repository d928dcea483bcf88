"""Unmount everything below a folder, so that removing it deletes nothing else."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

from tests.harness.errors import HarnessError
from tests.harness.run import poll

_LIMIT_S: Final = 10.0


def unmount_below(folder: Path) -> None:
    """Unmount everything below a folder, the latest first.

    Raises:
        HarnessError: A file system stays mounted.
    """

    def none_left() -> bool:
        points = _below(folder)
        if points:
            argv = ["umount", "--lazy", *reversed(points)]
            subprocess.run(argv, check=False, capture_output=True)
        return not points

    if not poll(none_left, deadline_s=_LIMIT_S):
        raise HarnessError(f"{_below(folder)[-1]} cannot be unmounted.")


def remove_tree(folder: Path) -> None:
    """Remove a folder that may contain mounts.

    Raises:
        HarnessError: A file system stays mounted; nothing is removed then.
    """
    unmount_below(folder)
    shutil.rmtree(folder)


def _below(folder: Path) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    points = [line.split()[4].encode().decode("unicode_escape") for line in lines]
    return [point for point in points if point.startswith(f"{folder}/")]
