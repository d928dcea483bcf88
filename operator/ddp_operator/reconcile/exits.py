"""Describe how the ranks of a finished run exited.

The work of these ranks is done, so a failed exit causes no new attempt.
"""

from collections.abc import Iterator

from ddp_operator.reconcile.plan import Event, EventType
from ddp_operator.reconcile.world import World
from ddp_wire.contract import ExitCode
from ddp_wire.messages import AgentPhase, AgentStatus, ExitProblem, RankPhase

EXIT_FAILED = "ExitFailed"
"""Reason of the Event about ranks that failed during their exit."""
_NAMED = 3
"""Maximum number of ranks that the Event names."""


def exit_events(world: World) -> tuple[Event, ...]:
    """Return the Event about ranks that crashed or were killed after their work was done."""
    found = list(_problems(world))
    if not found:
        return ()
    named = [f"{_who(one)} on {pod} {one.message}" for pod, one in found[:_NAMED]]
    more = len(found) - _NAMED
    text = "; ".join(named) + (f"; and {more} more" if more > 0 else "")
    return (Event(EventType.WARNING, EXIT_FAILED, f"{text} (the run has succeeded)"),)


def all_done(agent: AgentStatus) -> bool:
    """Return whether all ranks of a node have finished their work and are exiting."""
    training = agent.phase is AgentPhase.TRAINING
    return training and bool(agent.ranks) and all(r.phase is RankPhase.DONE for r in agent.ranks)


def work_is_done(world: World) -> bool:
    """Return whether all ranks of the current attempt have done their work, and saved it.

    A rank of a task reports its result only after all ranks have saved theirs. So one report is
    proof, even if another rank has failed since. A rank of a `command` may continue to work after
    its report, so there every rank counts.
    """
    if world.job.spec.task is None:
        return False
    attempt = world.job.status.attempt
    for pod in world.pods:
        agent = world.agent_status(pod)
        for rank in agent.ranks if agent is not None else ():
            saved = rank.phase is RankPhase.DONE and rank.result == ExitCode.OK
            if saved and rank.attempt == attempt:
                return True
    return False


def _problems(world: World) -> Iterator[tuple[str, ExitProblem]]:
    for index in world.members:
        pod = world.pod(index)
        agent = world.agent_status(pod) if pod is not None else None
        if pod is not None and agent is not None and agent.attempt == world.job.status.attempt:
            yield from ((pod.name, one) for one in agent.exit_problems or ())


def _who(problem: ExitProblem) -> str:
    return "the launcher" if problem.rank is None else f"rank {problem.rank}"
