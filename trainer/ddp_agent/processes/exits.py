"""End ranks that do not exit after their work is done, so that finished work counts.

The ranks of a task report the end of their work, after the last checkpoint is committed. A
`command` reports nothing. Its work counts as done once a rank of any node has exited with code 0
and the remaining ranks of this node use no CPU.

Process: agent (loop).
"""

import contextlib
import logging
import os
import re
import signal
from pathlib import Path

from ddp_agent.clock import Clock
from ddp_agent.hang_limits import HangLimits
from ddp_agent.processes.rank_processes import (
    RankProcesses,
    mark_killed,
    read_exit_failures,
    read_processes,
)
from ddp_agent.status.heartbeats import common_result
from ddp_wire.messages import EXIT_PROBLEMS, ExitProblem, Failure
from ddp_wire.processes import blocked_process, cpu_seconds, descendants
from ddp_wire.stacks import read_stacks, request_stacks

_log = logging.getLogger("ddp_agent")

LOOK_SECONDS = 1.0
"""Seconds between two checks of the ranks."""
STACK_SECONDS = 1.0
"""Seconds in which a rank must write its stacks."""
LAUNCHER_SECONDS = 30.0
"""Maximum seconds to wait for the launcher and the other nodes after the ranks' limit has
passed."""
_IDLE_SHARE = 0.01
"""Share of one CPU below which a rank of a `command` counts as idle."""

_WAITS_FOR_RANKS = re.compile(
    r"^Current thread.*\n(?:  File .*\n){0,8}?  File .*/torch/(?:distributed/(?!.*destroy_process)"
    r"|autograd/graph|cuda/)",
    re.MULTILINE,
)
"""Pattern for the stack of a main thread that waits in a collective."""


class ExitWatch:
    """Watcher of the exits of one attempt's ranks. Only the agent's loop calls it."""

    def __init__(
        self,
        limits: HangLimits,
        directory: Path,
        attempt: int,
        ranks: int,
        clock: Clock,
        *,
        reports_end: bool,
    ) -> None:
        """Create the watcher before any rank is done.

        Args:
            limits: Hang limits of the job.
            directory: Directory of the heartbeats.
            attempt: Number of the attempt.
            ranks: Number of local ranks.
            clock: Source of time.
            reports_end: Whether the ranks report the end of their work, as the ranks of a task do.
        """
        self._reports_end = reports_end
        self._limits, self._directory, self._attempt = limits, directory, attempt
        self._ranks, self._clock = ranks, clock
        self._looked = clock.monotonic()
        self._since: float | None = None
        """Time from which the limit counts, or None while the ranks work."""
        self._cpu: float | None = None
        """CPU time of the ranks of a `command` at the last look, in seconds."""
        self._asked: float | None = None
        self._problems: list[ExitProblem] = []

    @property
    def result(self) -> int | None:
        """Exit code that all local ranks have announced for their end, or None before."""
        return common_result(self._directory, self._attempt, self._ranks)

    def problems(self) -> list[ExitProblem] | None:
        """Return the problems of ranks that did not exit normally, or None if all did."""
        failed = [as_problem(one) for one in read_exit_failures(self._directory)]
        return [*self._problems, *failed][:EXIT_PROBLEMS] or None

    def look(self) -> bool:
        """Kill ranks that exceed the limit. Return whether the launcher exceeds its limit too."""
        now = self._clock.monotonic()
        if not self._limits.detect or now < self._looked + LOOK_SECONDS:
            return False
        self._looked = now
        is_done = self.result is not None
        processes = read_processes(self._directory) or RankProcesses(first_rank=0)
        if self._asked is None and not self._is_leaving(processes, now, is_done=is_done):
            self._since = self._cpu = None
            return False
        passed = now - (now if self._since is None else self._since)
        if passed <= self._limits.exit_seconds:
            return False
        if processes.running and not self._problems:
            self._end(processes, now, passed)
        return is_done and passed > self._limits.exit_seconds + LAUNCHER_SECONDS

    def _is_leaving(self, processes: RankProcesses, now: float, *, is_done: bool) -> bool:
        """Return whether the exit limit applies, and record the time from which it applies."""
        if is_done:
            self._since = now if self._since is None else self._since
            return True
        if self._reports_end or not processes.any_left or not processes.running:
            return False
        used = sum(cpu_seconds(pid) for pid in processes.running.values())
        since, before = self._since, self._cpu
        if since is None or before is None or used > before + _IDLE_SHARE * (now - since) + 0.1:
            self._since, self._cpu = now, used
        return True

    def _end(self, processes: RankProcesses, now: float, passed: float) -> None:
        """Request the stacks of the ranks, and kill the ranks a moment later."""
        if self._asked is None:
            self._asked = now
            for local_rank, pid in processes.running.items():
                request_stacks(self._directory, local_rank, pid)
            return
        if now < self._asked + STACK_SECONDS:
            return
        stacks = {rank: self._stack(rank) for rank in processes.running}
        if not self._reports_end and any(_WAITS_FOR_RANKS.search(one) for one in stacks.values()):
            # A rank has exited too early, so this is no end. Timeouts of the process group follow.
            self._since = self._cpu = self._asked = None
            return
        for local_rank, pid in processes.running.items():
            rank, stack = processes.first_rank + local_rank, stacks[local_rank]
            why = blocked_process(pid) or _innermost(stack) or "its process does not show why"
            message = f"did not exit within {passed:.0f} s after its work was done: {why}"
            self._problems.append(ExitProblem(rank=rank, message=message[:512], stack=stack))
            _log.warning("rank %d %s\n%s", rank, message, stack)
        for local_rank, pid in processes.running.items():
            mark_killed(self._directory, local_rank)
            for one in (pid, *descendants(pid)):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(one, signal.SIGKILL)

    def _stack(self, local_rank: int) -> str:
        return _without_launcher(read_stacks(self._directory, local_rank))


def as_problem(failure: Failure) -> ExitProblem:
    """Return the problem of a rank or launcher that failed after its work was done."""
    how = f"was killed by {failure.signal}" if failure.signal else "failed"
    text = f": {failure.message}" if failure.message else ""
    code = f" with exit code {failure.exit_code}" if failure.exit_code and not text else ""
    message = f"{how}{code} after its work was done{text}"
    return ExitProblem(rank=failure.rank, message=message[:512], stack=failure.traceback)


def _without_launcher(stacks: str) -> str:
    """Return the stacks without the frames that started the user's program."""
    kept, skips = [], False
    for line in stacks.splitlines():
        skips = line.startswith("  File ") and (skips or "/ddp_agent/" in line)
        if not skips:
            kept.append(line)
    return "\n".join(kept)


def _innermost(stacks: str) -> str:
    """Return the innermost frame of the main thread, which received the request, or ""."""
    lines = [line.strip() for line in stacks.splitlines()]
    starts = [index for index, line in enumerate(lines) if line.startswith("Current thread")]
    found = lines[starts[0] + 1] if starts and starts[0] + 1 < len(lines) else ""
    waits = "/threading.py" in found and found.endswith(" in _shutdown")
    return "it waits for a thread that does not end" if waits else found
