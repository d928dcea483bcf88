"""Real file systems that are full or read-only, and clocks that jump. The former need root."""

import contextlib
import ctypes
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from unittest import mock

from ddp_trainer.checkpoint import record_writer
from tests.torture import operations
from tests.torture.attempts import RECORDS, RUN, Attempt
from tests.torture.lab import Case, Lab, orderly
from tests.torture.writes import ROWS, Row

LIMITS = 20
"""Sizes of the file system around the need of a write."""
_PAGE = 4096
_NEW_MOUNTS = 0x00020000
YEARS = 10 * 365 * 86400.0


def private_mounts() -> bool:
    """Give this process mounts of its own, which end with it. Return False without the right."""
    if os.getuid() or ctypes.CDLL(None, use_errno=True).unshare(_NEW_MOUNTS):
        return False
    return subprocess.run(["mount", "--make-rprivate", "/"], check=False).returncode == 0


def full(lab: Lab) -> Iterator[Case]:
    """Yield a save and a survivors' write to file systems of different sizes."""
    for row in (row for row in ROWS if not row.starts_only):
        folder = RECORDS if row.act.memory else RUN
        for pages in range(LIMITS):
            yield Case("full file system", f"{row.name}: {pages} pages left",
                       partial(_full, lab, row, folder, pages))  # fmt: skip


def read_only(lab: Lab) -> Iterator[Case]:
    """Yield attempts on a file system that is mounted read-only."""
    for row in ROWS:
        folder = RECORDS if row.act.memory else RUN
        yield Case("read-only file system", f"{row.name}: {folder} is read-only",
                   partial(_read_only, lab, row, folder))  # fmt: skip


def clocks(lab: Lab) -> Iterator[Case]:
    """Yield attempts during which the clock of the machine jumps, and files of other times."""
    for row in ROWS:
        for seconds in (-YEARS, -3600.0, 3600.0, YEARS):
            for after in (0, 3, 30):
                yield Case("clock jump", f"{row.name}: by {seconds:+.0f} s after {after} readings",
                           partial(_jump, lab, row, seconds, after))  # fmt: skip
            yield Case("clock jump", f"{row.name}: files of {seconds:+.0f} s",
                       partial(_dated, lab, row, seconds))  # fmt: skip
    for seconds in (-YEARS, YEARS):
        yield Case("clock jump", f"a record that a dead rank began, {seconds:+.0f} s ago",
                   partial(_abandoned, lab, seconds))  # fmt: skip


@contextlib.contextmanager
def _mounted(folder: Path, size: int) -> Iterator[None]:
    """Replace a folder by a file system of a size with the same content."""
    moved = folder.with_name(folder.name + ".moved")
    folder.rename(moved)
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        subprocess.run(["cp", "-a", f"{moved}/.", str(folder)], check=True)
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def _remount(folder: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", str(folder)], check=True)


def _full(lab: Lab, row: Row, folder: str, pages: int) -> str:
    """Let an attempt write to a file system with a number of pages left."""
    home = row.home(lab)
    with _mounted(home / folder, 1 << 30):
        status = os.statvfs(home / folder)
        used = (status.f_blocks - status.f_bfree) * status.f_frsize
        _remount(home / folder, f"size={used + pages * _PAGE}")
        # Without the reserve the write itself meets the limit.
        with mock.patch.object(record_writer, "RESERVE_BYTES", -(1 << 40)):
            orderly(row.play(home, None))
        _remount(home / folder, f"size={1 << 30}")
        return lab.resumed(home, row.next, "a full file system")


def _read_only(lab: Lab, row: Row, folder: str) -> str:
    home = row.home(lab)
    with _mounted(home / folder, 1 << 30):
        _remount(home / folder, "ro")
        result = row.play(home, None)
        orderly(result)
        _remount(home / folder, "rw")
        return lab.resumed(home, row.next, "a read-only file system")


def _jumping(seconds: float, after: int) -> Callable[[], float]:
    """Return a clock that jumps after some readings."""
    real, readings = time.time, iter(range(1 << 30))
    return lambda: real() + (seconds if next(readings) >= after else 0.0)


def _jump(lab: Lab, row: Row, seconds: float, after: int) -> str:
    home = row.home(lab)
    act = row.act.start if row.starts_only else row.act.train

    def with_jump() -> str:
        with mock.patch.object(time, "time", _jumping(seconds, after)):
            return act(home)

    orderly(operations.run(with_jump, home))
    return lab.resumed(home, row.next, "a jump of the clock")


def _dated(lab: Lab, row: Row, seconds: float) -> str:
    home = row.home(lab)
    at = time.time() + seconds
    for path in home.rglob("*"):
        os.utime(path, (at, at))
    orderly(row.play(home, None))
    return lab.resumed(home, row.next, "a change of all times")


def _abandoned(lab: Lab, seconds: float) -> str:
    """Let a rank write the record that another one began before it died and the clock jumped."""
    row = ROWS[1]
    home, apart = row.home(lab), row.home(lab)
    pending = home / RECORDS / "step-00000011.attempt-2.tmp"
    pending.mkdir()
    at = time.time() + seconds
    os.utime(pending, (at, at))
    act = partial(row.act.survive, apart, home / RECORDS)
    orderly(operations.run(act, apart))
    verdict = lab.start(home, Attempt(3))
    for folder in (home, apart):
        lab.clean(folder)
    return verdict
