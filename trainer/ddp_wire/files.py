"""Files in a directory that other pods may write to, such as a run's directory on a shared claim.

Another pod can plant a symbolic link there that leads to files of this pod's private volumes, or a
named pipe on which a reader waits forever. Therefore these functions follow no link below the
trusted directory, and open regular files only. They keep each folder open while they use it, so
that another pod that replaces the folder by a link has no effect.
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
    """A link, pipe or device is where a regular file or a folder must be."""

    def __init__(self, path: Path, wanted: str) -> None:
        """Create the error.

        Args:
            path: The refused path.
            wanted: What must be there.
        """
        text = f"must be a {wanted}, not a link, pipe or device; remove it"
        super().__init__(errno.ELOOP, text, str(path))


def trusted_directory(directory: Path) -> Path:
    """Return the claim's mount path if a run's directory is below it, else the directory itself.

    Links above the trusted directory are safe, because the user who started the process chose them.
    """
    mount = Path(CHECKPOINT_MOUNT)
    return mount if directory.is_relative_to(mount) else directory


@contextlib.contextmanager
def open_folder(path: Path, directory: Path) -> Iterator[int]:
    """Open a folder until the `with` block ends. Create missing folders of its path.

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
    """Open a folder as `open_folder` does. Yield a path that stays valid if the folder moves.

    Errors name the original path. On a system without /proc, yield the original path.
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
        flags: Flags for `os.open`.

    Raises:
        PlantedFileError: If the path is no regular file, or one of its folders is a link.
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
        size = os.fstat(file.fileno()).st_size
        if limit is not None and size > limit:
            raise ValueError(f"{path} has more than {limit} bytes")
        # A read reserves as much memory as it may return.
        return file.read() if limit is None else file.read(min(limit, size))


def open_to_read(path: Path) -> int:
    """Open a regular file to read it, and return its descriptor. Its folders may be links.

    Raises:
        PlantedFileError: If it is a link, or not a regular file.
        OSError: If the volume fails.
    """
    return _open_regular(path, os.O_RDONLY, None)


def open_in_folder(path: Path) -> int:
    """Open a regular file to read it. Neither the file nor its folder may be a link.

    Raises:
        PlantedFileError: If one of them is.
        OSError: If the volume fails.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | _NO_LINK
    try:
        folder = os.open(path.parent, flags)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENOTDIR}:
            raise PlantedFileError(path.parent, "folder") from error
        raise
    try:
        return _open_regular(path, os.O_RDONLY, folder)
    finally:
        os.close(folder)


def replace_file(path: Path, text: str, *, sync: bool = False) -> None:
    """Replace a file of a run's directory atomically, even if several processes do so at once.

    Args:
        path: The file, directly in the run's directory.
        text: The new content.
        sync: Whether to flush the content to the volume before the rename.

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
    """Remove a file, or a folder with its content. If the path is a link, remove only the link.

    Args:
        path: The folder or file. It may be missing.
        directory: The run's directory.

    Raises:
        PlantedFileError: If a folder of the path is a link.
        OSError: If the volume fails. Files within a removed folder that cannot be deleted stay,
            without an error.
    """
    with open_folder(path.parent, directory) as folder, contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode):
            # It opens each folder without following links, too.
            shutil.rmtree(path.name, ignore_errors=True, dir_fd=folder)
        else:
            os.unlink(path.name, dir_fd=folder)


def _open_inner(path: Path, parent: int) -> int:
    """Open a subfolder of an open folder. Create the subfolder if it is missing."""
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
    """Open a regular file, within an open folder if one is given. Never block on a pipe."""
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
