"""An object store in memory that fails on demand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fsspec.implementations.memory import MemoryFileSystem

from ddp_trainer.checkpoint.contents import verify_contents
from ddp_trainer.checkpoint.manager import CheckpointManager
from ddp_trainer.checkpoint.remote.fetching import fetch_newest
from ddp_trainer.checkpoint.remote.mirror import Mirror
from ddp_trainer.checkpoint.remote.objects import ObjectStore
from ddp_trainer.checkpoint.store.directory import DirectoryStore
from ddp_trainer.config import CheckpointConfig
from tests.trainer.checkpoint.opening import open_checked
from tests.trainer.checkpoint.test_manager import whole

ROOT = "/bucket/run"
URL = "s3://bucket/run"


class Killed(BaseException):
    """The process was killed at this write."""


class FaultyFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """A file system in memory. Each request first calls the function `fault`."""

    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.store: dict[str, Any] = {}
        self.pseudo_dirs: list[str] = [""]
        self.fault: Callable[[str, str], None] = lambda *_: None
        self.cut: Callable[[str, bytes], bytes] = lambda _, content: content
        self.hidden: set[str] = set()
        """Names that lists lack."""

    def pipe_file(self, path: str, value: bytes, **named: Any) -> None:
        self.fault("write", path)
        super().pipe_file(path, value, **named)

    def cat_file(self, path: str, start: Any = None, end: Any = None, **named: Any) -> bytes:
        self.fault("read", path)
        return self.cut(path, super().cat_file(path, start, end, **named))

    def info(self, path: str, **named: Any) -> Any:
        self.fault("info", path)
        return super().info(path, **named)

    def ls(self, path: str, detail: bool = True, **named: Any) -> Any:
        self.fault("list", path)
        found = super().ls(path, detail=True, **named)
        seen = [one for one in found if one["name"].rsplit("/", 1)[-1] not in self.hidden]
        return seen if detail else sorted(one["name"] for one in seen)

    def rm_file(self, path: str) -> None:
        self.fault("delete", path)
        super().rm_file(path)

    def _open(self, path: str, mode: str = "rb", **named: Any) -> Any:
        if mode == "wb":
            self.fault("write", path)
        return super()._open(path, mode, **named)


def object_store(filesystem: FaultyFileSystem, waits: list[float] | None = None) -> ObjectStore:
    sleep = (lambda _: None) if waits is None else waits.append
    return ObjectStore(filesystem, ROOT, sleep=sleep, environ={})


class Run:
    """A run's directory with an open attempt."""

    def __init__(self, directory: Path, attempt: int = 1, job: str = "uid", keep: int = 9) -> None:
        self.directory = directory
        self.manager = CheckpointManager(CheckpointConfig(directory=str(directory), keep=keep))
        open_checked(self.manager, attempt, {}, job)

    def save(self, *steps: int) -> None:
        for step in steps:
            self.manager.save(whole(step))


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def name(step: int, attempt: int = 1) -> str:
    return f"step-{step:08d}.attempt-{attempt}"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def mirror_of(run: Run, filesystem: FaultyFileSystem, keep: int = 1) -> Mirror:
    source = DirectoryStore(run.directory)
    return Mirror(source, object_store(filesystem), keep=keep, sleep=lambda _: None)


def restored(filesystem: FaultyFileSystem, folder: Path) -> str | None:
    """Return the name of the newest checkpoint that another cluster gets, after its check."""
    folder.mkdir()
    fetched = fetch_newest(object_store(filesystem), folder, URL)
    if fetched.name is not None:
        verify_contents(folder / fetched.name)
    return fetched.name
