"""Why a rank's collective failed: which ranks did not come in time, or that one has gone.

torch keeps the newest collectives of each rank (its flight recorder). On a timeout every rank that
waits puts what it waits in into the store of the rendezvous, where each sees who has not, and
writes its record for `torchfrtrace`. NCCL's watchdog ends a process by itself: torch writes the
record then, to the same place.
"""

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Mapping, MutableMapping
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple, TypeVar

import torch.distributed as dist
from torch._C import _distributed_c10d
from torch.distributed import distributed_c10d

from ddp_trainer.config import RunConfig
from ddp_trainer.errors import Refusal
from ddp_trainer.ranks.environment import Ranks

FOLDER = "flight-recorder"
"""In the run's directory: a file `rank-N` of each rank that waited in vain last."""
PREFIX = "TORCH_FR_DUMP_TEMP_FILE"
"""Where torch's own records go, without the rank's number; older versions know another name."""
OLD_PREFIX = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
MEETING_SECONDS = 3.0
"""How long a rank whose time is up leaves the others to say the same."""
HOST_SECONDS = 1.0
"""How much longer rank 0 stays, whose process holds the store."""
TELL_SECONDS = 6.0
"""Longest time for each of it: a store or a volume that hangs keeps no rank alive."""
MOST_NAMED = 8

_KEY = "ddp-trainer/stalled"
_GONE = re.compile(r"/gloo/transport/.*?\] (?P<how>.*(closed by peer|reset by peer|Broken pipe).*)")
_TIMED_OUT = re.compile(r"/gloo/.*(Timed out|timeout)|Watchdog caught collective operation timeout")

# What is used of them has no types, or no public name.
_dist: Any = dist
_c10d: Any = _distributed_c10d
T = TypeVar("T")


class Wait(NamedTuple):
    """A collective that has not ended."""

    words: str
    seconds: float
    """Since it began."""
    limit: float
    """Seconds that it may take."""


class StalledError(Refusal):
    """The other ranks did not come in time."""


class LostPeerError(Refusal):
    """Another rank has ended: what it says is the cause, and nothing here is."""


def prepare(config: RunConfig, environ: MutableMapping[str, str], *, nccl: bool) -> None:
    """Sets how much is logged and where records go; to be called before the process group.

    What the user has set in the environment stays, but for what would crash: DDP over gloo with
    torch's level DETAIL is a segmentation fault in its logger (torch 2.11 to 2.13).

    Args:
        config: Of the run.
        environ: Changed in place.
        nccl: Whether NCCL will be used.
    """
    level, directory = config.parallel.debug, config.checkpoint.directory
    wanted: dict[str, str] = {}
    if level != "off":
        wanted |= {"TORCH_DISTRIBUTED_DEBUG": level.upper(), "NCCL_DEBUG": "INFO"}
    if directory:
        own = f"{directory}/{FOLDER}/rank-"
        prefix = environ.get(PREFIX) or environ.get(OLD_PREFIX) or own
        wanted |= {PREFIX: prefix, OLD_PREFIX: prefix}
        if nccl and prefix == own:  # torch does not make the folder
            with contextlib.suppress(OSError):
                Path(prefix).parent.mkdir(parents=True, exist_ok=True)
    for name, value in wanted.items():
        environ.setdefault(name, value)
    _dist.set_debug_level_from_env()
    if not nccl and _dist.get_debug_level() == _dist.DebugLevel.DETAIL:
        _dist.set_debug_level(_dist.DebugLevel.INFO)


