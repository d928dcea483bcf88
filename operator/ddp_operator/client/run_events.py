"""Read the events of a run from its directory, or from the folder of a local run."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from ddp_operator.client.errors import RequestError
from ddp_wire.contract import HISTORY_FILE
from ddp_wire.files import PlantedFileError, open_to_read

FILE_BYTES = 1 << 28
"""Maximum number of bytes that are read from one file of events, four times the limit of a
history."""
LINE_BYTES = 1 << 20
"""Maximum number of bytes of one line. The rest of a longer line is read as additional lines."""


def history_files(folder: Path) -> list[Path]:
    """Return the newest history in the volumes of a local run. Without one, return a log."""
    volumes = folder / "volumes"
    found = [*volumes.glob(f"*/*/{HISTORY_FILE}"), *volumes.glob(f"*/*/*/{HISTORY_FILE}")]
    if found:
        return [max(found, key=lambda path: path.stat().st_mtime)]
    return sorted(folder.glob("logs/*-0.log"))[:1]


def read_lines(paths: Iterable[Path]) -> Iterator[bytes]:
    """Yield the lines of files. Limit their length, because an attacker may have written them.

    Raises:
        RequestError: A file is a link, a pipe or a device.
    """
    for path in paths:
        try:
            descriptor = open_to_read(path)
        except PlantedFileError as error:
            raise RequestError(f"{error.filename}: {error.strerror}") from error
        with os.fdopen(descriptor, "rb") as file:
            left = FILE_BYTES
            while left > 0 and (line := file.readline(min(left, LINE_BYTES))):
                left -= len(line)
                yield line
