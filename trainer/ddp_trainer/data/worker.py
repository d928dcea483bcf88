"""End the worker processes of a data loader when their rank is killed."""

import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess


def end_with_rank(_worker: int) -> None:
    """End this worker process as soon as its rank ends. torch calls this in each worker.

    torch's own check compares the parent's process id. But the parent of a worker is the fork
    server, which lives as long as any worker. So without this function the workers would survive a
    killed rank.
    """
    rank = multiprocessing.parent_process()
    if rank is not None:
        threading.Thread(target=_wait_for_end, args=(rank,), name="rank", daemon=True).start()


def _wait_for_end(rank: BaseProcess) -> None:
    wait([rank.sentinel])
    # SIGKILL, because the main thread may be anywhere, and its batches are no longer needed.
    os.kill(os.getpid(), signal.SIGKILL)
