"""Diagnose a failed collective: which ranks did not join in time, or that a rank was lost.

On a timeout every waiting rank writes the name of its collective to the rendezvous store, so that
each rank sees which ranks are missing. Each waiting rank also dumps its flight recorder
(`ranks.flight_recorder`).
"""

import contextlib
import os
import re
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from threading import Thread
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed import distributed_c10d

from ddp_trainer.errors import ReportedError
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.ranks.flight_recorder import Wait, dump, newest_wait
from ddp_wire import collective_errors

PEER_SECONDS = 3.0
"""Seconds for which a rank waits for the entries of other ranks after its own timeout."""
STORE_HOST_SECONDS = 5.0
"""Maximum seconds for which rank 0 stays alive for other ranks, because it may host the store."""
REPORT_SECONDS = 6.0
"""Maximum seconds of the exchange through the store, and of the dump, so that a failed rank soon
ends."""
ENTRY_SECONDS = 1.0
"""Maximum seconds in which a rank that failed for another reason writes to the store that it has
ended."""
_POLL_SECONDS = 0.05
MAX_NAMED_RANKS = 8
"""Maximum number of missing ranks that a message lists."""

_KEY, _READ_KEY = "ddp-trainer/stalled", "ddp-trainer/stalled-read"
_PEER_LOST = re.compile(
    r"/gloo/transport/.*?\] (?P<how>.*(closed by peer|reset by peer|Broken pipe).*)"
    r"|Application timeout caused pair closure"
)
_TIMED_OUT = re.compile(r"/gloo/.*(Timed out|timeout)|Watchdog caught collective operation timeout")
_COLLECTIVE_CODE = re.compile(
    r"/torch/(distributed|autograd|nn/parallel)/|/ddp_trainer/(ranks|parallel)/"
)
"""Files whose functions wait in collectives. DDP waits in torch's autograd engine."""
_ENDED = "ended"
"""Store entry of a rank that ended for another reason than a timeout."""
_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""Environment variable of torch: `True` if the launcher, and not rank 0, hosts the store."""

T = TypeVar("T")


class StalledError(ReportedError):
    """Error of a timeout because other ranks did not join a collective."""


class LostPeerError(ReportedError):
    """Error of a lost connection because another rank ended. The other rank has the root cause."""


def raise_if_peer_failed(error: Exception, ranks: Ranks, where: str) -> None:
    """Raise an error about another rank if that rank caused this collective's error.

    The call takes seconds after a timeout, and no time if a connection was closed. This rank always
    writes to the store that it has ended, so that no other rank reports it as missing.

    Args:
        error: Error of this rank.
        ranks: This process's rank.
        where: Start of the message, for example `rank 3, update 70`.

    Raises:
        StalledError: If another rank did not join a collective in time.
        LostPeerError: If another rank has ended.
    """
    newest = newest_wait() if dist.is_initialized() else None
    failed = isinstance(error, RuntimeError)
    lost = _PEER_LOST.search(str(error)) if failed else None
    if newest is not None and failed and _is_stall(error, newest, lost=bool(lost)):
        message = f"{where}: {_stall(newest, ranks)}"
        raise StalledError(message, rank_specific=True) from error
    if newest is not None:
        _call_within(ENTRY_SECONDS, partial(_write_entry, ranks.rank, _ENDED))
    if lost:
        # The message keeps torch's words, by which the agent detects a secondary failure.
        how = (lost["how"] or lost[0]).partition(". This is")[0]
        message = f"{where}: lost another rank: {how}"
        raise LostPeerError(message, rank_specific=True) from error


def _is_stall(error: Exception, newest: Wait, *, lost: bool) -> bool:
    """Return whether an error ended a wait of this rank for its peers.

    The first rank that times out closes its connections. So a rank that has waited for more than
    half of its timeout also counts as stalled. Libraries choose the text of the error, so the
    innermost code decides, or the library's prefix if the task's own code waits.

    Args:
        error: Error of this rank.
        newest: Newest collective of this rank. gloo's record still contains a collective after its
            end.
        lost: Whether the text says that a connection was closed.
    """
    if _TIMED_OUT.search(str(error)):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    in_collective = bool(frames and _COLLECTIVE_CODE.search(frames[-1].filename))
    in_collective |= collective_errors.MARK.search(str(error)) is not None
    return (lost or in_collective) and newest.seconds > newest.limit / 2


def _stall(newest: Wait, ranks: Ranks) -> str:
    """Exchange with all other ranks where each rank waits. Return a message about the stall."""
    own = newest.collective
    waits = _call_within(REPORT_SECONDS, partial(_waits_in_store, ranks.rank, own))
    dumped = _call_within(REPORT_SECONDS, partial(dump, ranks.rank, os.environ))
    message = f"waited {newest.seconds:.1f} s {own}, {_diagnosis(waits, ranks, own)}"
    if dumped:
        message += f"; recorded collectives are in {dumped.parent}"
    if ranks.rank == 0 and waits:
        _call_within(STORE_HOST_SECONDS, partial(_wait_for_readers, _waiting(waits)))
    return message


def _call_within(seconds: float, call: Callable[[], T]) -> T | None:
    """Return the result of a call, or None if it fails or takes longer.

    A call that takes longer continues in a daemon thread.
    """
    found: list[T] = []

    def keep_result() -> None:
        with contextlib.suppress(RuntimeError, OSError):
            found.append(call())

    helper = Thread(target=keep_result, daemon=True)
    helper.start()
    helper.join(seconds)
    return found[0] if found else None


def _write_entry(rank: int, entry: str) -> None:
    """Write to the store in which collective this rank waited, or that the rank has ended."""
    store: Any = distributed_c10d._get_default_store()  # noqa: SLF001
    store.append(_KEY, f"{rank} {entry}\n")


def _waits_in_store(rank: int, own: str) -> dict[int, str]:
    """Exchange where each rank waits. Return an empty dictionary if the store no longer exists."""
    try:
        return _exchange_waits(rank, own)
    except (RuntimeError, OSError):
        return {}


def _exchange_waits(rank: int, own: str) -> dict[int, str]:
    """Write this rank's collective to the store, and return the entry of each rank."""
    store: Any = distributed_c10d._get_default_store()  # noqa: SLF001
    _write_entry(rank, own)
    time.sleep(PEER_SECONDS)
    lines = [line.partition(" ") for line in store.get(_KEY).decode().splitlines()]
    store.add(_READ_KEY, 1)
    return {int(other): collective for other, _, collective in lines}


