"""Copy a whole checkpoint from one store to another one, bit by bit.

The copy has the same manifest. Each file is compared with its size and checksum in the manifest
while it is copied, so a damaged checkpoint is never committed as a copy.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import BinaryIO

from ddp_trainer.checkpoint.format import FILE_NAME, LARGEST_MANIFEST, BrokenCheckpointError
from ddp_trainer.checkpoint.store.base import Entry, Pending, Store
from ddp_trainer.checkpoint.store.directory import MANIFEST
from ddp_trainer.checkpoint.volume import Sleep, retried

_PIECE = 4 << 20
"""Bytes that are read at once."""
Pace = Callable[[int], None]
"""Function that is called for each piece with its bytes. It waits to limit the rate."""


def copy_checkpoint(
    source: Store,
    target: Store,
    name: str,
    *,
    may_commit: Callable[[], None] = lambda: None,
    prepare: Callable[[int], None] = lambda _: None,
    pace: Pace = lambda _: None,
    sleep: Sleep = time.sleep,
) -> int:
    """Copy a checkpoint, and return its bytes.

    All files stay open from the start, so the source may delete the checkpoint meanwhile.

    Args:
        source: Store with the checkpoint.
        target: Store that lacks it.
        name: Name of the checkpoint.
        may_commit: Function that is called right before the commit.
        prepare: Function that is called with the bytes of the checkpoint before they are copied.
        pace: Function that limits the rate.
        sleep: Function that waits between two tries.

    Raises:
        BrokenCheckpointError: If the checkpoint of the source is damaged.
        FileExistsError: If the target has the name.
        FileNotFoundError: If the source lacks the checkpoint.
        OSError: If a store fails.
    """
    manifest = read_manifest(source, name)
    expected = entries_of(manifest)
    with contextlib.ExitStack() as stack:
        opened = {file: stack.enter_context(source.open(name, file)) for file in expected}
        for file, entry in expected.items():
            size = opened[file].seek(0, os.SEEK_END)
            if size != entry["bytes"]:
                raise BrokenCheckpointError(f"{file} has {size} bytes, not {entry['bytes']}")
        total = sum(int(entry["bytes"]) for entry in expected.values())
        prepare(total)
        pending = stack.enter_context(target.begin(name))
        for file, entry in expected.items():
            act = partial(_put, pending, file, opened[file], int(entry["bytes"]), pace)
            if retried(act, sleep) != entry:
                raise BrokenCheckpointError(f"{file} does not match its entry in {MANIFEST}")
        pending.commit(manifest, may_commit)
    return total


def read_manifest(store: Store, name: str) -> bytes:
    """Return the content of a manifest.

    Raises:
        BrokenCheckpointError: If it is too large.
        FileNotFoundError: If the store lacks the checkpoint.
        OSError: If the store fails.
    """
    with store.open(name, MANIFEST) as file:
        content = file.read(LARGEST_MANIFEST + 1)
    if len(content) > LARGEST_MANIFEST:
        raise BrokenCheckpointError(f"{MANIFEST} is damaged")
    return content


def entries_of(manifest: bytes) -> dict[str, Entry]:
    """Return the entry of each file in a manifest.

    Raises:
        BrokenCheckpointError: If the manifest is damaged, or names a path instead of a file.
    """
    try:
        files = json.loads(manifest)["files"]
        entries: dict[str, Entry] = {
            file: {"bytes": entry["bytes"], "crc32": entry["crc32"]}
            for file, entry in files.items()
        }
        sizes_valid = all(type(e["bytes"]) is int and e["bytes"] >= 0 for e in entries.values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BrokenCheckpointError(f"{MANIFEST} is damaged") from error
    for file in entries:
        if not FILE_NAME.fullmatch(file) or file == MANIFEST:
            raise BrokenCheckpointError(f"{MANIFEST} lists {file!r:.80}, which is not a file name")
    if not sizes_valid:
        raise BrokenCheckpointError(f"{MANIFEST} is damaged")
    return entries


def _put(pending: Pending, file: str, opened: BinaryIO, size: int, pace: Pace) -> Entry:
    return pending.put(file, pieces(opened, size, pace))


def pieces(file: BinaryIO, size: int, pace: Pace = lambda _: None) -> Iterator[bytes]:
    """Yield a file from its begin, and at most one byte more than it should have."""
    file.seek(0)
    left = size + 1
    while left and (piece := file.read(min(_PIECE, left))):
        pace(len(piece))
        left -= len(piece)
        yield piece


class RateLimit:
    """A limit of bytes per second, as a `Pace`."""

    def __init__(
        self,
        bytes_per_second: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Sleep = time.sleep,
    ) -> None:
        """Limit the rate; None sets no limit."""
        self._rate = bytes_per_second
        self._clock = clock
        self._sleep = sleep
        self._free_at = 0.0

    def __call__(self, size: int) -> None:
        """Wait until the rate permits that many bytes."""
        if self._rate is None:
            return
        now = self._clock()
        self._free_at = max(self._free_at, now) + size / self._rate
        self._sleep(self._free_at - now)
