"""Writer of TensorBoard's event files, without the package `tensorboard`.

The package is large (docs/develop/decisions/0013-trackers.md), but scalars need little code. A file
is a sequence of records. Each record is a protobuf message `Event` with its length and two
checksums.
"""

import os
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from ddp_wire.files import open_file

FOLDER = "tensorboard"
"""Folder in the run's directory with one event file per attempt."""

_POLYNOMIAL = 0x82F63B78
"""Polynomial of CRC-32C, with reversed bits."""


class TensorBoard:
    """Event file of one attempt."""

    def __init__(self, directory: Path, attempt: int) -> None:
        """Create the file.

        Args:
            directory: The run's directory.
            attempt: Number of the attempt.

        Raises:
            OSError: If the volume fails.
        """
        # TensorBoard reads the files in the order of their names.
        name = f"events.out.tfevents.{int(time.time()):010d}.attempt-{attempt}.{os.getpid()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._file = os.fdopen(open_file(directory / FOLDER / name, directory, flags), "ab")
        self._write(_text(3, b"brain.Event:2"))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Append the values of a step."""
        scalars = (
            _text(1, _text(1, name.encode()) + _key(2, 5) + struct.pack("<f", value))
            for name, value in values.items()
        )
        self._write(_key(2, 0) + _varint(step) + _text(5, b"".join(scalars)))

    def close(self, *, complete: bool) -> None:  # noqa: ARG002 - part of the interface of trackers
        """Close the file."""
        self._file.close()

    def _write(self, event: bytes) -> None:
        event = _key(1, 1) + struct.pack("<d", time.time()) + event
        length = struct.pack("<Q", len(event))
        checksums = [struct.pack("<I", masked_crc32c(data)) for data in (length, event)]
        self._file.write(length + checksums[0] + event + checksums[1])
        self._file.flush()


def masked_crc32c(data: bytes) -> int:
    """Return the masked CRC-32C of data, as the record format requires it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)  # noqa: PLW2901
        table.append(value)
    return table


_TABLE = _table()


def _key(field: int, kind: int) -> bytes:
    """Return a protobuf field key. Kind 0 is varint, 1 double, 2 length-delimited, 5 float."""
    return bytes([field << 3 | kind])


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - seven bits
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _text(field: int, content: bytes) -> bytes:
    return _key(field, 2) + _varint(len(content)) + content
