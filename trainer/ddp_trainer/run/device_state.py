"""Read the state of a run while its device may wait for a lost rank.

In host memory the state is whole whenever the gate is open (`checkpoint.gate`). A GPU computes what
the host has queued before, so three rules make the same true there:

- The host waits for the reductions of an update before it closes the gate and queues what changes
  the state. So while the gate is open, no such work is queued behind a reduction that never ends.
- An event marks the end of each update. Before it has passed, the state is not whole, for example
  because the update itself has collectives (zero1, fsdp2).
- A stream of its own reads the state, because the main stream may never get on.

Nothing aborts the communicators. After an abort the main stream would go on with gradients that are
averaged in part, and the reader does not need it: the process ends when it has read the state.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch

EVENT_SECONDS = 1.0
"""Maximum seconds for which a reader waits for the end of the newest update."""
_POLL_SECONDS = 0.001
_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_ABORTING = ("1", "2")
"""Values with which torch aborts communicators after an error, and the main stream goes on."""


class DeviceEvent(Protocol):
    """Point in the work that the host has queued, such as `torch.cuda.Event`."""

    def record(self) -> Any:
        """Put the event behind all work in the current stream."""

    def query(self) -> bool:
        """Return whether the device has passed the event."""

    def synchronize(self) -> Any:
        """Wait until the device has passed the event."""


class HostState:
    """State in host memory."""

    def mark(self) -> None:
        """Mark the end of an update."""

    def finish_passes(self) -> None:
        """Wait for the reductions of an update."""

    @contextmanager
    def reading(self) -> Iterator[bool]:
        """Return a context in which any thread may read the state. Yield whether it is whole."""
        yield True


class DeviceState(HostState):
    """State on a device that computes what the host has queued."""

    def __init__(
        self,
        new_event: Callable[[], DeviceEvent],
        stream: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        """Use functions of a device, which a test may replace.

        Args:
            new_event: Function that returns a new event.
            stream: Function that returns a context in which this thread uses a stream of its own.
        """
        self._new_event, self._stream = new_event, stream
        self._end: DeviceEvent | None = None

    def mark(self) -> None:
        """Mark the end of an update. Call it while the gate is closed."""
        self._end = self._new_event()
        self._end.record()

    def finish_passes(self) -> None:
        """Wait for the reductions of an update. Call it while the gate is open."""
        event = self._new_event()
        event.record()
        event.synchronize()

    @contextmanager
    def reading(self) -> Iterator[bool]:
        """Return a context in which any thread may read the state. Yield whether it is whole."""
        with self._stream():
            yield self._is_whole()

    def _is_whole(self) -> bool:
        """Wait until the device has finished the newest update. Return False if it does not."""
        deadline = time.monotonic() + EVENT_SECONDS
        try:
            while self._end is not None and not self._end.query():
                if time.monotonic() > deadline:
                    return False
                time.sleep(_POLL_SECONDS)
        except RuntimeError:  # The device has failed.
            return False
        return self._end is not None


def state_on(device: torch.device) -> HostState:
    """Return the way to read a state on a device."""
    if device.type != "cuda":
        return HostState()
    side = torch.cuda.Stream(device)

    @contextmanager
    def stream() -> Iterator[None]:
        with torch.cuda.device(device), torch.cuda.stream(side):  # Both belong to the thread.
            yield

    return DeviceState(torch.cuda.Event, stream)


def keeps_state(memory: bool | None, device: torch.device, environ: Mapping[str, str]) -> bool:
    """Return whether ranks keep their state in memory.

    Args:
        memory: The setting `checkpoint.memory`.
        device: The run's device.
        environ: Environment of the process.
    """
    if device.type == "cpu":
        return memory is not False
    return memory is True and environ.get(_HANDLING) not in _ABORTING


def why_not_kept(
    memory: bool | None, device: torch.device, environ: Mapping[str, str]
) -> str | None:
    """Return a sentence if the setting asks for a state in memory that is not possible, or None."""
    if not memory or keeps_state(memory, device, environ):
        return None
    return (
        f"the state is not kept in memory, because with {_HANDLING}={environ.get(_HANDLING)} torch"
        " aborts communicators, and the GPU goes on with wrong gradients: unset the variable"
    )
