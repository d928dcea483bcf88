"""Summarise the training of one attempt from the newest agent statuses."""

from collections.abc import Iterable
from dataclasses import dataclass

from ddp_operator.reconcile.world import World
from ddp_wire.messages import AgentStatus, Heartbeat, RankPhase


@dataclass(frozen=True)
class Training:
    """Training of one attempt. A field is None if no agent has reported it."""

    rank_zero: Heartbeat | None = None
    """Newest heartbeat from global rank 0."""
    joined_at: float | None = None
    """Unix seconds at which the ranks of node 0 had joined the process group."""
    step: int | None = None
    """Highest number of completed updates that any rank reports.

    The number is exact after an agent has reported the end of the attempt. Before, it can be a few
    seconds old, like the last status.
    """
    resumed_from: int | None = None
    """Completed updates in the checkpoint that the attempt resumed from."""
    last_progress_at: float | None = None
    """Unix seconds of the newest progress of any rank."""
    done_at: float | None = None
    """Unix seconds at which global rank 0 had finished its work, and with it all other ranks."""


def observed_training(world: World, attempt: int) -> Training:
    """Return the training of an attempt, as the newest agent statuses report it."""
    found = (world.agent_status(pod) for pod in world.pods)
    agents = [agent for agent in found if agent is not None and agent.attempt == attempt]
    ranks = [rank for agent in agents for rank in agent.ranks if rank.attempt == attempt]
    pod = world.first_pod
    first = world.agent_status(pod) if pod is not None else None
    if first is None or first.attempt != attempt:
        first = None
    rank_zero = _rank_zero(first)
    is_done = rank_zero is not None and rank_zero.phase is RankPhase.DONE
    return Training(
        rank_zero=rank_zero,
        joined_at=first.timeline.joined if first is not None and first.timeline else None,
        step=_highest(rank.step for rank in ranks),
        resumed_from=_highest(rank.resumed_from for rank in ranks),
        last_progress_at=max((rank.at for rank in ranks), default=None),
        done_at=rank_zero.at if rank_zero is not None and is_done else None,
    )


def repeated_steps(before: int, after: int, reached: int) -> int:
    """Return how many updates between `before` and `after` repeat an earlier attempt's updates.

    Args:
        before: Completed updates of the run at the start.
        after: Completed updates at the end.
        reached: Completed updates that earlier attempts had reached.
    """
    return max(0, min(after, reached) - before)


def repeated_share(before: int, after: int, reached: int) -> float:
    """Return the share of updates that repeat an earlier attempt's, see `repeated_steps`.

    Before the first complete update, return whether the current update is a repeated one.
    """
    after = max(after, before + 1)
    return repeated_steps(before, after, reached) / (after - before)


def _rank_zero(agent: AgentStatus | None) -> Heartbeat | None:
    if agent is None:
        return None
    return next((r for r in agent.ranks if r.rank == 0 and r.attempt == agent.attempt), None)


def _highest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
