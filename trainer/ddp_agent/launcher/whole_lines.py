"""Print the output of the ranks in whole lines.

Python writes `print("step", 7)` in four pieces if its output is not buffered, as in the trainer's
image. torchrun reads the output of each rank in a thread of its own. It prints the rank's prefix
before each piece that it finds, so the lines of two ranks mix:

    [rank 0] step [rank 1] step 7
    [rank 0] 7

torch has no setting for this. `apply` replaces the private function `tail_log.tail_logfile`, if
torch still has it, by one that waits for the end of a line. A line that does not end within a
second, for example a prompt, is printed as it is.

Process: launcher.
"""

import io
import time
from codecs import getincrementaldecoder
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import TextIO

from torch.distributed.elastic.multiprocessing import tail_log

HOLD_SECONDS = 1.0
"""Seconds for which the beginning of a line waits for its end."""
LONGEST = 1 << 20
"""Maximum characters of the held beginning of a line. A longer one is split."""
_CHUNK = 1 << 16


def apply() -> None:
    """Patch torchrun in this process."""
    if hasattr(tail_log, "tail_logfile"):
        tail_log.tail_logfile = tail_whole_lines  # type: ignore[assignment]  # Only by keyword.


def tail_whole_lines(
    *,
    header: str,
    file: str,
    dst: TextIO,
    finished: Event,
    interval_sec: float,
    log_line_filter: Callable[[str], bool] | None = None,
) -> None:
    """Write each line of a growing file, until it is finished and read. Called like torch's.

    Args:
        header: Text before each line.
        file: Path of the file, which may not exist yet.
        dst: Where the lines are written.
        finished: Event that nobody writes to the file any more.
        interval_sec: Seconds between two reads at the end of the file.
        log_line_filter: Function that returns whether a line is written.
    """
    path = Path(file)
    while not path.exists():
        if finished.is_set():
            return
        time.sleep(interval_sec)
    held, began = "", time.monotonic()
    decoder = io.IncrementalNewlineDecoder(
        getincrementaldecoder("utf-8")("replace"), translate=True
    )
    with path.open("rb", buffering=0) as source:
        while True:
            is_last = finished.is_set()  # Before the read, so that no line is missed.
            chunk = source.read(_CHUNK)
            *lines, held = (held + decoder.decode(chunk, final=not chunk and is_last)).split("\n")
            if lines:
                began = time.monotonic()
            if held and ((not chunk and _must_end(began, is_last=is_last)) or len(held) >= LONGEST):
                lines, held = [*lines, held], ""
            for line in lines:
                if log_line_filter is None or log_line_filter(f"{line}\n"):
                    dst.write(f"{header}{line}\n")
            if chunk:
                continue
            if is_last:
                return
            began = began if held else time.monotonic()
            time.sleep(interval_sec)


def _must_end(began: float, *, is_last: bool) -> bool:
    """Return whether the beginning of a line waits no longer for its end."""
    return is_last or time.monotonic() >= began + HOLD_SECONDS
