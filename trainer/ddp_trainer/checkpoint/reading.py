"""Mark a checkpoint as read, so that the run which owns it does not delete it meanwhile.

A reader holds a shared lock on the manifest. Retention deletes a checkpoint only if it gets the
exclusive lock, and otherwise tries again after the next save. The kernel frees the lock of a reader
that ends in any way. Over NFS the lock also works between nodes; on a file system without locks a
reader may lose its checkpoint and gets an error.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from ddp_trainer.checkpoint.format import MANIFEST
from ddp_wire.files import open_to_read


@contextlib.contextmanager
def kept(path: Path) -> Iterator[None]:
    """Keep a checkpoint from being deleted until the `with` block ends.

    Args:
        path: A checkpoint. A folder without a manifest, or a file, has no lock.

    Raises:
        FileNotFoundError: If the checkpoint is deleted at the same moment.
    """
    try:
        descriptor = open_to_read(path / MANIFEST)
    except OSError:
        yield  # It is no checkpoint. The reader's own error says more.
        return
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        if not os.path.samestat(os.fstat(descriptor), (path / MANIFEST).stat()):
            raise FileNotFoundError(f"{path} was replaced")
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Yield whether nobody reads a checkpoint. No reader can begin until the `with` block ends."""
    try:
        # NFS needs a descriptor that may write for an exclusive lock.
        descriptor = os.open(path / MANIFEST, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        yield True  # Without a manifest it is no checkpoint that anybody can use.
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        free = False
    except OSError:
        free = True  # The file system has no locks.
    else:
        free = True
    try:
        yield free
    finally:
        os.close(descriptor)
