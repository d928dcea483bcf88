"""Loop of the agent: run one attempt after another, until one succeeds or the run must stop.

An attempt takes these steps:

1. Wait for an attempt order with a higher number, from the operator's request or from the pod's
   annotation (`orders`). If this node is not a member of the attempt, wait for the next order. 2.
   Prepare directories and torchrun's command line (`processes.launch`). 3. Wait at the start
   barrier for the agents of all other members, then for the first member's rendezvous store and for
   the imports of the standby.
4. Start torchrun. Ten times per second, put the heartbeats and hangs of the ranks into the status,
   and end ranks that do not exit. This lasts until torchrun ends or until an `Interruption`: the
   next order, a stop, a replaced peer, or a hang for which the operator orders nothing.
5. End all processes of the attempt, and put the result into the status.

After a failure, and after a stop that another node has asked for, the container stays, because the
next attempt restarts in place. The container ends if no order arrives in time. Only the loop writes
the status. Other threads read the status, or pass orders to the loop.

Process: agent (main thread).
"""

import logging
import shlex
import socket
from collections.abc import Callable
from pathlib import Path

from ddp_agent import logs
from ddp_agent.clock import Ticker
from ddp_agent.config import AgentConfig
from ddp_agent.failures import exit_code, to_sentence
from ddp_agent.members import Members, members_of
from ddp_agent.network.barrier_client import StartBarrier
from ddp_agent.network.barriers import Barriers
from ddp_agent.network.waits import Obstacle, WaitWatch, unreachable
from ddp_agent.orders import AttemptOrders, Interruption, Stop
from ddp_agent.processes.attempt_process import AttemptProcess, AttemptStarter
from ddp_agent.processes.exits import ExitWatch, as_problem
from ddp_agent.processes.inspections import Questions
from ddp_agent.processes.launch import Launch, command_problem, prepare
from ddp_agent.status.hangs import HangDetector, describe_hang
from ddp_agent.status_writer import StatusWriter
from ddp_wire.contract import ExitCode, rendezvous_port
from ddp_wire.delays import LONGEST_BACKOFF_SECONDS
from ddp_wire.messages import AgentPhase, Failure
from ddp_wire.orders import Order

_log = logging.getLogger("ddp_agent")

NEXT_ORDER_SECONDS = LONGEST_BACKOFF_SECONDS + 300.0
"""Maximum seconds for which the agent waits for the next order after a failed attempt. Then the
container ends. The wait is longer than the longest delay of an attempt, so that a restart in place
remains possible."""
UNREAD_SECONDS = 5.0
"""Maximum wait for the next order, in seconds, if nobody has ever read the status. Then the
termination message must deliver the failure."""
READER_ABSENT_SECONDS = 30.0
"""Maximum wait for the next order, in seconds, if nobody has read the failure but earlier statuses
were read. A new leader reads it after some 20 s."""
_WAITS = frozenset({AgentPhase.FAILED, AgentPhase.PREEMPTED})
"""Phases after which the next attempt may restart in place. Ranks may have stopped because of
another node's order, before the order reached this node."""
_MAX_IDLE_SECONDS = 60.0
"""Maximum seconds between two passes of the loop while the agent counts as alive."""
_CONNECT_SECONDS = 0.5
"""Timeout in seconds of one connection attempt to the store, because the name may still resolve to
a deleted pod."""


