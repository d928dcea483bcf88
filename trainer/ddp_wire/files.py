"""Files in a directory that other pods may write to, such as a run's directory on a shared claim.

Another pod can plant a link there that leads to files of this pod's private volumes, or a pipe on
which a reader waits forever. So these functions follow no link below the trusted directory, and
open regular files only. They hold each folder open while they use it, so that no other pod can
replace it by a link during that time.
"""

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from ddp_wire.contract import CHECKPOINT_MOUNT

_NO_LINK = os.O_NOFOLLOW


class PlantedFileError(OSError):
    """Refusal of a link, pipe or device where a regular file or a folder must be."""

    def __init__(self, path: Path, wanted: str) -> None:
        """Create the error.

        Args:
            path: The refused path.
            wanted: What must be there.
        """
        text = f"must be a {wanted}, not a link, pipe or device; remove it"
        super().__init__(errno.ELOOP, text, str(path))


def trusted_directory(directory: Path) -> Path:
    """Return the claim's mount if a run's directory is in it, else the directory itself.

    The user who started the process chose the links above it.
    """
    mount = Path(CHECKPOINT_MOUNT)
    return mount if directory.is_relative_to(mount) else directory


@contextlib.contextmanager
def open_folder(path: Path, directory: Path) -> Iterator[int]:
    """Hold a folder open. Create it and its parents if they are missing.

    Args:
        path: The folder.
        directory: The run's directory, or the folder itself.

    Yields:
        A descriptor, for the `dir_fd` of the functions in `os`.

    Raises:
        PlantedFileError: If a part of the path below the trusted directory is not a folder.
        OSError: If the volume fails.
    """
    root = trusted_directory(directory)
    root.mkdir(parents=True, exist_ok=True)
    held = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        reached = root
        for name in path.relative_to(root).parts:
            reached /= name
            inner = _open_inner(reached, held)
            os.close(held)
            held = inner
        yield held
    finally:
        os.close(held)


@contextlib.contextmanager
def held_path(path: Path, directory: Path) -> Iterator[Path]:
    """Hold a folder open as `open_folder` does. Yield a path that leads to it even when it moves.

    Errors name the real path. Without /proc, the result is the path itself.
    """
    with open_folder(path, directory) as descriptor:
        held = Path(f"/proc/self/fd/{descriptor}")
        try:
            yield held if held.is_dir() else path
        except OSError as error:
            if isinstance(error.filename, str):
                error.filename = error.filename.replace(str(held), str(path))
            if error.strerror:
                error.strerror = error.strerror.replace(str(held), str(path))
            raise


def open_file(path: Path, directory: Path, flags: int) -> int:
    """Open a regular file, and return its descriptor. Create its folder if it is missing.

    Args:
        path: The file.
        directory: The run's directory.
        flags: Flags of `os.open`.

    Raises:
        PlantedFileError: If it is a link, or not a regular file, or a folder of its path is a link.
        OSError: If the volume fails.
    """
    with open_folder(path.parent, directory) as folder:
        return _open_regular(path, flags, folder)


def read_file(path: Path, limit: int | None = None) -> bytes:
    """Return the content of a regular file.

    Args:
        path: The file. Its folders may be links.
        limit: Largest size in bytes. None for any size.

    Raises:
        PlantedFileError: If it is a link, or not a regular file.
        ValueError: If it is larger than the limit.
        OSError: If the volume fails.
    """
    with os.fdopen(open_to_read(path), "rb") as file:
        if limit is not None and os.fstat(file.fileno()).st_size > limit:
            raise ValueError(f"{path} has more than {limit} bytes")
        return file.read(limit)


def open_to_read(path: Path) -> int:
    """Open a regular file to read it, and return its descriptor. Its folders may be links.

    Raises:
        PlantedFileError: If it is a link, or not a regular file.
        OSError: If the volume fails.
    """
    return _open_regular(path, os.O_RDONLY, None)


def replace_file(path: Path, text: str, *, sync: bool = False) -> None:
    """Replace a file of a run's directory atomically, even if several processes do so at once.

    Args:
        path: The file, directly in the run's directory.
        text: The new content.
        sync: Whether to flush it to the volume before it gets its name.

    Raises:
        OSError: If the volume fails. Then the old file stays.
    """
    pending = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    with open_folder(path.parent, path.parent) as folder:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            with os.fdopen(_open_regular(pending, flags, folder), "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                if sync:
                    os.fsync(file.fileno())
            os.replace(pending.name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(pending.name, dir_fd=folder)
            raise


def remove(path: Path, directory: Path) -> None:
    """Remove a folder with its content, or a file. Of a link, remove the link only.

    Args:
        path: The folder or file. It may be missing.
        directory: The run's directory.

    Raises:
        PlantedFileError: If a folder of its path is a link.
        OSError: If the volume fails. Of a folder, a part may stay then, without an error.
    """
    with open_folder(path.parent, directory) as folder, contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode):
            # It opens each folder without following links, too.
            shutil.rmtree(path.name, ignore_errors=True, dir_fd=folder)
        else:
            os.unlink(path.name, dir_fd=folder)


def _open_inner(path: Path, parent: int) -> int:
    """Open a folder of an open folder. Create it if it is missing."""
    if path.name == "..":
        raise PlantedFileError(path, "folder")
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | _NO_LINK
    try:
        try:
            return os.open(path.name, flags, dir_fd=parent)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                os.mkdir(path.name, dir_fd=parent)
            return os.open(path.name, flags, dir_fd=parent)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENOTDIR}:
            raise PlantedFileError(path, "folder") from error
        raise


def _open_regular(path: Path, flags: int, folder: int | None) -> int:
    """Open a file of an open folder. Never wait for the other end of a pipe."""
    safe = flags | _NO_LINK | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        file = os.open(path if folder is None else path.name, safe, 0o666, dir_fd=folder)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO}:
            raise PlantedFileError(path, "regular file") from error
        raise
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    raise PlantedFileError(path, "regular file")
