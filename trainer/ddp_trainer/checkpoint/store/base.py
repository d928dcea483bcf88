"""The protocol of a store: what checkpoints need from the place that holds them.

A checkpoint is a named set of files with a manifest. A store shows a checkpoint only after its
commit, whether or not the store can rename. Names and files are plain texts here; their form is
that of `checkpoint.format`.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import BinaryIO, Protocol

Entry = dict[str, int | str]
"""Entry of a file in a manifest: `bytes`, and `crc32` as eight hexadecimal digits."""
Part = bytes | memoryview
"""Piece of a file's content."""


class Writable(Protocol):
    """A new checkpoint that takes files."""

    def put(self, file: str, parts: Iterable[Part]) -> Entry:
        """Write one file. It is durable when the call returns.

        Args:
            file: Name of the file. It must be new.
            parts: The content, piece by piece.

        Returns:
            The file's entry in the manifest.

        Raises:
            OSError: If the store fails.
        """


class Pending(Writable, Protocol):
    """A checkpoint that is being written. Readers do not see it before its commit."""

    def commit(self, manifest: bytes, may_commit: Callable[[], None]) -> None:
        """Write the manifest, then make the checkpoint visible as a whole.

        Args:
            manifest: Content of the manifest.
            may_commit: Function that is called right before the checkpoint becomes visible. It
                raises an error if this attempt no longer owns the store.

        Raises:
            OSError: If the store fails.
        """


class Store(Protocol):
    """A place that holds the checkpoints of one run."""

    def list(self) -> list[str]:
        """Return the names of all checkpoints, and of other entries, in any order.

        Raises:
            OSError: If the store fails. A missing store is empty.
        """

    def open(self, name: str, file: str) -> BinaryIO:
        """Open a file of a checkpoint for reading.

        Raises:
            FileNotFoundError: If the store has no such file.
            OSError: If the store fails.
        """

    def begin(self, name: str) -> AbstractContextManager[Pending]:
        """Begin a checkpoint. Readers never see what its context does not commit.

        Raises:
            FileExistsError: If the name exists.
            OSError: If the store fails.
        """

    def delete(self, name: str) -> None:
        """Delete a checkpoint, which disappears as a whole.

        Raises:
            OSError: If the store fails.
        """
