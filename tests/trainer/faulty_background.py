"""The process that writes checkpoints, on a volume that a test controls.

A file beside the run's directory says what a write does: `EIO`, `ENOSPC` … fail, `stall` waits
until the file is gone, `die` ends the process and removes the file, and `die always` keeps it.
"""

import errno
import os
import sys
import time
from pathlib import Path
from typing import Any

from ddp_trainer.checkpoint import background_process
from ddp_trainer.checkpoint.store.directory import PendingFolder

CONTROL = Path(sys.argv.pop(1))


def put(self: PendingFolder, file: str, parts: Any) -> Any:
    """Write a file, as far as the test permits."""
    while CONTROL.exists():
        fault = CONTROL.read_text()
        if fault.startswith("die"):
            if fault == "die":
                CONTROL.unlink()
            os._exit(9)
        if fault != "stall":
            code = getattr(errno, fault)
            raise OSError(code, os.strerror(code))
        time.sleep(0.02)
    return WRITE(self, file, parts)


WRITE = PendingFolder.put
if __name__ == "__main__":
    PendingFolder.put = put  # type: ignore[method-assign]
    background_process.RETRY_SECONDS = (0.1,)  # type: ignore[assignment]
    background_process.main()
