"""Start the processes of attempts, warm or cold, and stop them.

Process: agent (loop).
"""

import logging
import os
import signal
from collections.abc import Callable
from dataclasses import replace

from ddp_agent.clock import TICK_SECONDS, Ticker
from ddp_agent.config import AgentConfig
from ddp_agent.failures import read_failure
from ddp_agent.orders import Interruption
from ddp_agent.processes.launch import Launch, can_be_forked
from ddp_agent.processes.log_mirror import LogMirror
from ddp_agent.processes.records import WRITING_SECONDS, RecordsFolder
from ddp_agent.processes.supervise import ColdTree, ProcessTree, WarmTree
from ddp_agent.processes.warm import (
    READY_SECONDS,
    Standby,
    StandbyLostError,
    StandbyUnusableError,
    standby_environment,
)
from ddp_agent.status.xids import XidCounts, new_xids
from ddp_wire.contract import Env
from ddp_wire.machine import memory_limit, out_of_memory_kills
from ddp_wire.messages import Failure
from ddp_wire.records import KeptSteps

_log = logging.getLogger("ddp_agent")

RESTART_GRACE_SECONDS = 0.3
"""Seconds between SIGTERM and SIGKILL before a new attempt, because it resumes from a
checkpoint."""
REMINDER_SECONDS = 5.0
"""Seconds after SIGTERM to torchrun at which the agent sends SIGTERM once to ranks that still
run."""
_KILLED_CHILD = "is killed by signal: Killed"
"""Part of torch's message about a killed data worker."""
_MESSAGE_CHARACTERS = 1024
"""Maximum length of the message of a failure."""


class Evidence:
    """Counters of the container, such as out-of-memory kills, whose growth explains a failure."""

    def __init__(self, xids: Callable[[], XidCounts]) -> None:
        """Read the counters before an attempt starts.

        Args:
            xids: Function that returns the XID errors of the GPUs until now.
        """
        self._xids = xids
        self._memory_kills, self._xids_before = out_of_memory_kills(), xids()

    def explain(self, failure: Failure) -> Failure:
        """Return the failure with the explanation that the grown counters give."""
        killed = failure.signal == "SIGKILL" or _KILLED_CHILD in failure.message
        if killed and out_of_memory_kills() > self._memory_kills:
            failure = _with_reason(failure, _memory_limit())
            failure = failure.model_copy(update={"out_of_memory": True, "secondary": False})
        found = new_xids(self._xids_before, self._xids())
        return _with_reason(failure, found) if found else failure


def _with_reason(failure: Failure, found: str) -> Failure:
    found = found[:_MESSAGE_CHARACTERS]
    message = failure.message[: max(0, _MESSAGE_CHARACTERS - len(found) - 2)]
    return failure.model_copy(update={"message": f"{message}; {found}" if message else found})


def _memory_limit() -> str:
    found = memory_limit()
    if found is None:
        return "the kernel killed a process although this container has no memory limit"
    limit, file = found
    return f"the kernel killed a process at the memory limit of {limit / 2**20:,.0f} MiB ({file})"


class AttemptProcess:
    """The running processes of one attempt."""

    def __init__(
        self,
        tree: ProcessTree,
        launch: Launch,
        evidence: Evidence,
        stop_grace_seconds: float,
        records: RecordsFolder | None = None,
    ) -> None:
        """Supervise the process tree of an attempt.

        Args:
            tree: The processes of the attempt.
            launch: The command line and directories of the attempt.
            evidence: Counters of the container before the start.
            stop_grace_seconds: Seconds between SIGTERM and SIGKILL when the run stops.
            records: Folder of this node's records.
        """
        self._tree, self._launch, self._evidence = tree, launch, evidence
        self._stop_grace_seconds = stop_grace_seconds
        self._records = records

    def poll(self) -> int | None:
        """Return torchrun's exit code, negative for a signal, or None while it runs."""
        return self._tree.poll()

    def interrupt(self, newest: Callable[[], Interruption | None], ticker: Ticker) -> None:
        """Send SIGTERM and wait until the processes end, at most for the grace period.

        If another attempt follows, the ranks first keep their state in memory.

        Args:
            newest: Function that returns the newest reason. A newer order may shorten the grace
                period.
            ticker: Clock of the agent's loop.
        """
        if self._records is not None and not _saves(newest()):
            self._records.ask_to_leave(self._launch.attempt)
            self._tree.terminate_ranks()  # torchrun takes a moment to forward the signal.
        self._tree.signal(signal.SIGTERM)
        now = ticker.clock.monotonic
        began, reminded = now(), False
        while self._tree.poll() is None and now() < began + self._grace_seconds(newest()):
            if not reminded and now() > began + REMINDER_SECONDS:
                # torchrun loses a signal that arrives while it starts its ranks (seen with 2.13).
                self._tree.terminate_ranks()
                reminded = True
            ticker.tick()

    def _grace_seconds(self, interruption: Interruption | None) -> float:
        if _saves(interruption):
            return self._stop_grace_seconds
        written = self._records is not None and self._records.is_written()
        return WRITING_SECONDS if written else RESTART_GRACE_SECONDS

    def kill(self) -> None:
        """Kill all remaining processes, which would use files and ports of the next attempt."""
        if not self._tree.kill():
            _log.error("some ranks of attempt %d do not end after SIGKILL", self._launch.attempt)

    def kept_steps(self, ranks: int) -> KeptSteps:
        """Return the updates after which the given number of ranks have kept their state."""
        if self._records is None:
            return KeptSteps()
        return self._records.kept_steps(self._launch.attempt, ranks)

    def failure(self, now: float) -> Failure | None:
        """Return the failure of the ended attempt, or None if it succeeded."""
        if self._tree.returncode == 0:
            return None
        launch = self._launch
        failure = read_failure(launch.failure_file, launch.attempt, self._tree.returncode, now)
        return self._evidence.explain(failure)


