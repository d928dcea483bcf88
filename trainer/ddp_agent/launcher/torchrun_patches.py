"""Patch torchrun in this process: shorten waits in a recovery, and see each end of a rank.

torch has no settings for this. `apply` replaces the following private functions, each only if torch
still has it:

- `dynamic_rendezvous._delay`: poll the rendezvous every 0.05 s, not once per second.
- `_BackendRendezvousStateHolder`: keep no copy of the rendezvous state, which may be 1 s old.
- `MultiprocessContext.close`: wait as long after a requested stop as the job says. Kill ranks after
  1 s, not after 30 s, if a signal interrupts their start.
- `MultiprocessContext._poll`: add the missing result of a rank that ended by `sys.exit()`. torch
  waits for it forever.

Process: launcher (of a warm start).
"""

import functools
import logging
import os
import time
from collections.abc import Callable
from typing import Any

from torch.distributed.elastic.multiprocessing import api
from torch.distributed.elastic.rendezvous import dynamic_rendezvous

from ddp_agent.processes.launch import SHUTDOWN_ENV

RENDEZVOUS_POLL_SECONDS = 0.05
"""Seconds between two polls of the rendezvous. torch's default is 1 s, plus a state cache of 1
s."""
INTERRUPTED_START_SECONDS = 1
"""Seconds between SIGTERM and SIGKILL for ranks whose start a signal interrupts."""


def apply() -> None:
    """Shorten torchrun's waits in the rendezvous, and let it see each end of a rank."""
    if hasattr(dynamic_rendezvous, "_delay"):
        dynamic_rendezvous._delay = _short_delay  # noqa: SLF001 (there is no setting)
    holder = getattr(dynamic_rendezvous, "_BackendRendezvousStateHolder", None)
    if holder is not None:
        holder.__init__ = functools.partialmethod(holder.__init__, cache_duration=0)
    context: Any = api.MultiprocessContext
    if hasattr(context, "_poll"):
        context.close = _wait_as_requested(context.close)
        context._poll = _add_missing_results(context._poll)  # noqa: SLF001 (likewise)
    # torch logs the traceback of a rank that has already printed it.
    logging.getLogger(api.__name__).addFilter(lambda r: not str(r.msg).startswith("failed (exit"))


def _short_delay(seconds: Any) -> None:
    """Sleep as torch's `_delay` does, but for at most `RENDEZVOUS_POLL_SECONDS`."""
    longest = max(seconds) if isinstance(seconds, tuple) else seconds
    time.sleep(min(longest, RENDEZVOUS_POLL_SECONDS))


def _wait_as_requested(close: Callable[..., None]) -> Callable[..., None]:
    """Wrap `close`: wait after SIGTERM as long as the job says.

    Before 2.13 torch has no setting for this. Every version calls `close` without a timeout if a
    signal interrupts the start of ranks, and would wait 30 s then.
    """
    requested = int(os.environ.get(SHUTDOWN_ENV, "0"))

    @functools.wraps(close)
    def patched(self: Any, death_sig: Any = None, timeout: int | None = None) -> None:
        wait = INTERRUPTED_START_SECONDS if timeout is None else max(timeout, requested)
        close(self, death_sig, wait)

    return patched


def _add_missing_results(poll: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap `_poll`: add the result of ranks that exited with 0 by `sys.exit()` or `os._exit(0)`.

    torch waits forever for the result that only a returning function delivers.
    """

    @functools.wraps(poll)
    def patched(self: Any) -> Any:
        for rank, process in enumerate(self._pc.processes if self._pc else ()):
            results = self._ret_vals[rank]
            if process.exitcode == 0 and rank not in self._return_values and results.empty():
                results.put(None)
        return poll(self)

    return patched
