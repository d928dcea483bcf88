"""The format of a checkpoint on disk: names, manifest, and the check for completeness.

    step-00000120.attempt-2/
        model.safetensors       parameters and buffers by their names in the bare model
        optimizer.safetensors   state tensors as <key>/<parameter name>
        optimizer.json          the optimizer's other state and its groups
        ema.safetensors         moving average of the weights, by the same names; optional
        compression.safetensors residues and matrices of gradient compression; optional
        buffers.safetensors     buffers of each rank as <rank>/<name>; optional
        task.json               the task's own state (see `checkpoint.tree`); optional
        task.safetensors        the tensors in it; optional
        state.json              position, loss scaling, configuration (see `saved_state`)
        MANIFEST.json           size and CRC32 of each of these files; written last
    step-00000100.attempt-1.broken/     a damaged checkpoint
    set-aside-1/                        the checkpoints of a run that started over

If several ranks write a checkpoint, each file of tensors is divided into parts, with names such as
`model-00001-of-00004.safetensors` (`checkpoint.parts`), and the format is `SHARDED`.

The files hold only tensors and JSON, so loading a checkpoint can never run code.
"""

import json
import os
import re
import stat
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddp_trainer.checkpoint.store.base import Entry
from ddp_trainer.checkpoint.store.directory import (
    BROKEN as BROKEN,  # noqa: PLC0414 (part of the format)
)
from ddp_trainer.checkpoint.store.directory import MANIFEST as MANIFEST  # noqa: PLC0414
from ddp_trainer.checkpoint.store.directory import DirectoryStore
from ddp_trainer.checkpoint.store.directory import sync as sync  # noqa: PLC0414
from ddp_trainer.errors import InputError
from ddp_trainer.saved_state import LARGEST_NUMBER
from ddp_wire.files import PlantedFileError, open_to_read, read_file
from ddp_wire.records import PENDING as PENDING  # noqa: PLC0414 (part of the format)

FORMAT = 1
"""Version of the checkpoint format with whole files."""
SHARDED = 2
"""Version of the checkpoint format with files in parts. Older releases refuse it."""
MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
OPTIMIZER_REST = "optimizer.json"
AVERAGE = "ema.safetensors"
COMPRESSION = "compression.safetensors"
BUFFERS = "buffers.safetensors"
TASK = "task.safetensors"
TASK_REST = "task.json"
STATE = "state.json"
CONFIG = "config.json"
"""Name of the file in the run's directory with the resolved config of the newest attempt."""

SET_ASIDE = "set-aside-"
"""Prefix of a folder with the checkpoints of a run that started over. Nothing deletes the
folder."""

_NAME = re.compile(r"step-(\d{8,})\.attempt-(\d+)(\.tmp|\.broken)?")
FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,254}")
"""Pattern of file names that a manifest may list. No path may lead out of the checkpoint."""
_PART = re.compile(r"([a-z]+)-(\d{5,})-of-(\d{5,})(\.safetensors)")
_CHUNK = 1 << 22
_SHOWN = 40
"""Maximum number of characters of an unknown format version in a message."""
LARGEST_MANIFEST = 1 << 26
"""Maximum size of a manifest, in bytes. It has about 93 bytes for each file in parts."""
LARGEST_RECORD = 1 << 20
"""Maximum size of a JSON document that describes a single process or part, in bytes."""
LARGEST_DOCUMENT = 1 << 28
"""Maximum size of any other JSON document, in bytes. A file without a limit could make a start
allocate all memory."""


class BrokenCheckpointError(Exception):
    """Error for a damaged checkpoint. Its text is the evidence of the damage."""


class UnreadableCheckpointError(BrokenCheckpointError):
    """Error for a checkpoint that this process has no permission to read."""


