"""Let all ranks of a script decide together whether to stop.

SIGTERM may reach the ranks between different updates. If one rank stopped alone, all other ranks
would wait for it in a collective. So the ranks exchange their requests in a separate all-reduce at
certain calls, which all ranks count alike. Each exchange also selects the call for the next
exchange, from the mean time between calls over all ranks, so that exchanges are about five seconds
apart. All ranks select the same call, because they use the same sums.
"""

import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

from ddp_trainer.report.checks import warn
from ddp_trainer.report.kept_state import group_device

_AGREE_SECONDS = 5.0
"""Approximate seconds between two exchanges of stop requests."""


class StopVote:
    """Stop request of this process, and the joint decision of all ranks."""

    def __init__(self) -> None:
        self._own = self._decided = False
        self._calls = self._last_call = 0
        self._next_call = 1
        self._last_time = time.monotonic()
        if threading.current_thread() is not threading.main_thread():
            warn("should_stop must be called first in the main thread, so it never returns True")
            return
        self._previous = signal.signal(signal.SIGTERM, self._handle)

    def requested(self) -> bool:
        """Return the decision of all ranks; in a single process, whether it got SIGTERM."""
        distributed: Any = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_initialized():
            return self._own
        self._calls += 1
        if not self._decided and self._calls >= self._next_call:
            self._exchange(distributed)
        return self._decided

    def _exchange(self, distributed: Any) -> None:
        """Exchange the requests with all other ranks, and select the call for the next exchange."""
        torch: Any = sys.modules["torch"]
        device = group_device()
        elapsed = time.monotonic() - self._last_time
        sums = torch.tensor([float(self._own), elapsed], dtype=torch.float64, device=device)
        distributed.all_reduce(sums)
        stopping, seconds = sums.tolist()
        self._decided = stopping > 0
        calls = self._calls - self._last_call
        seconds = max(seconds / distributed.get_world_size(), 1e-6)
        # At most 10 times the measured calls, because the first updates are not typical.
        ahead = min(int(_AGREE_SECONDS * calls / seconds), 10 * calls)
        self._next_call = self._calls + max(1, ahead)
        self._last_call, self._last_time = self._calls, time.monotonic()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._own = True
        if callable(self._previous):
            self._previous(number, frame)
