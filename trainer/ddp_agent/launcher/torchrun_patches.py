"""Patch torchrun in this process: shorten waits in a recovery, and report all failed ranks.

torch has no settings for this. `apply` replaces the following private functions, each only if torch
still has it. Without a patch the recovery is slower, or a failure is described less completely:

- `dynamic_rendezvous._delay`: poll the rendezvous every 0.05 s, not once per second.
- `_BackendRendezvousStateHolder`: keep no copy of the rendezvous state, which may be 1 s old.
- `MultiprocessContext.close`: before torchrun stops the other local ranks, record which ranks have
  failed by themselves. After a failure, kill the remaining ranks after 1 s, not after 30 s.
- `MultiprocessContext._poll`: return all ranks that `close` has recorded. torch returns only one
  rank, which often failed only because of another rank. Also add the missing result of a rank that
  ended by `sys.exit()`, for which torch waits forever.

Process: launcher (of a warm start).
"""

import functools
import logging
import os
import time
from collections.abc import Callable
from typing import Any

from torch.distributed.elastic.multiprocessing import api
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous import dynamic_rendezvous

from ddp_agent.processes.launch import SHUTDOWN_ENV

RENDEZVOUS_POLL_SECONDS = 0.05
"""Seconds between two polls of the rendezvous. torch's default is 1 s, plus a state cache of 1
s."""
PEER_STOP_SECONDS = 1
"""Seconds between SIGTERM and SIGKILL for the remaining local ranks after a failure. torch's
default is 30 s."""


def apply() -> None:
    """Shorten torchrun's waits in the rendezvous and after a failure. Report every failed rank."""
    if hasattr(dynamic_rendezvous, "_delay"):
        dynamic_rendezvous._delay = _short_delay  # noqa: SLF001 (there is no setting)
    holder = getattr(dynamic_rendezvous, "_BackendRendezvousStateHolder", None)
    if holder is not None:
        holder.__init__ = functools.partialmethod(holder.__init__, cache_duration=0)
    context: Any = api.MultiprocessContext
    if hasattr(context, "_poll"):
        context.close = _record_failures_in_close(context.close)
        context._poll = _add_failures_to_poll(context._poll)  # noqa: SLF001 (likewise)
    # torch logs the traceback of a rank that has already printed it.
    logging.getLogger(api.__name__).addFilter(lambda r: not str(r.msg).startswith("failed (exit"))


def _short_delay(seconds: Any) -> None:
    """Sleep as torch's `_delay` does, but for at most `RENDEZVOUS_POLL_SECONDS`."""
    longest = max(seconds) if isinstance(seconds, tuple) else seconds
    time.sleep(min(longest, RENDEZVOUS_POLL_SECONDS))


def _record_failures_in_close(close: Callable[..., None]) -> Callable[..., None]:
    """Wrap `close`: record which ranks had already failed, and stop the rest quickly.

    torch passes a timeout only for a requested stop (before 2.13 always 30 s). After a failure it
    uses the default, which this wrapper shortens.
    """
    requested = int(os.environ.get(SHUTDOWN_ENV, "0"))

    @functools.wraps(close)
    def patched(self: Any, death_sig: Any = None, timeout: int | None = None) -> None:
        processes = self._pc.processes if self._pc else []
        if not hasattr(self, "ddp_failed"):
            self.ddp_failed = {i: p for i, p in enumerate(processes) if p.exitcode}
        close(self, death_sig, PEER_STOP_SECONDS if timeout is None else max(timeout, requested))

    return patched


def _add_missing_results(context: Any) -> None:
    """Add the result of ranks that exited with 0 by `sys.exit()` or `os._exit(0)`.

    torch waits forever for the result that only a returning function delivers.
    """
    for rank, process in enumerate(context._pc.processes if context._pc else ()):  # noqa: SLF001
        results = context._ret_vals[rank]  # noqa: SLF001 (there is no other access)
        if process.exitcode == 0 and rank not in context._return_values and results.empty():  # noqa: SLF001
            results.put(None)


def _add_failures_to_poll(poll: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap `_poll`: report all ranks that failed by themselves.

    torch reports only one rank, which has often failed only because of another rank.
    """

    @functools.wraps(poll)
    def patched(self: Any) -> Any:
        _add_missing_results(self)
        result = poll(self)
        if result is not None and result.failures:
            for rank, process in getattr(self, "ddp_failed", {}).items():
                failure = ProcessFailure(
                    rank, process.pid, process.exitcode, self.error_files[rank]
                )
                result.failures.setdefault(rank, failure)
        return result

    return patched
