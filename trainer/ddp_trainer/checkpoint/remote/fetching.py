"""Read from an object store: the newest checkpoint of a run, or any files, as local files."""

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ddp_trainer.checkpoint.format import (
    BROKEN,
    FILE_NAME,
    BrokenCheckpointError,
    CheckpointName,
)
from ddp_trainer.checkpoint.remote.copying import copy_checkpoint, pieces
from ddp_trainer.checkpoint.remote.objects import ObjectStore
from ddp_trainer.checkpoint.remote.urls import open_url
from ddp_trainer.checkpoint.store.base import Store
from ddp_trainer.checkpoint.store.directory import DirectoryStore, PendingFolder
from ddp_trainer.checkpoint.volume import volume_error
from ddp_trainer.config.addresses import is_url
from ddp_trainer.errors import InputError, ReportedError

_RESERVE_BYTES = 64 << 20
"""Space that a download leaves free, in bytes."""


Download = Callable[[str, Path], Path]


@dataclass(frozen=True, slots=True)
class Fetched:
    """Result of a look for a newer checkpoint in a store."""

    name: str | None = None
    """Name of the checkpoint that was copied, or None if there is no newer one."""
    skipped: list[str] = field(default_factory=list)
    """One sentence per newer checkpoint that is damaged, or whose manifest is lost."""


def fetch_newest(
    store: ObjectStore, directory: Path, url: str, newer_than: CheckpointName | None = None
) -> Fetched:
    """Copy the newest whole checkpoint of a store to a run's directory.

    Args:
        store: The store.
        directory: The run's directory. It must exist.
        url: Address of the store, for messages.
        newer_than: Newest usable checkpoint of the directory. Only newer ones are copied.

    Raises:
        OSError: If the store or the volume fails, or the volume lacks space.
    """
    parsed = sorted(filter(None, map(CheckpointName.parse, store.expected())), reverse=True)
    skipped: list[str] = []
    for name in parsed:
        if name.suffix or (newer_than is not None and name <= newer_than):
            continue
        try:
            _rename_damaged(directory / str(name))
            _copy_to(directory, store, str(name))
        except BrokenCheckpointError as error:
            skipped.append(f"checkpoint {url}/{name} is damaged: {error}")
        except FileNotFoundError:
            skipped.append(f"checkpoint {url}/{name} lacks a file")
        else:
            return Fetched(str(name), skipped)
    return Fetched(None, skipped)


def download(url: str, folder: Path) -> Path:
    """Copy what is at an address to an empty folder, and return its path there.

    Raises:
        InputError: If the address holds nothing that can be copied.
        BrokenCheckpointError: If it is a damaged checkpoint.
        OSError: If the store or the local disk fails.
    """
    parent, _, last = url.rpartition("/")
    if CheckpointName.parse(last) is not None:
        store = open_url(parent)
        _copy_to(folder, store, last)
        return folder / last
    store = open_url(url)
    fetched = fetch_newest(store, folder, url)
    if fetched.name is not None:
        return folder / fetched.name
    if fetched.skipped:
        raise InputError("; ".join(fetched.skipped))
    return _download_files(store, folder / last)


@contextlib.contextmanager
def local_copy(source: str, *, command: str, fetch: Download = download) -> Iterator[Path]:
    """Yield a local path of a file or folder at an address. It is deleted after the `with` block.

    The address may be that of a run, of a checkpoint, of another folder of files, or of one file.
    Of a run only the newest whole checkpoint is copied. A path is yielded as it is.

    Args:
        source: Path or address.
        command: Begin of messages, such as the name of the command.
        fetch: Function that copies what is at the address to a folder.

    Raises:
        InputError: If the address holds nothing that can be copied.
        VolumeError: If the store fails.
    """
    if not is_url(source):
        yield Path(source)
        return
    with tempfile.TemporaryDirectory(prefix="ddp-trainer-") as folder:
        try:
            path = fetch(source.rstrip("/"), Path(folder))
        except OSError as error:
            sentence = f"{command}: cannot read {source}: {error.strerror or error}"
            raise volume_error(sentence, error) from error
        except BrokenCheckpointError as error:
            raise InputError(f"{command}: {source} is damaged: {error}") from error
        try:
            yield path
        except ReportedError as error:
            own = str(path if path.name == source.rsplit("/", 1)[-1] else path.parent)
            text = str(error).replace(own, source.rstrip("/"))
            raise type(error)(text, rank_specific=error.rank_specific) from error


def _download_files(store: ObjectStore, target: Path) -> Path:
    """Copy one object, or all objects directly in a folder."""
    sizes = store.files()
    if not sizes:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), target.name)
    _check_space(target.parent, sum(sizes.values()))
    single = list(sizes) == [""]
    into = target.parent if single else target
    into.mkdir(exist_ok=True)
    for file, size in sizes.items():
        name = file or target.name
        if not (FILE_NAME.fullmatch(name) or name == ".metadata"):
            raise InputError(f"checkpoint: {name!r:.80} is not a file name")
        with store.open_path(file) as opened:
            PendingFolder(into).put(name, pieces(opened, size))
    return target


def _copy_to(directory: Path, store: Store, name: str) -> None:
    """Copy a checkpoint to a directory, if it has the space."""
    target = DirectoryStore(directory)
    copy_checkpoint(store, target, name, prepare=partial(_check_space, directory))


def _rename_damaged(path: Path) -> None:
    """Free the name of a checkpoint that is not usable, because no checkpoint here is as new."""
    with contextlib.suppress(OSError):
        path.rename(path.with_name(path.name + BROKEN))


def _check_space(directory: Path, needed: int) -> None:
    free = shutil.disk_usage(directory).free
    if needed + _RESERVE_BYTES > free:
        raise OSError(
            errno.ENOSPC,
            f"it has {needed / 2**20:,.0f} MiB, and {directory} has {free / 2**20:,.0f} MiB free",
        )
