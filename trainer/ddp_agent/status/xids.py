"""Count the XID errors of the pod's GPUs. The driver reports GPU faults by XID numbers.

NVML delivers the errors as events. A thread waits for the events, so a scrape only copies a
dictionary.

Process: agent (a thread).
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pynvml

LARGEST_XID = 255
"""Largest XID that is counted under its own number. NVIDIA's catalog ends below 200 (2026)."""
OTHER = "other"
"""Label under which larger numbers are counted. NVML reports 999 for an unknown XID."""
_WAIT_MILLISECONDS = 5000
_PAUSE_SECONDS = 1.0
"""Seconds to pause after an NVML error, because NVML may return the error again at once, for
example for a lost GPU."""

XidCounts = Mapping[tuple[int, str], int]
"""Numbers of XID errors, by GPU index and XID."""


class XidCounter:
    """Counter of XID errors since the start of the agent. Without a driver it counts nothing."""

    def __init__(self, gpus: Callable[[], Iterable[Any]]) -> None:
        """Prepare the counter, without touching the driver.

        Args:
            gpus: Function with which the thread reads NVML's handles of the GPUs.
        """
        self._gpus = gpus
        self._counts: dict[tuple[int, str], int] = {}
        self._closed = threading.Event()

    @property
    def counts(self) -> XidCounts:
        """Numbers of errors until now. The returned mapping does not change later."""
        return self._counts

    def start(self) -> None:
        """Start the thread. It ends at once if no GPU reports XID errors."""
        threading.Thread(target=self._run, name="xids", daemon=True).start()

    def close(self) -> None:
        """Tell the thread to end after its current wait."""
        self._closed.set()

    def _run(self) -> None:
        with contextlib.suppress(pynvml.NVMLError):
            events = self._subscribe()
            while events is not None and not self._closed.is_set():
                try:
                    self._count(pynvml.nvmlEventSetWait_v2(events, _WAIT_MILLISECONDS))
                except pynvml.NVMLError_Timeout:
                    continue
                except pynvml.NVMLError:
                    self._closed.wait(_PAUSE_SECONDS)

    def _subscribe(self) -> Any:
        """Return an NVML event set for all GPUs, or None if no GPU supports events."""
        gpus = list(self._gpus())
        if not gpus:
            return None
        events, registered = pynvml.nvmlEventSetCreate(), 0
        for gpu in gpus:
            with contextlib.suppress(pynvml.NVMLError_NotSupported):
                pynvml.nvmlDeviceRegisterEvents(gpu, pynvml.nvmlEventTypeXidCriticalError, events)
                registered += 1
        return events if registered else None

    def _count(self, event: Any) -> None:
        if event.eventType != pynvml.nvmlEventTypeXidCriticalError:
            return
        xid = int(event.eventData)
        name = str(xid) if xid <= LARGEST_XID else OTHER
        key = (int(pynvml.nvmlDeviceGetIndex(event.device)), name)
        # Readers of other threads keep the old dictionary.
        self._counts = {**self._counts, key: self._counts.get(key, 0) + 1}


def new_xids(before: XidCounts, now: XidCounts) -> str:
    """Return a clause about new XID errors since an earlier count, or "" if there are none."""
    found: dict[int, list[str]] = {}
    for (gpu, xid), count in sorted(now.items()):
        if count > before.get((gpu, xid), 0):
            found.setdefault(gpu, []).append("an unknown XID" if xid == OTHER else f"XID {xid}")
    return " and ".join(
        f"GPU {gpu} of the pod reported {', '.join(xids)}" for gpu, xids in found.items()
    )
