"""The store in a bucket of an object store: S3, Google Cloud Storage, Azure, by `fsspec`.

    s3://bucket/run/step-00000120.attempt-2/model.safetensors       and the other files
    s3://bucket/run/step-00000120.attempt-2/MANIFEST.json           written last: the commit
    s3://bucket/run/CHECKPOINTS.json                                names of the checkpoints
    s3://bucket/run/FENCE.json                                      the attempt that owns the store

An object store cannot rename. So the manifest is the commit: it names each file with its size and
checksum, and a checkpoint without a manifest does not exist. A deletion removes the manifest first.

A list of objects may be stale. So a name in a list only says where a manifest might be, and
`CHECKPOINTS.json` names the checkpoints that a stale list lacks. Each request is tried again after
an error, with growing waits.
"""

import contextlib
import errno
import io
import json
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, BinaryIO, TypeVar

from ddp_trainer.checkpoint.format import BrokenCheckpointError
from ddp_trainer.checkpoint.store.base import Entry, Part
from ddp_trainer.checkpoint.store.directory import MANIFEST
from ddp_trainer.config.credentials import redacted

T = TypeVar("T")
Sleep = Callable[[float], None]

INDEX = "CHECKPOINTS.json"
"""Object with the names of the committed checkpoints."""
WAITS = (0.5, 1.0, 2.0, 4.0)
"""Seconds between two tries of a request."""
BLOCK = 8 << 20
"""Bytes of one request."""
UPLOAD_BLOCK = 32 << 20
"""Bytes of one part of an upload. S3 permits 10,000 parts per object."""
_LARGEST_INDEX = 1 << 20
_FINAL = frozenset({errno.ENOENT, errno.EACCES, errno.EPERM, errno.EEXIST})
"""Errors that another try does not change."""
_NUMBERS = {"FileNotFoundError": errno.ENOENT, "PermissionError": errno.EACCES}
"""Error numbers of errors that client libraries raise without a number."""
_CLASSES = {
    "Credential": errno.EACCES,
    "Authentication": errno.EACCES,
    "NotFound": errno.ENOENT,
    "Checksum": errno.EBADMSG,
}
"""Error numbers by a part of the name of a client library's error."""
_SHOWN = 300


