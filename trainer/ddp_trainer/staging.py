"""Copies of data on a node's own disk, made once per node, for volumes that are slow to read."""

import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

from ddp_trainer.errors import InputError


def staged(source: Path, into: Path | None = None) -> Path:
    """A copy of a file or folder on this node's own disk.

    The first process of the node that asks makes it, the others wait; later attempts find it. It is
    made anew when the source's own size or modification time is another one (a folder's changes
    with its entries, not with what is in their files).

    Args:
        source: On a shared volume, say.
        into: Folder of all copies; one of this user's in the place for temporary files when not
            stated (`TMPDIR`, or `/tmp`: in a pod a volume that goes with it).

    Returns:
        The copy, or the source itself where it cannot be copied: a warning says why then.

    Raises:
        InputError: If there is no such source.
    """
    try:
        copy = _place(source.resolve(strict=True), into or _own_folder())
    except FileNotFoundError as error:
        raise InputError(f"data: there is no {source} to be staged") from error
    try:
        folder = copy.parent.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise PermissionError(f"{folder} is another user's")
        copy.parent.mkdir(exist_ok=True)
        with copy.parent.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # goes with this process, whatever ends it
            if not copy.exists():
                _copy(source, copy)
    except OSError as error:
        sentence = f"warning: {source} is read where it is, for it cannot be staged: {error}"
        print(sentence, file=sys.stderr, flush=True)
        return source
    return copy


def _own_folder() -> Path:
    return Path(tempfile.gettempdir()) / f"ddp-staged-{os.getuid()}"


def _place(source: Path, folder: Path) -> Path:
    """Where the copy of this version of the source belongs."""
    seen = source.stat()
    version = repr((str(source), seen.st_size, seen.st_mtime_ns)).encode()
    return folder / hashlib.blake2b(version, digest_size=8).hexdigest() / source.name


def _copy(source: Path, copy: Path) -> None:
    """Copies under another name first: under its own it is whole."""
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
