"""Copy slow shared data to a node's local disk, once per node."""

import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

from ddp_trainer.errors import InputError


def staged(source: Path, into: Path | None = None) -> Path:
    """Copy a file or folder to this node's local disk and return the copy.

    The first process on the node that calls this function makes the copy, and the others wait.
    Later attempts reuse the copy. If the source's size or modification time changes, the next call
    copies again. The modification time of a folder changes with its entries, but not with the
    contents of its files.

    Args:
        source: Path of the data, for example on a shared volume.
        into: Folder that holds all copies. Default: a folder of this user in the directory for
            temporary files (`TMPDIR`, or `/tmp`). In a pod that directory ends with the pod.

    Returns:
        Path of the copy. If copying fails, print a warning and return `source` itself.

    Raises:
        InputError: If `source` does not exist.
    """
    try:
        copy = _copy_path(source.resolve(strict=True), into or _default_folder())
    except FileNotFoundError as error:
        raise InputError(f"data: cannot stage {source}: it does not exist") from error
    try:
        folder = copy.parent.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise PermissionError(f"another user owns {folder}")
        if into is None and folder.is_symlink():
            raise PermissionError(f"{folder} is a link, which another user may have created")
        copy.parent.mkdir(exist_ok=True)
        with copy.parent.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel releases it when this process ends
            if not copy.exists():
                _copy(source, copy)
    except OSError as error:
        sentence = f"warning: cannot stage {source}, reading it in place: {error}"
        print(sentence, file=sys.stderr, flush=True)
        return source
    return copy


def _default_folder() -> Path:
    return Path(tempfile.gettempdir()) / f"ddp-staged-{os.getuid()}"


def _copy_path(source: Path, folder: Path) -> Path:
    """Return the path for the copy of this version of the source."""
    found = source.stat()
    version = repr((str(source), found.st_size, found.st_mtime_ns)).encode()
    return folder / hashlib.blake2b(version, digest_size=8).hexdigest() / source.name


def _copy(source: Path, copy: Path) -> None:
    """Copy to a temporary name and rename, so that `copy` is complete whenever it exists."""
    pending = copy.with_name(f".{copy.name}.tmp")
    _remove(pending)
    try:
        if source.is_dir():
            shutil.copytree(source, pending)
        else:
            shutil.copy2(source, pending)
        pending.rename(copy)
    except OSError:
        _remove(pending)
        raise


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