class ObjectStore:
    """The checkpoints below a prefix of a bucket."""

    def __init__(
        self,
        filesystem: Any,
        root: str,
        *,
        sleep: Sleep = time.sleep,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Access the objects below a prefix.

        Args:
            filesystem: An `fsspec` file system.
            root: Bucket and prefix, without a slash at the end.
            sleep: Function that waits between two tries.
            environ: Environment, whose credentials no message may contain.
        """
        self._filesystem = filesystem
        self._root = root
        self._sleep = sleep
        self._environ = environ

    def list(self) -> list[str]:
        """Return the names of all committed checkpoints, in any order.

        Raises:
            OSError: If the store fails.
        """
        return [name for name in sorted(self._candidates()) if self._has_manifest(name)]

    def expected(self) -> set[str]:
        """Return the names of all committed checkpoints, and of those whose manifest is lost.

        The index names them, and also one whose deletion was interrupted.

        Raises:
            OSError: If the store fails.
        """
        return {*self.list(), *self._index()}

    def unfinished(self) -> set[str]:
        """Return the names with objects, but without a manifest.

        Raises:
            OSError: If the store fails.
        """
        indexed = self._index()
        found = {name for name in self._candidates() if not self._has_manifest(name)}
        # The store may not show a new manifest yet. It is in the index already.
        for wait in WAITS if found & indexed else ():
            self._sleep(wait)
            found = {name for name in found if not self._has_manifest(name)}
        return found

    def open(self, name: str, file: str) -> BinaryIO:
        """Open a file of a checkpoint for reading."""
        return self.open_path(f"{name}/{file}")

    def files(self) -> dict[str, int]:
        """Return the bytes of the objects directly below the prefix, or of the single object there.

        The single object has the name "".

        Raises:
            OSError: If the store fails.
        """
        self._filesystem.invalidate_cache()
        found = self.tried(lambda: self._filesystem.ls(self._root, detail=True))
        files = [entry for entry in found if entry["type"] == "file"]
        return {
            str(entry["name"]).removeprefix(self._root).lstrip("/"): int(entry["size"])
            for entry in files
        }

    def open_path(self, file: str) -> BinaryIO:
        """Open an object directly below the prefix, or with "" the single object there."""
        path = self._path(file) if file else self._root
        size = self.tried(lambda: int(self._filesystem.info(path)["size"]))
        return io.BufferedReader(_Object(self, path, size), BLOCK)

    @contextlib.contextmanager
    def begin(self, name: str) -> Iterator["_PendingObjects"]:
        """Begin a checkpoint. Objects that its context does not commit stay as `unfinished`.

        They are not deleted here, because another attempt may own the store and the name by then.
        """
        if self._has_manifest(name):
            raise FileExistsError(errno.EEXIST, "the store has this checkpoint already", name)
        yield _PendingObjects(self, name)

    def delete(self, name: str) -> None:
        """Delete the manifest, then all other objects of a checkpoint."""
        self._remove(self._path(name, MANIFEST))
        self._set_index(lambda names: names - {name})
        for path in self._below(self._path(name)):
            self._remove(path)

    def read_small(self, file: str, limit: int) -> bytes:
        """Return the content of an object directly below the prefix.

        Raises:
            FileNotFoundError: If it does not exist.
            ValueError: If it is larger than the limit.
            OSError: If the store fails.
        """
        path = self._path(file)

        def read() -> bytes:
            size = int(self._filesystem.info(path)["size"])
            return self._range(path, 0, min(size, limit + 1))

        content = self.tried(read)
        if len(content) > limit:
            raise ValueError(f"{file} has more than {limit} bytes")
        return content

    def write_small(self, file: str, content: bytes) -> None:
        """Replace an object below the prefix, and read it again until it has the new content.

        Raises:
            OSError: If the store fails, or still returns another content.
        """

        def write() -> None:
            self._filesystem.pipe_file(self._path(file), content)
            if bytes(self._filesystem.cat_file(self._path(file))) != content:
                raise OSError(errno.EIO, "the store returns another content than was written", file)

        self.tried(write)

    def upload(self, path: str, parts: Iterable[Part]) -> Entry:
        """Write one object. A failed upload leaves no object.

        Raises:
            OSError: If the store or the source fails. The caller may call it again with new parts.
        """
        size, crc = 0, 0
        with self._translated():
            file = self._filesystem.open(path, "wb", block_size=UPLOAD_BLOCK)
            try:
                for part in parts:
                    file.write(part)
                    crc = zlib.crc32(part, crc)
                    size += len(part)
            except BaseException:
                with contextlib.suppress(Exception):
                    file.discard()
                file.closed = True  # Closing it would complete the upload.
                raise
            file.close()
        found = self.tried(lambda: int(self._filesystem.info(path)["size"]))
        if found != size:
            raise OSError(errno.EIO, f"the store has {found} bytes, not {size}", path)
        return {"bytes": size, "crc32": f"{crc:08x}"}

    def download(self, path: str, begin: int, end: int) -> bytes:
        """Return a range of an object, all of it.

        Raises:
            OSError: If the store fails, or returns fewer bytes.
        """
        return self.tried(lambda: self._range(path, begin, end))

    def _range(self, path: str, begin: int, end: int) -> bytes:
        if begin == end:
            return b""
        content = bytes(self._filesystem.cat_file(path, start=begin, end=end))
        if len(content) != end - begin:
            raise OSError(
                errno.EIO, f"the store returned {len(content)} of {end - begin} bytes", path
            )
        return content

    def tried(self, act: Callable[[], T]) -> T:
        """Return the result of a request. Try again after an error that may be over soon."""
        for wait in WAITS:
            try:
                with self._translated():
                    return act()
            except OSError as error:
                if error.errno in _FINAL:
                    raise
                self._sleep(wait)
        with self._translated():
            return act()

    def committed(self, name: str) -> None:
        """Add a checkpoint to the index."""
        self._set_index(lambda names: names | {name})

    def _candidates(self) -> set[str]:
        self._filesystem.invalidate_cache()
        try:
            listed = self.tried(lambda: self._filesystem.ls(self._root, detail=False))
        except FileNotFoundError:
            listed = []
        names = {str(path).rstrip("/").rsplit("/", 1)[-1] for path in listed}
        return {name for name in names | self._index() if not name.endswith(".json")} - {""}

    def _index(self) -> set[str]:
        """Return the names in the index. A damaged one names nothing, because a list can do."""
        try:
            names = json.loads(self.read_small(INDEX, _LARGEST_INDEX))["checkpoints"]
        except FileNotFoundError:
            return set()
        except (ValueError, TypeError, KeyError, RecursionError):
            return set()
        usable = isinstance(names, list) and all(isinstance(n, str) and "/" not in n for n in names)
        return set(names) if usable else set()

    def reindex(self) -> set[str]:
        """Write the names of all committed checkpoints to the index, and return them.

        A process that ended between the commit and the index has left its checkpoint out.
        """
        names = set(self.list())
        if names != self._index():
            self._set_index(lambda _: names)
        return names

    def _set_index(self, change: Callable[[set[str]], set[str]]) -> None:
        names = sorted(change(self._index()))
        self.write_small(INDEX, json.dumps({"checkpoints": names}).encode())

    def _has_manifest(self, name: str) -> bool:
        try:
            self.tried(lambda: self._filesystem.info(self._path(name, MANIFEST)))
        except FileNotFoundError:
            return False
        return True

    def _below(self, path: str) -> Iterable[str]:
        try:
            return sorted(self.tried(lambda: self._filesystem.find(path)))
        except FileNotFoundError:
            return []

    def _remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.tried(lambda: self._filesystem.rm_file(path))

    def _path(self, *parts: str) -> str:
        return "/".join([self._root, *parts])

    def path_of(self, name: str, file: str) -> str:
        """Return the path of an object in the file system."""
        return self._path(name, file)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise each error of a client library as an `OSError`, without credentials."""
        try:
            yield
        except OSError as error:
            # OSError chooses the class by the number.
            number = error.errno or _NUMBERS.get(type(error).__name__, errno.EIO)
            missing = error.errno is None and number == errno.ENOENT
            text = f"there is no {error}" if missing else error.strerror or str(error)
            raise OSError(number, self._sentence(text)) from None
        except Exception as error:  # noqa: BLE001 - each client library has errors of its own
            numbers = (n for part, n in _CLASSES.items() if part in type(error).__name__)
            text = self._sentence(f"{type(error).__name__}: {error}")
            raise OSError(next(numbers, errno.EIO), text) from None

    def _sentence(self, text: str) -> str:
        """Return the first line of the text of an error, without credentials."""
        return redacted(text, self._environ).strip().partition("\n")[0].rstrip()[:_SHOWN]


class _PendingObjects:
    """A checkpoint whose manifest is not written yet."""

    def __init__(self, store: ObjectStore, name: str) -> None:
        self._store = store
        self._name = name

    def put(self, file: str, parts: Iterable[Part]) -> Entry:
        """Write one object."""
        return self._store.upload(self._store.path_of(self._name, file), parts)

    def commit(self, manifest: bytes, may_commit: Callable[[], None]) -> None:
        """Write the manifest, which makes the checkpoint exist, then add it to the index."""
        may_commit()
        self._store.write_small(f"{self._name}/{MANIFEST}", manifest)
        self._store.committed(self._name)


class _Object(io.RawIOBase):
    """An object as a file."""

    def __init__(self, store: ObjectStore, path: str, size: int) -> None:
        super().__init__()
        self._store, self._path, self._size = store, path, size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._size, self._at + len(buffer))
        if end <= self._at:
            return 0
        try:
            content = self._store.download(self._path, self._at, end)
        except OSError as error:
            if error.errno != errno.EBADMSG:
                raise
            file = self._path.rsplit("/", 1)[-1]
            raise BrokenCheckpointError(
                f"{file} does not match its checksum in the store"
            ) from error
        buffer[: len(content)] = content
        self._at = end
        return len(content)