def _saves(interruption: Interruption | None) -> bool:
    """Return whether the ranks save a checkpoint before they end."""
    return interruption in {Interruption.STOP, Interruption.RESIZE}


class AttemptStarter:
    """Starter of attempts: it forks them from its standby, or else starts new processes."""

    def __init__(
        self,
        config: AgentConfig,
        ticker: Ticker,
        standby: Standby | None = None,
        *,
        xids: Callable[[], XidCounts] = dict,
        records: RecordsFolder | None = None,
    ) -> None:
        """Prepare to start attempts.

        Args:
            config: Configuration of the agent.
            ticker: Clock of the agent's loop.
            standby: Standby that was started early. The starter uses or closes it.
            xids: Function that returns the XID errors of the GPUs until now.
            records: Folder of this node's records.
        """
        self._records = records
        self._config, self._ticker, self._standby, self._xids = config, ticker, standby, xids
        self._may_fork = config.standby
        self._mirror: LogMirror | None = None
        self._waits_since: float | None = None
        self._has_replaced = False

    def ensure_standby(self) -> None:
        """Start a standby if attempts can be forked and no standby runs.

        Replace a standby that has ended, for example for lack of memory. Do not wait for its
        imports.
        """
        wanted = self._may_fork and can_be_forked(self._config)
        if self._standby is not None and not (wanted and self._standby.is_alive()):
            self._close_standby()
        if wanted and self._standby is None:
            self._standby = Standby(standby_environment(os.environ))

    def is_warm(self) -> bool:
        """Return whether an attempt could start at once: the standby is ready, or none is used."""
        if self._standby is None:
            return True
        return self._standby.is_alive() and self._standby.imports_seconds is not None

    def wait_ready(self) -> bool:
        """Wait for the imports of a standby, for about one tick. Return whether they have ended.

        Return True without a standby, or if the imports take too long. Each call lasts only one
        tick, so that the agent can obey orders between calls. Replace a standby that has ended.
        """
        if self._standby is None:
            return True
        clock = self._ticker.clock
        self._waits_since = self._waits_since or clock.monotonic()
        self._ticker.record()
        if not self._standby.is_alive():
            return self._replace_lost()
        try:
            ready = self._standby.wait_ready(TICK_SECONDS)
        except StandbyLostError:
            return self._replace_lost()
        return ready or clock.monotonic() > self._waits_since + READY_SECONDS

    def _replace_lost(self) -> bool:
        """Replace a standby that has ended, but only once. Return whether no wait is necessary."""
        self._close_standby()
        if self._has_replaced:
            _log.warning("the standby has ended twice, so the attempt starts cold")
            return True
        _log.warning("the standby has ended, and the agent starts a new one")
        self._has_replaced = True
        self.ensure_standby()
        return self._standby is None

    def start(self, launch: Launch) -> AttemptProcess:
        """Start the processes of an attempt, and the thread that copies its logs."""
        if self._records is not None and self._records.path is not None:
            folder = {str(Env.RECORDS_DIR): str(self._records.path)}
            launch = replace(launch, environment=launch.environment | folder)
        evidence = Evidence(self._xids)
        tree = self._start_warm(launch) or ColdTree(launch.command, launch.environment)
        self._waits_since, self._has_replaced = None, False
        self._mirror = LogMirror(launch.log_dir, launch.log_copy_dir)
        grace = self._config.stop_grace_seconds
        return AttemptProcess(tree, launch, evidence, grace, self._records)

    def finish_logs(self) -> None:
        """Tell the thread that copies the attempt's logs to finish. Do not wait for it."""
        if self._mirror is not None:
            self._mirror.end()

    def close(self) -> None:
        """Kill the standby, delete the records, and wait for the last copies of the logs."""
        self._close_standby()
        if self._records is not None:
            self._records.delete()
        if self._mirror is not None:
            self._mirror.wait()

    def _start_warm(self, launch: Launch) -> WarmTree | None:
        """Fork the attempt from the standby. Return None if no standby is ready."""
        if self._standby is None:
            return None
        if self._standby.imports_seconds is not None:
            try:
                return WarmTree(self._standby, launch.arguments, launch.environment)
            except StandbyLostError as error:
                _log.warning("%s", error)
            except StandbyUnusableError as error:
                _log.warning("attempts of this pod start cold, because %s", error)
                self._may_fork = False
                self._close_standby()
                return None
        _log.warning("the standby is not usable, so attempt %d starts cold", launch.attempt)
        self._close_standby()
        return None

    def _close_standby(self) -> None:
        if self._standby is not None:
            self._standby.close()
            self._standby = None
