"""Measure a process from outside: its CPU time, its memory and the lag of its event loop."""

import http.client
import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

_PROBE_SECONDS = 0.02
_LIMIT_SECONDS = 30.0
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used, in seconds (proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident_megabytes(pid: int) -> float:
    """Return the resident memory of a process, in 10^6 bytes."""
    return _kilobytes(pid, "VmRSS") * 1024 / 1e6


def peak_megabytes(pid: int) -> float:
    """Return the peak of the resident memory since `reset_peak`, in 10^6 bytes."""
    return _kilobytes(pid, "VmHWM") * 1024 / 1e6


def reset_peak(pid: int) -> None:
    """Reset the peak of a process to its current resident memory."""
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="utf-8")


def _kilobytes(pid: int, field: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


class LoopProbe:
    """Request a health endpoint repeatedly. The response times show the lag of the event loop."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.seconds: list[float] = []
        """Time of each answer, in seconds."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_LIMIT_SECONDS)
        while not self._stop.wait(_PROBE_SECONDS):
            started = time.monotonic()
            try:
                connection.request("GET", "/healthz")
                connection.getresponse().read()
            except (OSError, http.client.HTTPException):
                connection.close()
                continue
            self.seconds.append(time.monotonic() - started)
        connection.close()


def percentile(values: list[float], fraction: float) -> float:
    """Return a quantile of values by the nearest rank; 0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))] if ordered else 0.0
