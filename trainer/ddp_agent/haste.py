"""Fits torchrun to this process: no long waits in a recovery, no lost words about a failure.

torch has no settings for these. Each change is made only where torch still has what it replaces;
without them everything works, slower and with less said. Called in the launcher of an attempt and
nowhere else.
"""

import functools
import logging
import time
from collections.abc import Callable
from typing import Any

from torch.distributed.elastic.multiprocessing import api
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous import dynamic_rendezvous

RENDEZVOUS_POLL_SECONDS = 0.05
"""In place of 1 s, and of a state that is cached for 1 s: a gang meets once per attempt."""
PEERS_STOP_SECONDS = 1
"""In place of 30 s: between SIGTERM and SIGKILL for ranks whose peer on this node has fallen."""


def hasten() -> None:
    """Shorten the waits of rendezvous and after a failure; report every rank that fell."""
    if hasattr(dynamic_rendezvous, "_delay"):
        dynamic_rendezvous._delay = _short_delay  # noqa: SLF001 (there is no setting)
    holder = getattr(dynamic_rendezvous, "_BackendRendezvousStateHolder", None)
    if holder is not None:
        holder.__init__ = functools.partialmethod(holder.__init__, cache_duration=0)
    context: Any = api.MultiprocessContext
    if hasattr(context, "_poll"):
        context.close = _closing(context.close)
        context._poll = _polling(context._poll)  # noqa: SLF001 (likewise)
    # It prints the traceback of a rank that has printed its own already.
    logging.getLogger(api.__name__).addFilter(lambda r: not str(r.msg).startswith("failed (exit"))


def _short_delay(seconds: Any) -> None:
    longest = max(seconds) if isinstance(seconds, tuple) else seconds
    time.sleep(min(longest, RENDEZVOUS_POLL_SECONDS))


def _closing(close: Callable[..., None]) -> Callable[..., None]:
    """`close`, which notes who had fallen before it ends the rest, and does not wait for long.

    torch states the time only when it was asked to stop; after a failure it takes the default.
    """

    @functools.wraps(close)
    def closing(self: Any, death_sig: Any = None, timeout: int = PEERS_STOP_SECONDS) -> None:
        processes = self._pc.processes if self._pc else []
        if not hasattr(self, "ddp_fallen"):
            self.ddp_fallen = {i: p for i, p in enumerate(processes) if p.exitcode}
        close(self, death_sig, timeout)

    return closing


def _polling(poll: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`_poll`, which reports all ranks that fell by themselves, where torch's names any one.

    The first to be looked at is often one that fell because another had.
    """

    @functools.wraps(poll)
    def polling(self: Any) -> Any:
        result = poll(self)
        if result is not None and result.failures:
            for rank, process in getattr(self, "ddp_fallen", {}).items():
                failure = ProcessFailure(
                    rank, process.pid, process.exitcode, self.error_files[rank]
                )
                result.failures.setdefault(rank, failure)
        return result

    return polling
