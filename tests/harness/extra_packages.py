"""Packages that the development environment cannot or must not contain, in folders of the cache."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.harness.paths import REPOSITORY, cache


def folder(lock: str) -> Path:
    """Return a folder with the packages of a lock file, for PYTHONPATH. Install what is missing.

    Args:
        lock: Name of the file in `requirements/`, without `.lock`.
    """
    file = REPOSITORY / "requirements" / f"{lock}.lock"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:12]
    home = cache() / f"{lock}-packages-{digest}"
    if not home.is_dir():
        fresh = home.with_name(f".{home.name}.{os.getpid()}")
        install = ["-m", "uv", "pip", "install", "-q", "--no-deps", "--require-hashes"]
        subprocess.run(
            [sys.executable, *install, "--target", str(fresh), "-r", str(file)], check=True
        )
        with contextlib.suppress(OSError):  # Another process may have been faster.
            fresh.rename(home)
        shutil.rmtree(fresh, ignore_errors=True)
    return home


def environment(lock: str) -> dict[str, str]:
    """Return the environment of this process, in which Python finds the packages of a lock file."""
    path = os.pathsep.join(filter(None, [str(folder(lock)), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}
