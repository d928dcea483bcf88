"""The time for which a thread waits for a core, by the kernel's count."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddp_wire.machine import run_queue_seconds


def test_wait_for_a_core_that_another_process_uses_is_counted() -> None:
    cores = os.sched_getaffinity(0)
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        for process in (0, busy.pid):
            os.sched_setaffinity(process, {min(cores)})
        start, deadline = run_queue_seconds(), time.monotonic() + 30
        while run_queue_seconds() < start + 0.02:
            assert time.monotonic() < deadline, "the other process uses the core"
    finally:
        os.sched_setaffinity(0, cores)
        busy.kill()
        busy.wait()


@pytest.mark.parametrize(
    ("text", "seconds"), [("800 2500000000 7\n", 2.5), ("0 0 0\n", 0.0), (None, 0.0)]
)
def test_wait_for_a_core_is_read_in_nanoseconds(
    tmp_path: Path, text: str | None, seconds: float
) -> None:
    file = tmp_path / "schedstat"
    if text is not None:
        file.write_text(text)
    assert run_queue_seconds(str(file)) == seconds
