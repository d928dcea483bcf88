"""The store in a directory, such as a run's directory on a volume.

A checkpoint is a folder. It is written under its name with the suffix `.tmp`, and a rename commits
it. The parent folder is flushed, so that the rename survives a crash of the machine. Another pod
may write to the same volume, so no link below the directory is followed (`ddp_wire.files`).
"""

import contextlib
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from ddp_trainer.checkpoint.store.base import Entry, Part
from ddp_wire.files import PlantedFileError, held_path, open_in_folder, remove, replace_file
from ddp_wire.records import PENDING

BROKEN = ".broken"
"""Suffix of a checkpoint that failed its check. The checkpoint is kept until newer ones replace
it."""
MANIFEST = "MANIFEST.json"


class PendingFolder:
    """A checkpoint in a folder that readers ignore."""

    def __init__(self, folder: Path, *, reuse: bool = False) -> None:
        """Write to an existing folder.

        Args:
            folder: Path of the folder, which stays valid if the folder moves.
            reuse: Whether to overwrite files, whose memory or blocks are used again. Otherwise
                the folder must be empty.
        """
        self.folder = folder
        self._reuse = reuse

    def put(self, file: str, parts: Iterable[Part]) -> Entry:
        """Write one file, and flush it to the volume."""
        size, crc = 0, 0
        with self._opened(self.folder / file) as opened:
            try:
                for part in parts:
                    opened.write(part)
                    crc = zlib.crc32(part, crc)
                    size += len(part)
                opened.truncate()
                opened.flush()
                os.fsync(opened.fileno())
            except BaseException:
                (self.folder / file).unlink()  # The name stays free for another try.
                raise
        return {"bytes": size, "crc32": f"{crc:08x}"}

    def _opened(self, path: Path) -> BinaryIO:
        """Open a file for writing at its beginning, without deleting its content."""
        kind = 0 if self._reuse else os.O_EXCL
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | kind
        return os.fdopen(os.open(path, flags, 0o666), "r+b")

    def seal(self, manifest: bytes) -> None:
        """Write the manifest, and flush the folder."""
        self.put(MANIFEST, [manifest])
        sync(self.folder)


class _Uncommitted(PendingFolder):
    """A pending folder, and the name that its commit gives it."""

    def __init__(self, folder: Path, pending: Path, final: Path) -> None:
        super().__init__(folder)
        self._pending = pending
        self._final = final
        self.committed = False

    def commit(
        self, manifest: bytes, may_commit: Callable[[], None], without: Iterable[str] = ()
    ) -> None:
        """Write the manifest, rename the folder, and flush the rename.

        Args:
            manifest: Content of the manifest.
            may_commit: As in `Pending`.
            without: Files to delete before, which are no part of the checkpoint.
        """
        (self.folder / MANIFEST).unlink(missing_ok=True)  # An earlier try may have left it.
        self.seal(manifest)
        for file in without:
            (self.folder / file).unlink(missing_ok=True)
        if not os.path.samestat(self.folder.stat(), self._pending.lstat()):
            raise PlantedFileError(self._pending, "folder")
        may_commit()
        self._pending.rename(self._final)
        self.committed = True
        sync(self._final.parent)


class DirectoryStore:
    """The checkpoints in a directory."""

    def __init__(self, directory: Path) -> None:
        """Access a directory, which need not exist."""
        self.directory = directory

    def list(self) -> list[str]:
        """Return the names of all entries, in any order.

        Raises:
            OSError: If the volume fails. A missing directory is empty.
        """
        try:
            return [entry.name for entry in self.directory.iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def open(self, name: str, file: str) -> BinaryIO:
        """Open a file of a checkpoint for reading.

        Raises:
            PlantedFileError: If the file or its folder is a link, or not a regular file.
            OSError: If the file is missing, or the volume fails.
        """
        return os.fdopen(open_in_folder(self.directory / name / file), "rb")

    @contextlib.contextmanager
    def begin(self, name: str) -> Iterator[_Uncommitted]:
        """Begin a checkpoint. Its folder is deleted unless the context commits it.

        Raises:
            OSError: If the volume fails, or the name exists.
        """
        pending = self._create(name)
        committed = False
        try:
            with self.joined(name) as uncommitted:
                yield uncommitted
                committed = uncommitted.committed
        finally:
            if not committed:
                with contextlib.suppress(OSError):
                    remove(pending, self.directory)

    def create(self, name: str) -> None:
        """Begin a checkpoint that several processes write (`joined`). It stays until `delete`.

        Raises:
            OSError: If the volume fails, or the name exists.
        """
        self._create(name)
        sync(self.directory)

    @contextlib.contextmanager
    def joined(self, name: str) -> Iterator[_Uncommitted]:
        """Open a checkpoint that is begun.

        Raises:
            OSError: If the volume fails, or the checkpoint is not begun.
        """
        final, pending = self.directory / name, self.directory / (name + PENDING)
        pending.lstat()  # Never create the folder: another attempt may have deleted it.
        with held_path(pending, self.directory) as folder:
            yield _Uncommitted(folder, pending, final)

    def _create(self, name: str) -> Path:
        final, pending = self.directory / name, self.directory / (name + PENDING)
        if os.path.lexists(final):
            raise FileExistsError(f"{final} exists already")
        pending.mkdir()
        return pending

    def delete(self, name: str) -> None:
        """Rename a folder, then delete it, so that it never looks like a checkpoint.

        Raises:
            OSError: If the volume fails.
        """
        pending = name if name.endswith(PENDING) else name.removesuffix(BROKEN) + PENDING
        if pending != name:
            (self.directory / name).rename(self.directory / pending)
        remove(self.directory / pending, self.directory)


def sync(path: Path) -> None:
    """Flush a file, or the entries of a directory, to the volume."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_json(path: Path, document: object) -> None:
    """Replace a JSON document atomically, even if several processes do so at the same time."""
    replace_file(path, json.dumps(document, indent=1), sync=True)
    sync(path.parent)
