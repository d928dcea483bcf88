"""Outline a remote checkpoint as local files, without the numbers of its tensors.

An outline has the manifest, the JSON documents and the headers of the tensor files. Each file has
its size, but holes in place of numbers. So the checks of `checkpoint.contents` work on it, without
the space that the checkpoint needs. The checksums are compared while the files are read.
"""

import os
import zlib
from pathlib import Path

from ddp_trainer.checkpoint.format import MANIFEST, BrokenCheckpointError
from ddp_trainer.checkpoint.header import LARGEST_HEADER
from ddp_trainer.checkpoint.remote.copying import entries_of, pieces, read_manifest
from ddp_trainer.checkpoint.store.base import Store

_LENGTH = 8
"""Bytes of the length of a header."""


def write_outline(store: Store, name: str, folder: Path, *, checksums: bool) -> str | None:
    """Write the outline of a checkpoint to a new folder of this name.

    Args:
        store: The store.
        name: Name of the checkpoint.
        folder: Existing folder, to which the outline is added.
        checksums: Whether to read each file and compare its CRC32.

    Returns:
        The evidence of a wrong checksum, or None.

    Raises:
        OSError: If the store or the local disk fails.
    """
    target = folder / name
    target.mkdir()
    manifest = read_manifest(store, name)
    (target / MANIFEST).write_bytes(manifest)
    try:
        entries = entries_of(manifest)
    except BrokenCheckpointError as error:
        return str(error)
    wrong = None
    for file, entry in entries.items():
        try:
            crc = _outline_file(store, name, file, target, checksums=checksums)
        except FileNotFoundError:
            continue  # The check of the outline states this.
        except BrokenCheckpointError as error:
            wrong = wrong or str(error)
            continue
        if checksums and crc != entry["crc32"] and wrong is None:
            wrong = f"{file} does not match its CRC32"
    return wrong


def _outline_file(store: Store, name: str, file: str, target: Path, *, checksums: bool) -> str:
    """Write one file of an outline, and return its CRC32 if it is read to its end."""
    crc = 0
    with store.open(name, file) as opened, (target / file).open("xb") as written:
        size = opened.seek(0, os.SEEK_END)
        opened.seek(0)
        kept = size if file.endswith(".json") else _header_end(opened.read(_LENGTH))
        limit = size if checksums else min(kept, size)
        done = 0
        for piece in pieces(opened, limit):
            crc = zlib.crc32(piece, crc)
            written.write(piece[: max(0, min(len(piece), kept - done))])
            done += len(piece)
            if done >= limit:
                break
        written.truncate(size)
    return f"{crc:08x}"


def _header_end(start: bytes) -> int:
    return _LENGTH + min(int.from_bytes(start, "little"), LARGEST_HEADER)