@dataclass(frozen=True, slots=True, order=True)
class CheckpointName:
    """Parsed name of a checkpoint directory. Names are ordered by step, then by attempt."""

    step: int
    attempt: int
    suffix: str = ""

    def __str__(self) -> str:
        return f"step-{self.step:08d}.attempt-{self.attempt}{self.suffix}"

    @classmethod
    def parse(cls, text: str) -> "CheckpointName | None":
        """Return the parsed name; None if `text` is not a checkpoint name.

        A number must have the form that a trainer writes, for example with its leading zeros.
        """
        match = _NAME.fullmatch(text)
        if match is None:
            return None
        name = cls(int(match[1]), int(match[2]), match[3] or "")
        possible = max(name.step, name.attempt) <= LARGEST_NUMBER
        return name if possible and str(name) == text else None


def part_name(file: str, number: int, count: int) -> str:
    """Return the name of a part of a file of tensors.

    Args:
        file: Name of the whole file, for example `MODEL`.
        number: Number of the part, from 1.
        count: Number of parts of the checkpoint. Some files may have fewer.
    """
    if count == 1:
        return file
    stem, dot, extension = file.partition(".")
    return f"{stem}-{number:05d}-of-{count:05d}{dot}{extension}"


def whole_name(file: str) -> str:
    """Return the name of the whole file to which a part belongs, or the name itself."""
    match = _PART.fullmatch(file)
    return match[1] + match[4] if match else file


def names_in(directory: Path) -> list[CheckpointName]:
    """Return all checkpoint names in a run's directory, oldest first, with any suffix.

    Raises:
        OSError: If the volume fails. A missing directory holds no checkpoints.
    """
    found = map(CheckpointName.parse, DirectoryStore(directory).list())
    return sorted(name for name in found if name)


def crc32_of(path: Path) -> str:
    """Return the CRC-32 of a file as eight hexadecimal digits.

    Raises:
        PlantedFileError: If the path is a link, or not a regular file.
        OSError: If the volume fails.
    """
    crc = 0
    with os.fdopen(open_to_read(path), "rb") as file:
        while chunk := file.read(_CHUNK):
            crc = zlib.crc32(chunk, crc)
    return f"{crc:08x}"


def write_manifest(directory: Path, name: CheckpointName) -> None:
    """Write the manifest of a pending checkpoint: size and CRC32 of every file in it.

    Args:
        directory: The pending directory.
        name: Step and attempt.
    """
    files: dict[str, Entry] = {
        path.name: {"bytes": path.stat().st_size, "crc32": crc32_of(path)}
        for path in sorted(directory.iterdir())
    }
    _write_new(directory / MANIFEST, manifest_bytes(name, files))


def manifest_bytes(name: CheckpointName, files: Mapping[str, Entry]) -> bytes:
    """Return the content of the manifest of a checkpoint.

    Args:
        name: Step and attempt.
        files: Entry of each file.

    Raises:
        InputError: If it is too large to be read again.
    """
    data = json.dumps(manifest_of(name, files), indent=1).encode()
    if len(data) > LARGEST_MANIFEST:
        raise InputError(
            f"checkpoint: the manifest of {len(files):,} files would have {len(data):,} bytes, and"
            f" at most {LARGEST_MANIFEST:,} are possible; use fewer ranks, so that fewer of them"
            " write a part"
        )
    return data


def manifest_of(name: CheckpointName, files: Mapping[str, Entry]) -> dict[str, Any]:
    """Return the manifest of a checkpoint.

    Args:
        name: Step and attempt.
        files: Entry of each file.
    """
    is_whole = all(whole_name(file) == file for file in files)
    return {
        "format": FORMAT if is_whole else SHARDED,
        "step": name.step,
        "attempt": name.attempt,
        "files": dict(sorted(files.items())),
    }


REQUIRED = frozenset({MODEL, OPTIMIZER, OPTIMIZER_REST, STATE})
"""Files that every checkpoint has."""


