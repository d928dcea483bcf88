"""Patch torchrun for the end of an attempt, so that finished work is not repeated.

torch has no settings for this. `apply` replaces the following private functions, each only if torch
still has it:

- `LocalElasticAgent._monitor_workers`: torchrun treats a rank that crashes or is killed during its
  exit as a failed rank. The patch counts such a rank as succeeded if its work was done. It also
  writes which ranks still run, for the agent (`rank_processes`).
- `SimpleElasticAgent._exit_barrier`: after five minutes the nodes stop waiting for each other, and
  the ranks of slower nodes fail. The patch raises this to 30 days, because the agents end ranks
  that do not exit.

Process: launcher.
"""

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server import api
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

from ddp_agent.processes.rank_processes import RankProcesses, is_marked_killed, write_exit_failures
from ddp_agent.status.heartbeats import common_result
from ddp_wire.contract import Env, ExitCode
from ddp_wire.messages import Failure

_LONGEST_WAIT_SECONDS = 30.0 * 24 * 3600
"""Maximum seconds that a node waits for the ranks of other nodes, in place of torchrun's 300 s. The
agents end ranks that do not exit."""
_LEFT_KEY = "ddp-trainer/left"
"""Key in the rendezvous store, which is set when a rank of any node has exited with code 0."""
_ASK_SECONDS = 2.0
"""Seconds between two reads of the key in the rendezvous store."""

Describe = Callable[[int, Any], Failure]
"""Function that returns the failure of a rank, from its global rank and torch's record of it."""


def apply(describe: Describe) -> None:
    """Patch torchrun in this process, if an agent of this project supervises the process."""
    if Env.BEATS_DIR not in os.environ:
        return
    if hasattr(LocalElasticAgent, "_monitor_workers"):
        monitor = LocalElasticAgent._monitor_workers  # noqa: SLF001 (there is no setting)
        LocalElasticAgent._monitor_workers = _patch_monitor(monitor, _Exits(describe))  # type: ignore[method-assign] # noqa: SLF001
    if hasattr(api.SimpleElasticAgent, "_exit_barrier"):
        barrier = api.SimpleElasticAgent._exit_barrier  # noqa: SLF001 (likewise)
        api.SimpleElasticAgent._exit_barrier = _patch_exit_barrier(barrier)  # type: ignore[method-assign] # noqa: SLF001


class _Exits:
    """State of the exits of this node's ranks, for the agent and for torchrun."""

    def __init__(self, describe: Describe) -> None:
        self._describe = describe
        self._directory = Path(os.environ[Env.BEATS_DIR])
        self._attempt = int(os.environ[Env.ATTEMPT])
        self._known: RankProcesses | None = None
        self._asked = time.monotonic()
        self._is_published = False

    def publish(self, agent: Any, group: Any) -> None:
        """Write the state of this node's ranks for the agent, if it has changed."""
        pids, left = agent._pcontext.pids(), left_ranks(agent._pcontext)  # noqa: SLF001
        found = RankProcesses(
            first_rank=min(worker.global_rank for worker in group.workers),
            master_port=int(group.master_port or 0) if hasattr(group, "master_port") else 0,
            running={rank: pid for rank, pid in pids.items() if rank not in left},
            any_left=bool(left) or self._has_any_left(agent._store),  # noqa: SLF001
        )
        if left and not self._is_published:
            self._is_published = True
            agent._store.set(_LEFT_KEY, "1")  # noqa: SLF001
        if found != self._known:
            self._known = found
            found.write(self._directory)

    def _has_any_left(self, store: Any) -> bool:
        if self._known is not None and self._known.any_left:
            return True
        if time.monotonic() < self._asked + _ASK_SECONDS:
            return False
        self._asked = time.monotonic()
        return bool(store.check([_LEFT_KEY]))

    def are_done(self, group: Any, failures: dict[int, Any]) -> bool:
        """Return whether all ranks have finished their work. Then their failures do not count."""
        ranks = {worker.global_rank: index for index, worker in enumerate(group.workers)}
        killed = {rank for rank in failures if is_marked_killed(self._directory, ranks[rank])}
        done = common_result(self._directory, self._attempt, len(ranks)) == ExitCode.OK
        if not done and killed != failures.keys():
            return False
        others = sorted(failures.keys() - killed)
        write_exit_failures(self._directory, [self._describe(r, failures[r]) for r in others])
        return True


def left_ranks(context: Any) -> set[int]:
    """Return the local ranks that have ended with code 0, whether forked or not.

    A forked rank that has ended waits for the other ranks of its node, so its process still exists.
    """
    if hasattr(context, "_return_values"):
        return set(context._return_values)  # noqa: SLF001 (there is no other access)
    running = getattr(context, "_running_local_ranks", None)
    return set() if running is None else set(range(context.nprocs)) - running


def _patch_monitor(monitor: Callable[..., Any], exits: _Exits) -> Callable[..., Any]:
    @functools.wraps(monitor)
    def patched(self: Any, group: Any) -> Any:
        result = monitor(self, group)
        if result.state in {api.WorkerState.HEALTHY, api.WorkerState.SUCCEEDED}:
            exits.publish(self, group)
        elif result.state is api.WorkerState.FAILED and exits.are_done(group, result.failures):
            values = {worker.global_rank: None for worker in group.workers}
            return api.RunResult(state=api.WorkerState.SUCCEEDED, return_values=values)
        return result

    return patched


def _patch_exit_barrier(barrier: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(barrier)
    def patched(self: Any) -> None:
        self._exit_barrier_timeout = _LONGEST_WAIT_SECONDS
        self._store.set(_LEFT_KEY, "1")
        barrier(self)

    return patched