def explain(error: Exception, ranks: Ranks, where: str) -> None:
    """Says why, if the error is that of a collective without its peers.

    Takes seconds if it waited for them in vain, and none if their connections are gone.

    Args:
        error: Of this rank.
        ranks: This process's place.
        where: For the sentence, as `rank 3, update 70`.

    Raises:
        StalledError: If another rank did not come in time.
        LostPeerError: If another rank has ended.
    """
    if not isinstance(error, RuntimeError):
        return
    newest = _unfinished() if dist.is_initialized() else None
    gone = _GONE.search(str(error))
    # The first rank whose time is up closes its connections: those whose time is nearly up say so.
    if gone and not (newest and newest.seconds > newest.limit / 2):
        # The agent knows by torch's own words that this rank is not the one to blame.
        how = gone["how"].partition(". This is")[0]
        raise LostPeerError(f"{where}: another rank has gone: {how}", own=True) from error
    if newest is None or not (gone or _TIMED_OUT.search(str(error))):
        return
    waits = newest.words
    told = _within(TELL_SECONDS, partial(_meet, ranks.rank, waits))
    record = _within(TELL_SECONDS, partial(_write, ranks.rank, os.environ))
    sentence = f"{where}: waited {newest.seconds:.1f} s {waits}, {_blame(told or {}, ranks, waits)}"
    if record:
        sentence += f"; the collectives until then are in {record.parent}"
    raise StalledError(sentence, own=True) from error


def _within(seconds: float, call: Callable[[], T]) -> T | None:
    """What the call returns; nothing if it fails, or takes longer: it is left to itself then."""
    found: list[T] = []

    def kept() -> None:
        with contextlib.suppress(RuntimeError, OSError):
            found.append(call())

    helper = Thread(target=kept, daemon=True)
    helper.start()
    helper.join(seconds)
    return found[0] if found else None


def _unfinished() -> Wait | None:
    """The newest collective that this rank waits in; None if torch keeps no record."""
    record = json.loads(_c10d._dump_fr_trace_json(includeCollectives=True, onlyActive=True))  # noqa: SLF001
    if not record.get("entries"):
        return None
    newest = record["entries"][-1]
    name = newest["profiling_name"].removeprefix("gloo:")
    sizes = " and ".join(map(str, newest["input_sizes"]))
    words = f"in {name} of {sizes} (number {newest['collective_seq_id']})"
    seconds = time.time() - newest["time_created_ns"] / 1e9
    return Wait(words, seconds, newest["timeout_ms"] / 1e3)


def _meet(rank: int, waits: str) -> dict[int, str]:
    """Tells the other ranks, and returns what each that told has said."""
    store: Any = distributed_c10d._get_default_store()  # noqa: SLF001
    store.append(_KEY, f"{rank} {waits}\n")
    time.sleep(MEETING_SECONDS)
    lines = [line.partition(" ") for line in store.get(_KEY).decode().splitlines()]
    if rank == 0:
        time.sleep(HOST_SECONDS)
    return {int(other): what for other, _, what in lines}


def _write(rank: int, environ: Mapping[str, str]) -> Path | None:
    prefix = environ.get(PREFIX)
    if prefix is None:
        return None
    path = Path(f"{prefix}{rank}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_c10d._dump_fr_trace())  # noqa: SLF001
    return path


def _blame(told: Mapping[int, str], ranks: Ranks, waits: str) -> str:
    """What to make of it: who is missing, or who does something else.

    Args:
        told: What each rank waited in; empty if the store was out of reach.
        ranks: This process's place.
        waits: What this rank waited in.
    """
    if not told:
        return "and could not ask which rank did not come"
    missing = [rank for rank in range(ranks.world_size) if rank not in told]
    if missing:
        return f"but {_listed(missing)} did not come"
    others = {rank: what for rank, what in told.items() if what != waits}
    if others:
        rank, what = min(others.items())
        return f"but rank {rank} waited {what}: all ranks must take part in the same collectives"
    return "as all ranks did: look at the network between them"


def _listed(members: list[int]) -> str:
    named = ", ".join(map(str, members[:MOST_NAMED]))
    more = len(members) - MOST_NAMED
    return f"rank{'s' * (len(members) > 1)} {named}{f' and {more} more' if more > 0 else ''}"
