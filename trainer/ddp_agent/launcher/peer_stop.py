"""End the other ranks of a node as soon as one has failed, and tell which failed by themselves.

torchrun sends SIGTERM to the other ranks and waits up to 30 s for them. A rank that waits for a
lost peer in a collective does not end by SIGTERM, so each recovery would begin 30 s late. torchrun
also counts ranks that it ended itself as failed. It has no settings for this. `apply` changes both
kinds of torchrun's contexts, those of forked and of executed ranks. When torchrun finds a failed
rank, the launcher

1. asks the other ranks to keep their state in memory (`ddp_wire.records`);
2. sends them SIGTERM, and kills them after 1 s, or after 30 s while one writes its state;
3. reports the failed ranks, and those that ended with an error of their own in step 2. One of these
   may be the cause: a rank that prints its traceback can end after a rank that lost it.

If all ranks have done their work, the others have torchrun's 30 s to end, and none is killed early.

Process: launcher.
"""

import functools
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from torch.distributed.elastic.multiprocessing import api
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from ddp_agent.processes.records import WRITING_SECONDS
from ddp_agent.status.heartbeats import common_result
from ddp_wire.contract import Env, ExitCode
from ddp_wire.records import ask_to_leave, is_written

PEER_STOP_SECONDS = 1.0
"""Seconds between SIGTERM and SIGKILL for the other ranks, unless one writes its state."""
_POLL_SECONDS = 0.01
_TORCHS_STOP_SECONDS = 30.0
"""Seconds that torchrun itself gives the other ranks to end."""
_ENDED_ON_REQUEST = (None, 0, -signal.SIGTERM, ExitCode.PREEMPTED)
"""Exit codes of ranks that ended because of SIGTERM. None: it did not end, and was killed."""


def apply() -> None:
    """Change torchrun's contexts in this process, but not in ranks that are forked from it."""
    forked, executed = cast(Any, api.MultiprocessContext), cast(Any, api.SubprocessContext)
    launcher = os.getpid()
    if hasattr(forked, "_poll"):
        forked._poll = _wrap_poll(forked._poll, launcher)  # noqa: SLF001 (there is no setting)
    if hasattr(executed, "_poll") and hasattr(executed, "_capture_process_failures"):
        executed._poll = _wrap_poll(executed._poll, launcher)  # noqa: SLF001 (likewise)
        capture = executed._capture_process_failures  # noqa: SLF001 (likewise)
        executed._capture_process_failures = _wrap_capture(capture, launcher)  # noqa: SLF001 (likewise)


def _wrap_poll(poll: Callable[[Any], Any], launcher: int) -> Callable[[Any], Any]:
    """Wrap `_poll`: report only ranks that failed by themselves, and all of them."""

    @functools.wraps(poll)
    def patched(self: Any) -> Any:
        if os.getpid() == launcher and not hasattr(self, "ddp_failed"):
            self.ddp_failed = {}
            if hasattr(getattr(self, "_pc", None), "_join_procs_with_timeout"):
                _wrap_join(self)
        result = poll(self)
        own = getattr(self, "ddp_failed", {})
        if result is not None and result.failures and own:
            known = result.failures
            result.failures = {r: known.get(r) or _failure(self, r, own[r]) for r in own}
        return result

    return patched


def _wrap_join(context: Any) -> None:
    """Let `ProcessContext.join` stop the peers of a failed rank, before it sends SIGTERM itself.

    With a grace period, `join` first calls `_join_procs_with_timeout`.
    """
    joined = context._pc  # noqa: SLF001 (there is no other access)
    wait = joined._join_procs_with_timeout  # noqa: SLF001 (likewise)

    def stop(timeout: float) -> None:
        if not context.ddp_failed and not _are_done(len(joined.processes)):
            context.ddp_failed = stop_peers(dict(enumerate(joined.processes)))
        wait(timeout)

    joined.join = functools.partial(joined.join, grace_period=_TORCHS_STOP_SECONDS)
    joined._join_procs_with_timeout = stop  # noqa: SLF001 (likewise)


def _wrap_capture(capture: Callable[..., None], launcher: int) -> Callable[..., None]:
    """Wrap `_capture_process_failures`: stop the peers of a rank that it finds failed."""

    @functools.wraps(capture)
    def patched(self: Any, done_local_ranks: set[int]) -> None:
        capture(self, done_local_ranks)
        processes = {rank: each.proc for rank, each in self.subprocess_handlers.items()}
        stops = os.getpid() == launcher and self._failures and not self.ddp_failed
        if stops and not _are_done(len(processes)):
            self.ddp_failed = stop_peers(processes)

    return patched


def _failure(context: Any, rank: int, process: Any) -> ProcessFailure:
    """Return torchrun's record of a failed rank."""
    return ProcessFailure(rank, process.pid, _exit_code(process) or 0, context.error_files[rank])


def _exit_code(process: Any) -> int | None:
    code: int | None = process.poll() if isinstance(process, subprocess.Popen) else process.exitcode
    return code


def _are_done(ranks: int) -> bool:
    """Return whether all local ranks have announced that their work has succeeded."""
    directory = os.environ.get(Env.BEATS_DIR)
    if directory is None:
        return False
    return common_result(Path(directory), int(os.environ[Env.ATTEMPT]), ranks) == ExitCode.OK


def stop_peers(processes: Mapping[int, Any]) -> dict[int, Any]:
    """End the ranks that still run. Return the processes of those that failed by themselves.

    Args:
        processes: Process of each local rank, of which one has failed.
    """
    folder = os.environ.get(Env.RECORDS_DIR)
    records = Path(folder) if folder else None
    before = {rank: _exit_code(process) for rank, process in processes.items()}
    peers = {rank: processes[rank] for rank, code in before.items() if code is None}
    if records is not None:
        ask_to_leave(records, int(os.environ[Env.ATTEMPT]))
    for process in peers.values():
        process.terminate()
    codes = _wait(peers, records)
    for rank, process in peers.items():
        if codes[rank] is None:
            process.kill()
    own = {rank for rank, code in before.items() if code}
    own |= {rank for rank, code in codes.items() if code not in _ENDED_ON_REQUEST}
    return {rank: processes[rank] for rank in sorted(own)}


def _wait(peers: Mapping[int, Any], records: Path | None) -> dict[int, int | None]:
    """Wait until all ranks have ended, or their time is over. Return their exit codes."""
    began = time.monotonic()
    while True:
        codes = {rank: _exit_code(process) for rank, process in peers.items()}
        written = records is not None and is_written(records)
        limit = WRITING_SECONDS if written else PEER_STOP_SECONDS
        if None not in codes.values() or time.monotonic() > began + limit:
            return codes
        time.sleep(_POLL_SECONDS)