def _wait_for_readers(number: int) -> None:
    """Wait until the given number of ranks have read the store."""
    store: Any = distributed_c10d._get_default_store()  # noqa: SLF001
    while store.add(_READ_KEY, 0) < number:
        time.sleep(_POLL_SECONDS)


def _waiting(waits: Mapping[int, str]) -> int:
    """Return the number of ranks that wait in a collective, because they will read the store."""
    return sum(entry != _ENDED for entry in waits.values())


def _diagnosis(waits: Mapping[int, str] | None, ranks: Ranks, own: str) -> str:
    """Return the part of the message about missing ranks or ranks in another collective.

    Args:
        waits: Collective that each rank waited in, or `_ENDED`. Empty if the store no longer
            exists, None if it did not answer.
        ranks: This process's rank.
        own: Collective that this rank waited in.
    """
    if not waits and ranks.rank != 0 and os.environ.get(_AGENT_STORE) != str(True):
        state = "does not answer" if waits is None else "has ended"
        return f"but rank 0, whose process hosts the store, {state}"
    if not waits:
        return "and could not read from the store which ranks are missing"
    missing = [rank for rank in range(ranks.world_size) if rank not in waits]
    if missing:
        return f"but {_listed(missing)} did not join"
    ended = [rank for rank, entry in waits.items() if entry == _ENDED]
    if ended:
        return f"but {_listed(sorted(ended))} had ended"
    others = {rank: collective for rank, collective in waits.items() if collective != own}
    if others:
        rank, collective = min(others.items())
        return (
            f"but rank {rank} waited {collective}: all ranks must call the same collectives in the"
            " same order"
        )
    return "as did all other ranks: check the network between them"


def _listed(members: list[int]) -> str:
    named = ", ".join(map(str, members[:MAX_NAMED_RANKS]))
    more = len(members) - MAX_NAMED_RANKS
    return f"rank{'s' * (len(members) > 1)} {named}{f' and {more} more' if more > 0 else ''}"
