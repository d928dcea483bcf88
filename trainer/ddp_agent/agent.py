"""The agent's loop: one attempt after the other, until one succeeds or the order is to stop."""

import logging
import os
import shlex
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from pydantic import ValidationError

from ddp_agent.attempt import AttemptFile, Stop
from ddp_agent.beats import all_spawned, all_train, read_beats, timeline
from ddp_agent.config import AgentConfig
from ddp_agent.failures import exit_code
from ddp_agent.launcher import Launch, can_be_forked, prepare
from ddp_agent.log_mirror import LogMirror
from ddp_agent.supervise import ProcessTree
from ddp_agent.warm import READY_SECONDS, Standby, StandbyLostError, WarmTree, standby_environment
from ddp_agent.word import Word
from ddp_wire.contract import (
    AgentPhase,
    AgentStatus,
    AttemptOrder,
    Beat,
    ExitCode,
    Failure,
    Timeline,
    rendezvous_port,
)
from ddp_wire.machine import out_of_memory_kills

_log = logging.getLogger("ddp_agent")

TICK_SECONDS = 0.1
RESTART_GRACE_SECONDS = 1.0
"""Between SIGTERM and SIGKILL when a new attempt is ordered: its ranks resume from a checkpoint."""
STOP_GRACE_SECONDS = 45.0
"""The same when the run is to stop: time to save, within the pod's own grace period."""
REMINDER_SECONDS = 5.0
"""After this ranks that still run are told to stop directly, once."""
NEXT_ORDER_SECONDS = 300.0
"""How long a failed attempt waits for the next one before the container ends."""


class Order(Enum):
    """Why an attempt is broken off."""

    NEXT = "next"
    """A newer attempt is ordered."""
    STOP = "stop"
    """The run is to stop."""