def verify(
    directory: Path, *, checksums: bool = True, required: Collection[str] = REQUIRED
) -> None:
    """Read a checkpoint once and compare it with its manifest.

    Args:
        directory: The checkpoint.
        checksums: Whether to read each file and compare its CRC32. Otherwise only sizes count.
        required: Names of files that must be there.

    Raises:
        BrokenCheckpointError: If the checkpoint is not a folder, or a file is missing or differs.
        InputError: If the checkpoint has an unknown format.
        OSError: If the volume fails, which is no evidence of damage.
    """
    try:
        kind = directory.lstat().st_mode
    except FileNotFoundError as error:
        raise BrokenCheckpointError("it is missing") from error
    if not stat.S_ISDIR(kind):
        raise BrokenCheckpointError(
            f"it is a {'link' if stat.S_ISLNK(kind) else 'file'}, not a folder"
        )
    manifest = read_json(directory / MANIFEST, LARGEST_MANIFEST)
    try:
        if manifest["format"] not in (FORMAT, SHARDED):
            # A newer version may have written it, with other files and other checksums.
            raise InputError(
                f"checkpoint: {directory} has format {str(manifest['format'])[:_SHOWN]}, but this"
                " version of"
                f" ddp-trainer reads only formats {FORMAT} and {SHARDED}; resume with the version"
                " that wrote it, or set another checkpoint directory"
            )
        for file, expected in manifest["files"].items():
            _verify_file(directory, file, expected, checksum=checksums)
        present = {whole_name(file) for file in manifest["files"]}
        missing = set(required) - present
    except FileNotFoundError as error:
        raise BrokenCheckpointError(f"{Path(error.filename).name} is missing") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise BrokenCheckpointError(f"{MANIFEST} is damaged") from error
    if missing:
        raise BrokenCheckpointError(f"{MANIFEST} does not list {min(missing)}")


def _verify_file(directory: Path, file: str, expected: dict[str, Any], *, checksum: bool) -> None:
    """Compare a file with its entry in the manifest."""
    if not FILE_NAME.fullmatch(file):
        raise BrokenCheckpointError(f"{MANIFEST} lists {file!r}, which is not a file name")
    path = directory / file
    found = path.lstat()
    size = found.st_size
    if size != expected["bytes"]:
        raise BrokenCheckpointError(f"{file} has {size} bytes, not {expected['bytes']}")
    if not checksum and stat.S_ISREG(found.st_mode):
        return
    try:
        crc = crc32_of(path)
    except PlantedFileError as error:
        raise BrokenCheckpointError(f"{file} is not a regular file") from error
    if crc != expected["crc32"]:
        raise BrokenCheckpointError(f"{file} does not match its CRC32")


def read_json(path: Path, limit: int = LARGEST_DOCUMENT) -> Any:
    """Read a JSON document.

    Args:
        path: The file.
        limit: Maximum size in bytes.

    Raises:
        BrokenCheckpointError: If the file is missing, damaged, too large, or not a regular file.
        OSError: If the volume fails.
    """
    try:
        return json.loads(read_file(path, limit))
    except FileNotFoundError as error:
        raise BrokenCheckpointError(f"{path.name} is missing") from error
    except PlantedFileError as error:
        raise BrokenCheckpointError(f"{path.name} is not a regular file") from error
    except (ValueError, RecursionError) as error:
        raise BrokenCheckpointError(f"{path.name} is damaged") from error


def json_bytes(document: Any) -> bytes:
    """Return a JSON document as the content of a file.

    Raises:
        InputError: If it is too large to be read again.
    """
    data = json.dumps(document, indent=1).encode()
    if len(data) > LARGEST_DOCUMENT:
        raise InputError(
            f"checkpoint: the state that is not tensors has {len(data) >> 20:,} MiB as JSON, and at"
            f" most {LARGEST_DOCUMENT >> 20} MiB are possible; keep large values as tensors"
        )
    return data


def write_json(path: Path, document: Any) -> None:
    """Write a JSON document to a new file, and flush the file to the volume."""
    _write_new(path, json_bytes(document))


def _write_new(path: Path, content: bytes) -> None:
    """Write a new file, and flush it to the volume."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
