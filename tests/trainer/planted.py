"""Links, pipes and odd files that another pod on a shared claim plants in a run's directory."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ddp_wire import files


def unprotected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch the protection off: open any kind of file, and follow links."""

    def plain_open(path: Path, flags: int, folder: int | None) -> int:
        return os.open(path if folder is None else path.name, flags, 0o666, dir_fd=folder)

    monkeypatch.setattr(files, "_open_regular", plain_open)
    monkeypatch.setattr(files, "_NO_LINK", 0)


def content(folder: Path) -> dict[str, bytes]:
    """Return the files below a folder."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def hangs(pipe: Path, act: Callable[[], object], seconds: float = 0.3) -> bool:
    """Return whether `act` blocks on a pipe. Unblock it afterwards."""
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(seconds)
    if not thread.is_alive():
        return False
    os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))
    thread.join(5.0)
    return True