@dataclass
class Clock:
    """Time, so that tests can make it pass."""

    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Agent:
    """Runs the attempts of one node."""

    def __init__(
        self,
        config: AgentConfig,
        scratch: Path,
        clock: Clock | None = None,
        *,
        standby: Standby | None = None,
    ) -> None:
        """A standby that was begun already is taken over, to be used or ended."""
        self._config, self._scratch = config, scratch
        self._clock = clock or Clock()
        self._orders = AttemptFile(config.pod_info_dir)
        self._terminated = False
        self._standby = standby
        self._mirror: LogMirror | None = None
        self._ordered_at: float | None = None
        self._noticed_at: float | None = None
        self._cleared_at: float | None = None
        self._memory_kills = 0
        self._last_tick = self._clock.monotonic()
        first = AgentStatus(
            job_uid=config.job_uid,
            node_index=config.node_index,
            attempt=0,
            phase=AgentPhase.WAITING,
            since=self._clock.wall(),
        )
        self._word = Word(first)

    @property
    def _status(self) -> AgentStatus:
        return self._word.now()

    def status(self) -> AgentStatus:
        """What the agent says of itself now. Safe to call from any thread."""
        return self._word.now()

    def news(self, revision: int, seconds: float) -> AgentStatus:
        """The same once it is of another revision, or after a time. Safe from any thread."""
        return self._word.news(revision, seconds)

    def order(self, order: AttemptOrder) -> bool:
        """Take note of an ordered attempt, unless it is another job's. Safe from any thread."""
        if order.job_uid != self._config.job_uid:
            return False
        self._orders.tell(order.attempt)
        return True

    def alive(self) -> bool:
        """Whether the loop has moved lately."""
        return self._clock.monotonic() - self._last_tick < STOP_GRACE_SECONDS + 15.0

    def terminate(self) -> None:
        """Ask for a graceful end; a signal handler may call it."""
        self._terminated = True

    def run(self) -> int:
        """Run attempts until the end. Returns the container's exit code."""
        try:
            return self._run_attempts()
        finally:
            self._cool_down()
            if self._mirror is not None:
                self._mirror.wait()

    def _run_attempts(self) -> int:
        done = 0
        while True:
            attempt = self._next_attempt(done)
            if attempt is None:
                return self._last_code()
            done = attempt
            self._run_attempt(attempt)
            if self._status.phase in {AgentPhase.SUCCEEDED, AgentPhase.PREEMPTED}:
                return self._last_code()

    def _last_code(self) -> int:
        match self._status.phase:
            case AgentPhase.SUCCEEDED:
                return ExitCode.OK
            case AgentPhase.FAILED:
                return exit_code(self._status.failure)
            case _:
                return ExitCode.PREEMPTED

    def _next_attempt(self, done: int) -> int | None:
        """Wait for an order to run an attempt after `done`; None when there will be none."""
        deadline = self._clock.monotonic() + NEXT_ORDER_SECONDS
        while True:
            order = self._orders.read()
            if self._terminated or isinstance(order, Stop):
                return None
            if order is not None and order > done:
                return order
            if self._status.phase is AgentPhase.FAILED and self._clock.monotonic() > deadline:
                _log.warning("no new attempt was ordered in %.0f s", NEXT_ORDER_SECONDS)
                return None
            self._tick()

    def _tick(self) -> None:
        self._last_tick = self._clock.monotonic()
        self._clock.sleep(TICK_SECONDS)

    def _order(self, attempt: int) -> Order | None:
        """The order, if any, that breaks this attempt off."""
        order = self._orders.read()
        if self._terminated or isinstance(order, Stop):
            return Order.STOP
        if order is None or order <= attempt:
            return None
        self._ordered_at = self._ordered_at or self._clock.wall()
        return Order.NEXT

    def _run_attempt(self, attempt: int) -> None:
        self._warm_up()
        launch = prepare(self._config, attempt, self._scratch)
        self._begin(attempt, launch)
        if self._config.node_index != 0 and not self._wait_for_store(attempt):
            if self._order(attempt) is Order.STOP:
                self._enter(AgentPhase.PREEMPTED)
            return
        self._note(launched=self._clock.wall())
        print(f"ddp-agent: attempt {attempt}: {shlex.join(launch.line)}", flush=True)
        self._enter(AgentPhase.STARTING)
        self._memory_kills = out_of_memory_kills()
        tree = self._start(launch)
        if launch.kept_log_dir is not None:
            self._mirror = LogMirror(launch.log_dir, launch.kept_log_dir)
        order = self._supervise(tree, launch)
        self._noticed_at = self._clock.wall() if order is None else None
        if order is not None:
            self._break_off(tree, order)
        # Ranks that outlive torchrun would write into the next attempt's files and ports.
        if not tree.kill():
            _log.error("ranks of attempt %d cannot be killed", attempt)
        self._cleared_at = self._clock.wall()
        self._report(launch)
        self._conclude(tree, launch, order)
        if self._mirror is not None:
            self._mirror.end()
        if self._status.phase is AgentPhase.FAILED:
            # What ended the ranks may have ended the standby: another one is ready the sooner.
            self._warm_up()

    def _begin(self, attempt: int, launch: Launch) -> None:
        now = self._clock.wall()
        times = Timeline(
            noticed=self._noticed_at, ordered=self._ordered_at or now, cleared=self._cleared_at
        )
        self._word.begin(attempt, now, launch.line, times)
        self._ordered_at = None

    def _note(self, **times: float) -> None:
        """Bring the timeline of the attempt up to date."""
        if self._status.timeline is not None:
            self._word.times(self._status.timeline.model_copy(update=times))

    def _warm_up(self) -> None:
        """Have a standby, if attempts are to be forked; it imports while this goes on.

        One that has ended, for want of memory perhaps, is replaced.
        """
        wanted = self._config.standby and can_be_forked(self._config)
        if self._standby is not None and not (wanted and self._standby.lives()):
            self._cool_down()
        if wanted and self._standby is None:
            self._standby = Standby(standby_environment(os.environ))

    def _start(self, launch: Launch) -> ProcessTree | WarmTree:
        """Fork the attempt from the standby, or from another one; start it cold if both fail."""
        for _ in range(2):
            self._warm_up()
            if self._standby is None:
                break
            try:
                if not self._await_standby(self._standby):
                    break
                return WarmTree(self._standby, launch)
            except StandbyLostError as error:
                _log.warning("%s", error)
        if self._standby is not None:
            _log.warning("the standby cannot be used, attempt %d starts cold", launch.attempt)
            self._cool_down()
        return ProcessTree(launch.command, launch.environment)

    def _cool_down(self) -> None:
        """Have no standby any more."""
        if self._standby is not None:
            self._standby.close()
            self._standby = None

    def _await_standby(self, standby: Standby) -> bool:
        """Wait until it is ready; False when that takes too long."""
        deadline = self._clock.monotonic() + READY_SECONDS
        while not standby.wait_ready(TICK_SECONDS):
            self._last_tick = self._clock.monotonic()
            if self._clock.monotonic() > deadline:
                return False
        return True

    def _wait_for_store(self, attempt: int) -> bool:
        """Wait until node 0's store of this attempt accepts connections; False when broken off."""
        host = self._config.rendezvous_host
        port = rendezvous_port(self._config.rendezvous_port_base, attempt)
        while self._order(attempt) is None:
            try:
                # Short, for the name may still be that of a pod which is gone.
                with socket.create_connection((host, port), timeout=0.5):
                    return True
            except OSError:
                self._tick()
        return False

    def _supervise(self, tree: ProcessTree | WarmTree, launch: Launch) -> Order | None:
        """Watch until the tree ends or is to be ended. Returns the order in the latter case."""
        while tree.poll() is None:
            order = self._order(launch.attempt)
            if order is not None:
                return order
            self._report(launch)
            self._tick()
        return None

    def _note_times(self, launch: Launch, beats: list[Beat]) -> bool:
        """Bring the timeline up to date. Returns whether all local ranks have been started."""
        known, ranks = self._status.timeline, self._config.procs_per_node
        if known is None:
            return False
        if known.spawned is None and all_spawned(launch.log_dir, ranks):
            known = known.model_copy(update={"spawned": self._clock.wall()})
        self._word.times(timeline(known, beats, ranks))
        return known.spawned is not None

    def _report(self, launch: Launch) -> None:
        """Take over what the ranks say."""
        beats = read_beats(launch.beats_dir, launch.attempt)
        ranks = self._config.procs_per_node
        spawned = self._note_times(launch, beats)
        says_itself = self._config.task is not None or bool(beats)
        ready = all_train(beats, ranks) if says_itself else spawned
        if ready and self._status.phase is AgentPhase.STARTING:
            self._enter(AgentPhase.TRAINING)
        leader: Beat | None = next((beat for beat in beats if beat.rank == 0), None)
        self._word.add(
            ranks=beats,
            progress=leader.progress if leader else self._status.progress,
            checkpoint=leader.checkpoint if leader else self._status.checkpoint,
        )

    def _break_off(self, tree: ProcessTree | WarmTree, order: Order) -> None:
        """SIGTERM, a grace in which ranks may save, and no more."""
        grace = STOP_GRACE_SECONDS if order is Order.STOP else RESTART_GRACE_SECONDS
        tree.signal(signal.SIGTERM)
        began, reminded = self._clock.monotonic(), False
        while tree.poll() is None and self._clock.monotonic() < began + grace:
            if not reminded and self._clock.monotonic() > began + REMINDER_SECONDS:
                # torchrun loses a signal that comes while it starts its ranks (seen with 2.13).
                tree.terminate_ranks()
                reminded = True
            self._tick()

    def _conclude(self, tree: ProcessTree | WarmTree, launch: Launch, order: Order | None) -> None:
        if order is Order.NEXT:
            return
        if order is Order.STOP:
            self._enter(AgentPhase.PREEMPTED)
        elif tree.returncode == 0:
            self._enter(AgentPhase.SUCCEEDED)
        else:
            failure = self._read_failure(launch, tree.returncode)
            if failure.signal == "SIGKILL" and out_of_memory_kills() > self._memory_kills:
                failure = failure.model_copy(update={"out_of_memory": True})
            preempted = failure.exit_code == ExitCode.PREEMPTED
            phase = AgentPhase.PREEMPTED if preempted else AgentPhase.FAILED
            self._enter(phase, failure)
            print(f"ddp-agent: attempt {launch.attempt}: {_sentence(failure)}", flush=True)

    def _read_failure(self, launch: Launch, returncode: int | None) -> Failure:
        try:
            return Failure.model_validate_json(launch.failure_file.read_bytes())
        except (OSError, ValidationError):
            how = f"torchrun ended with exit code {returncode} and left no word"
            return Failure(attempt=launch.attempt, at=self._clock.wall(), message=how)

    def _enter(self, phase: AgentPhase, failure: Failure | None = None) -> None:
        self._word.enter(phase, self._clock.wall(), failure)


def _sentence(failure: Failure) -> str:
    who = f"rank {failure.rank}" if failure.rank is not None else "this node"
    how = f"was ended by {failure.signal}" if failure.signal else "failed"
    return f"{who} {how}" + (f": {failure.message}" if failure.message else "")