class Agent:
    """Agent of one node, which runs the node's part of each attempt."""

    def __init__(
        self,
        config: AgentConfig,
        scratch: Path,
        *,
        ticker: Ticker,
        orders: AttemptOrders,
        writer: StatusWriter,
        starter: AttemptStarter,
        barriers: Barriers | None = None,
        inspections: Questions | None = None,
        on_members: Callable[[Members], None] = lambda _: None,
    ) -> None:
        self._config, self._scratch, self._ticker = config, scratch, ticker
        self._orders, self._writer, self._starter = orders, writer, starter
        self._barriers, self._on_members = barriers, on_members
        self._inspections = inspections
        self._barrier: StartBarrier | None = None
        """This node's side of the start barrier in the current attempt."""

    def is_alive(self) -> bool:
        """Return whether the loop still makes progress. Safe to call from any thread."""
        return self._ticker.idle_seconds() < _MAX_IDLE_SECONDS

    def run(self) -> int:
        """Run attempts until the run ends. Return the exit code of the container."""
        try:
            last = 0
            while (order := self._next_order(after=last)) is not None:
                members = members_of(self._config, order)
                self._on_members(members)
                if members.takes_part:
                    self._run_attempt(members)
                else:
                    self._stand_by(members)
                last = order.attempt
                if self._writer.status.phase is AgentPhase.SUCCEEDED:
                    break
            return self._exit_code()
        finally:
            self._starter.close()
            if self._barriers is not None:
                self._barriers.leave()

    def _next_order(self, *, after: int) -> Order | None:
        """Wait for the order of a newer attempt. Return None if the container must end."""
        monotonic = self._ticker.clock.monotonic
        began = monotonic()
        while True:
            order = self._orders.newest()
            if isinstance(order, Stop):
                return None
            if order is not None and order.attempt > after:
                return order
            self._writer.set_warm(self._starter.is_warm())
            limit = self._longest_wait()
            if self._writer.status.phase in _WAITS and monotonic() > began + limit:
                _log.warning("no attempt order arrived within %.0f s", limit)
                return None
            self._ticker.tick()

    def _longest_wait(self) -> float:
        """Return the maximum seconds for which an ended attempt waits for the next order."""
        cell = self._writer.cell
        if cell.is_read:
            return NEXT_ORDER_SECONDS
        # An operator that has read this agent before is only away. A new pod would take longer, and
        # another job may take its place on the Kubernetes node.
        return READER_ABSENT_SECONDS if cell.was_ever_read else UNREAD_SECONDS

    def _stand_by(self, members: Members) -> None:
        """Keep a standby ready for the next order while this node is not a member."""
        logs.begin_attempt(members.attempt)
        self._starter.ensure_standby()
        if self._barriers is not None:
            self._barriers.leave()
        self._writer.start_attempt(members, [])
        _log.info(
            "attempt %d runs on the nodes %s, and this node waits", members.attempt, members.text
        )

    def _run_attempt(self, members: Members) -> None:
        """Run one attempt to its end: it succeeds, fails or is interrupted."""
        attempt = members.attempt
        logs.begin_attempt(attempt)
        self._starter.ensure_standby()
        launch = prepare(self._config, members, self._scratch)
        self._writer.start_attempt(members, launch.line)
        if problem := command_problem(self._config):
            self._conclude(self._bad_input(problem))
            return
        try:
            self._barrier = self._barriers.side_for(members) if self._barriers else None
        except OSError as error:
            self._conclude(self._closed_port(error))
            return
        interruption = self._wait_for_start(members) or self._wait_for_standby(attempt)
        if interruption is not None:
            self._writer.interrupted(interruption)
            self._conclude_interrupted(interruption)
            return
        _log.info("attempt %d: %s", attempt, shlex.join(launch.line))
        self._writer.launched()
        process = self._starter.start(launch)
        exits = self._exit_watch(launch)
        interruption = self._watch(process, launch, exits)
        self._writer.ended(interruption)
        if interruption is not None:
            process.interrupt(
                lambda: self._orders.interruption(attempt) or interruption, self._ticker
            )
        process.kill()
        self._writer.cleared()
        self._writer.update_from_ranks(launch)
        self._writer.set_kept_steps(process.kept_steps(self._config.procs_per_node))
        if interruption is not None:
            self._conclude_interrupted(interruption, exits)
        else:
            self._conclude(process.failure(self._ticker.clock.wall()), exits)
        self._starter.finish_logs()
        if self._writer.status.phase is AgentPhase.FAILED:
            # The cause of the failure may have ended the standby, too. Replace it early.
            self._starter.ensure_standby()

    def _wait_for_start(self, members: Members) -> Interruption | None:
        """Wait until all members' agents are ready for this attempt, or for an interruption."""
        waits, attempt = self._wait_watch(), members.attempt
        while self._barrier is not None:
            if (interruption := self._orders.interruption(attempt)) is not None:
                return interruption
            self._writer.set_warm(self._starter.is_warm())
            if self._barrier.wait(attempt, self._ticker):
                break
            self._writer.set_wait(waits.look(self._barrier.obstacle(attempt)))
            if waits.overdue:
                return self._unreachable(waits.overdue)
        return None if members.is_first else self._wait_for_store(members)

    def _wait_watch(self) -> WaitWatch:
        limits = self._config.hang
        return WaitWatch(self._ticker.clock, limits.start_seconds if limits.detect else None)

    def _unreachable(self, sentence: str) -> Interruption:
        self._writer.set_wait(sentence)
        return Interruption.UNREACHABLE

    def _wait_for_standby(self, attempt: int) -> Interruption | None:
        """Wait until the standby has finished its imports, or for an interruption."""
        while not self._starter.wait_ready():
            if (interruption := self._orders.interruption(attempt)) is not None:
                return interruption
        return None

    def _wait_for_store(self, members: Members) -> Interruption | None:
        """Wait until the store of this attempt accepts connections, or for an interruption."""
        host, attempt = members.host, members.attempt
        port = rendezvous_port(self._config.rendezvous_port_base, attempt)
        waits = self._wait_watch()
        while (interruption := self._orders.interruption(attempt)) is None:
            try:
                with socket.create_connection((host, port), timeout=_CONNECT_SECONDS):
                    return None
            except OSError as error:
                # The first member has started, too, so no reason but the network may last.
                obstacle = Obstacle(unreachable((host, port), error).text, is_network=True)
            self._writer.set_wait(waits.look(obstacle))
            if waits.overdue:
                return self._unreachable(waits.overdue)
            self._ticker.tick()
        return interruption

    def _exit_watch(self, launch: Launch) -> ExitWatch:
        config, clock = self._config, self._ticker.clock
        ranks, directory = config.procs_per_node, launch.heartbeats_dir
        reports = config.task is not None
        return ExitWatch(config.hang, directory, launch.attempt, ranks, clock, reports_end=reports)

    def _watch(
        self, process: AttemptProcess, launch: Launch, exits: ExitWatch
    ) -> Interruption | None:
        """Update the status until the attempt ends (None) or must be interrupted."""
        clock, limits = self._ticker.clock, self._config.hang
        hangs = HangDetector(limits, launch.heartbeats_dir, launch.attempt, clock)
        while process.poll() is None:
            interruption = self._orders.interruption(launch.attempt)
            if interruption is None and self._barrier is not None:
                replaced = self._barrier.replaced_node() is not None
                interruption = Interruption.PEER_REPLACED if replaced else None
            if interruption is None and hangs.is_overdue:
                interruption = Interruption.HUNG
            if interruption is not None:
                self._writer.interrupted(interruption)
                return interruption
            self._writer.update_from_ranks(launch)
            self._writer.set_hang(hangs.look())
            if self._inspections is not None:
                self._inspections.look(launch)
            if exits.look():
                process.kill()  # The ranks are done, but the launcher waits for other nodes.
            self._ticker.tick()
        return None

    def _conclude_interrupted(
        self, interruption: Interruption, exits: ExitWatch | None = None
    ) -> None:
        """Publish the end of an interrupted attempt, unless the next attempt follows at once.

        If this node must stop, finished work counts as a success. If another pod was replaced, it
        does not, because the new pod has no result until it takes part in the next attempt.
        """
        if interruption is Interruption.STOP:
            if exits is not None and exits.result == ExitCode.OK:
                self._conclude(None, exits)
            else:
                self._writer.enter(AgentPhase.PREEMPTED)
        elif interruption is Interruption.PEER_REPLACED:
            failure = Failure(
                attempt=self._writer.status.attempt,
                at=self._ticker.clock.wall(),
                message="the pod of another node was replaced after the attempt had started",
                secondary=True,
                replaced_node=self._barrier.replaced_node() if self._barrier else None,
            )
            self._writer.enter(AgentPhase.FAILED, failure)
        elif interruption is Interruption.UNREACHABLE:
            failure = Failure(
                attempt=self._writer.status.attempt,
                at=self._ticker.clock.wall(),
                message=self._writer.status.waits_for or "",
                network=True,
            )
            self._writer.enter(AgentPhase.FAILED, failure)
        elif interruption is Interruption.HUNG:
            status, now = self._writer.status, self._ticker.clock.wall()
            failure = describe_hang(status.hang or [], status.attempt, now)
            self._writer.enter(AgentPhase.FAILED, failure)

    def _closed_port(self, error: OSError) -> Failure:
        """Return the failure of a first member whose port for the start barrier is in use."""
        attempt, now = self._writer.status.attempt, self._ticker.clock.wall()
        message = f"port {self._config.barrier_port} must be free: {error}"
        return Failure(attempt=attempt, at=now, message=message)

    def _bad_input(self, message: str) -> Failure:
        """Return a failure because of the user's spec, which no retry can fix."""
        attempt, now = self._writer.status.attempt, self._ticker.clock.wall()
        return Failure(attempt=attempt, at=now, exit_code=ExitCode.BAD_INPUT, message=message)

    def _conclude(self, failure: Failure | None, exits: ExitWatch | None = None) -> None:
        """Publish the end of an attempt. A failure after the work was done is only a problem."""
        attempt = self._writer.status.attempt
        result, problems = (exits.result, exits.problems()) if exits else (None, None)
        if failure is not None and result == ExitCode.OK:
            problems, failure = problems or [as_problem(failure)], None
        if failure is None:
            self._writer.succeeded(problems)
            for one in problems or ():
                who = "the launcher" if one.rank is None else f"rank {one.rank}"
                _log.warning("attempt %d succeeded, but %s %s", attempt, who, one.message)
            return
        if result == ExitCode.PREEMPTED:
            failure = failure.model_copy(update={"exit_code": result, "signal": None})
        preempted = failure.exit_code == ExitCode.PREEMPTED
        self._writer.enter(AgentPhase.PREEMPTED if preempted else AgentPhase.FAILED, failure)
        fields = {} if failure.rank is None else {"rank": failure.rank}
        level = logging.INFO if preempted else logging.ERROR
        sentence = to_sentence(failure)
        _log.log(level, "attempt %d: %s", failure.attempt, sentence, extra={"fields": fields})

    def _exit_code(self) -> int:
        """Return the exit code that reports the end of the last attempt to the operator."""
        status = self._writer.status
        match status.phase:
            case AgentPhase.SUCCEEDED:
                return ExitCode.OK
            case AgentPhase.FAILED:
                return exit_code(status.failure)
            case _:
                return ExitCode.PREEMPTED
