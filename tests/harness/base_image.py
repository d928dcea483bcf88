"""Build the base image: a small Debian with Python, in place of the public Python image."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.harness import debian, machine, mounts, paths
from tests.harness.buildah import Storage
from tests.harness.locks import building
from tests.harness.run import Figures, command

IMAGE: Final = "localhost/python:3.11-slim"
_SUITE: Final = "bookworm"
_PACKAGES: Final = ("ca-certificates", "python3", "python3-pip")
# Not wanted in an image: lists and caches of apt, texts, and what forbids pip to install.
_REMOVED: Final = (
    "dev/*",
    "etc/machine-id",
    "run/*",
    "tmp/*",
    "usr/lib/python3*/EXTERNALLY-MANAGED",
    "usr/share/doc/*",
    "usr/share/info/*",
    "usr/share/locale/*",
    "usr/share/man/*",
    "var/cache/apt/*",
    "var/cache/debconf/*-old",
    "var/cache/ldconfig/*",
    "var/lib/apt/lists/*",
    "var/lib/dpkg/*-old",
    "var/log/*",
)


def build(figures: Figures) -> Path:
    """Make the base image unless the cache has it; return its archive.

    Raises:
        HarnessError: The user is not root, or debootstrap or buildah failed.
    """
    target = paths.cache() / "images" / f"base-{_key()}.tar"
    if target.is_file():
        return target
    machine.check()
    debian.ensure(debian.IMAGE_PACKAGES)
    with building(target.parent / "base.lock", "the base image"):
        if not target.is_file():
            start = time.monotonic()
            _build_into(target)
            figures.note("build base image", time.monotonic() - start, IMAGE)
    return target


def _key() -> str:
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]


def _build_into(target: Path) -> None:
    for left_over in target.parent.glob(".base-*"):
        mounts.remove_tree(left_over)
    work = Path(tempfile.mkdtemp(prefix=".base-", dir=target.parent))
    try:
        _bootstrap(work / "root")
        _slim(work / "root")
        storage = Storage(work / "storage")
        storage.commit_root(work / "root", IMAGE)
        fresh = target.with_suffix(".part")
        storage.export(IMAGE, fresh)
        fresh.rename(target)
    finally:
        mounts.remove_tree(work)


def _bootstrap(root: Path) -> None:
    command(
        [
            "debootstrap",
            "--variant=minbase",
            f"--include={','.join(_PACKAGES)}",
            f"--keyring={debian.KEYRING}",
            f"--cache-dir={_package_cache()}",
            _SUITE,
            root,
            debian.mirror(),
        ],
        "debootstrap",
        timeout_s=1800,
    )


def _package_cache() -> Path:
    folder = paths.cache() / "debootstrap"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _slim(root: Path) -> None:
    for pattern in _REMOVED:
        for path in root.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    (root / "usr" / "bin" / "python").symlink_to("python3")
