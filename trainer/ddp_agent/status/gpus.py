"""Read the state of the pod's GPUs from NVML, the library behind nvidia-smi.

NVML opens no CUDA context, so it disturbs neither the ranks nor the standby.

Process: agent (threads of the HTTP server).
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pynvml

from ddp_agent.status.xids import XidCounts


@dataclass(frozen=True)
class Gpu:
    """State of one GPU. A value is None if the GPU does not support it."""

    index: int
    utilization: float | None
    """Share of the last sample period in which a kernel ran, from 0 to 1."""
    memory_used: int | None
    """Used memory in bytes."""
    memory_size: int | None
    """Total memory in bytes."""
    temperature: float | None
    """Temperature in degrees Celsius."""
    power: float | None
    """Electric power in watts."""
    ecc_errors: int | None
    """Uncorrected memory errors since the driver was loaded."""
    xid_errors: Mapping[str, int] = field(default_factory=dict)
    """Number of XID errors since the start of the agent, by XID."""


class GpuReader:
    """Reader of all GPUs in this container. Without a driver it finds no GPUs."""

    def __init__(self, xids: Callable[[], XidCounts] = dict) -> None:
        """Prepare the reader, without touching the driver.

        Args:
            xids: Function that returns the XID errors until now.
        """
        self._xids = xids
        self._handles: list[Any] | None = None

    def read(self) -> list[Gpu]:
        """Return the current state of all GPUs."""
        if self._handles is None:
            self._handles = list(gpu_handles())
        counts = self._xids()
        return [
            replace(_state(index, handle), xid_errors=_of_gpu(counts, index))
            for index, handle in enumerate(self._handles)
        ]


def _of_gpu(counts: XidCounts, index: int) -> dict[str, int]:
    return {xid: count for (gpu, xid), count in counts.items() if gpu == index}


def gpu_handles() -> Iterator[Any]:
    """Yield NVML's handle of each GPU; nothing without a driver."""
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            yield pynvml.nvmlDeviceGetHandleByIndex(index)


def _state(index: int, handle: Any) -> Gpu:
    use = _read(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    memory = _read(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
    milliwatts = _read(lambda: pynvml.nvmlDeviceGetPowerUsage(handle))
    return Gpu(
        index=index,
        utilization=None if use is None else use / 100,
        memory_used=None if memory is None else memory.used,
        memory_size=None if memory is None else memory.total,
        temperature=_read(
            lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
        ),
        power=None if milliwatts is None else milliwatts / 1000,
        ecc_errors=_read(
            lambda: pynvml.nvmlDeviceGetTotalEccErrors(
                handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
            )
        ),
    )


def _read(query: Callable[[], Any]) -> Any:
    """Return a value from NVML, or None if the GPU or the driver does not support it."""
    try:
        return query()
    except pynvml.NVMLError:
        return None
