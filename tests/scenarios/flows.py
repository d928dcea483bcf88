"""Scripted runs of a job: the faults of each run and its expected end.

The same flows run in memory (tests/operator) and on a real API server (tests/api).
"""

import json
from dataclasses import dataclass, field
from typing import Any

from ddp_operator.cluster.base import Manifest
from ddp_wire.messages import Failure
from tests.operator.support import NOW, job_manifest
from tests.scenarios.pods import Script

NAME = "digits"
"""Name of the job in every flow."""


@dataclass(frozen=True)
class Flow:
    """One run: its script, its spec and its expected end."""

    script: Script
    attempt: int
    restarts: int
    reason: str
    spec: dict[str, Any] = field(default_factory=dict)
    ttl: bool = True
    infrastructure: int = 0

    @property
    def end(self) -> tuple[str, int, int, int]:
        """Return the expected final reason, attempt, and restarts by cause."""
        return self.reason, self.attempt, self.restarts, self.infrastructure

    def job(self) -> Manifest:
        """Return the job as a user applies it."""
        spec = {"nodes": 2, **({"ttlSecondsAfterFinished": 5} if self.ttl else {}), **self.spec}
        return job_manifest(NAME, **spec)

    def is_over(self, job: Manifest | None, *, has_live_pods: bool) -> bool:
        """Return whether the run has ended."""
        if self.ttl or job is None:
            return job is None
        return "completionTime" in job.get("status", {}) and not has_live_pods


def end_of(status: Manifest) -> tuple[str, int, int, int]:
    """Return the end that a status describes, for comparison with `Flow.end`."""
    reasons = {c["type"]: c["reason"] for c in status["conditions"]}
    counts = status["attempt"], status["restarts"], status["infrastructureRestarts"]
    return reasons["Succeeded"], *counts


def without_times(document: Any) -> Any:
    """Return a copy without times, because times depend on when the controller was killed.

    The goodput ledger is left out too, because a killed controller charges the same time later.
    """
    if isinstance(document, dict):
        kept = {
            k: v for k, v in document.items() if not k.lower().endswith("time") and k != "goodput"
        }
        return {k: without_times(v) for k, v in kept.items()}
    if isinstance(document, list):
        return sorted((without_times(item) for item in document), key=json.dumps)
    return document


def rank_failure(attempt: int = 1, **more: Any) -> Failure:
    """Return the failure of rank 1 in an attempt."""
    given = {
        "attempt": attempt,
        "at": NOW.timestamp(),
        "rank": 1,
        "exit_code": 1,
        "message": "E: x",
    }
    return Failure(**(given | more))


_WITH_CHECKPOINTS: dict[str, Any] = {"checkpoint": {"claimName": "shared"}, "maxRestarts": 9}

_ELASTIC: dict[str, Any] = {
    "elastic": {
        "minNodes": 1,
        "startWaitSeconds": 3,
        "shrinkAfterSeconds": 2,
        "growAfterSeconds": 3,
    }
}

_STEPS: list[dict[str, Any]] = [
    {"name": "fetch", "command": ["fetch"]},
    {"name": "convert", "task": "my_package.data:convert"},
]

FLOWS = {
    "undisturbed": Flow(Script(), 1, 0, "Completed"),
    "init steps of which one fails twice": Flow(
        Script(failed_tries=frozenset({f"{NAME}-init-fetch-1", f"{NAME}-init-fetch-2"})),
        1,
        0,
        "Completed",
        spec={"init": _STEPS},
    ),
    "an init step that fails too often": Flow(
        Script(failed_tries=frozenset({f"{NAME}-init-fetch-1", f"{NAME}-init-fetch-2"})),
        0,
        0,
        "Failed",
        spec={"init": [{**_STEPS[0], "maxRetries": 1}]},
    ),
    "init steps of a suspended and edited job": Flow(
        Script(
            failed_tries=frozenset({f"{NAME}-init-fetch-1"}),
            edits={1: {"suspend": True}, 4: {"suspend": False}, 9: {"init": _STEPS[1:]}},
        ),
        2,
        0,
        "Completed",
        spec={"init": _STEPS},
    ),
    "a claim for the checkpoints": Flow(
        Script(),
        1,
        0,
        "Completed",
        spec={"checkpoint": {"claimTemplate": {"size": "1Gi", "whenDeleted": "Delete"}}},
    ),
    "a rank fails": Flow(Script(failures={(1, 1): rank_failure()}), 2, 1, "Completed"),
    "ranks fail in two attempts": Flow(
        Script(failures={(1, 1): rank_failure(), (2, 0): rank_failure(2)}), 3, 2, "Completed"
    ),
    "a pod is killed": Flow(Script(kills=frozenset({(1, 1)})), 2, 0, "Completed", infrastructure=1),
    "the pod of node 0 is killed": Flow(
        Script(kills=frozenset({(1, 0)})), 2, 0, "Completed", infrastructure=1
    ),
    "rank failures exceed the budget": Flow(
        Script(failures={(1, 1): rank_failure(), (2, 1): rank_failure(2)}),
        2,
        1,
        "Failed",
        {"maxRestarts": 1},
        ttl=False,
    ),
    "a rank reports bad input": Flow(
        Script(failures={(1, 1): rank_failure(exit_code=2)}), 1, 0, "Failed", ttl=False
    ),
    "pod losses exceed the budget": Flow(
        Script(kills=frozenset({(1, 1), (2, 0)})),
        2,
        0,
        "Failed",
        {"maxRestarts": 0, "maxInfrastructureRestarts": 1},
        ttl=False,
        infrastructure=1,
    ),
    "one stalled attempt recreates the failed pod": Flow(
        Script(failures={(1, 1): rank_failure()}), 2, 1, "Completed", _WITH_CHECKPOINTS
    ),
    "two stalled attempts recreate all pods": Flow(
        Script(failures={(1, 1): rank_failure(), (2, 0): rank_failure(2)}),
        3,
        2,
        "Completed",
        _WITH_CHECKPOINTS,
    ),
    "three stalled attempts fail the job": Flow(
        Script(failures={(n, 1): rank_failure(n) for n in (1, 2, 3)}),
        3,
        2,
        "Failed",
        _WITH_CHECKPOINTS,
        ttl=False,
    ),
    "a checkpoint resets the stall count": Flow(
        Script(failures={(n, 1): rank_failure(n) for n in (1, 2, 3, 4)}, saves={3: 10}),
        5,
        4,
        "Completed",
        _WITH_CHECKPOINTS,
    ),
    "suspended and resumed": Flow(
        Script(edits={2: {"suspend": True}, 6: {"suspend": False}}), 2, 0, "Completed"
    ),
    "scaled down while training": Flow(Script(edits={2: {"nodes": 1}}), 2, 0, "Completed"),
    "elastic job starts without a node": Flow(
        Script(outages={1: (0, 99)}), 2, 0, "Completed", _ELASTIC
    ),
    "elastic job goes on without a lost node": Flow(
        Script(kills=frozenset({(1, 1)}), outages={1: (1, 99)}),
        3,
        0,
        "Completed",
        _ELASTIC,
        infrastructure=1,
    ),
    "elastic job goes on without its first node": Flow(
        Script(kills=frozenset({(1, 0)}), outages={0: (1, 99)}),
        3,
        0,
        "Completed",
        _ELASTIC,
        infrastructure=1,
    ),
    "elastic job grows when a lost node is back": Flow(
        Script(kills=frozenset({(1, 1)}), outages={1: (1, 12)}, training_seconds=12),
        4,
        0,
        "Completed",
        _ELASTIC,
        infrastructure=1,
    ),
    "elastic job is scaled down and up while training": Flow(
        Script(edits={3: {"nodes": 1}, 7: {"nodes": 2}}, training_seconds=9),
        3,
        0,
        "Completed",
        _ELASTIC,
    ),
    "a spare takes the place of a killed pod": Flow(
        Script(kills=frozenset({(1, 0)}), outages={0: (1, 99)}),
        2,
        0,
        "Completed",
        {"spares": 1},
        infrastructure=1,
    ),
    "cleaned up": Flow(Script(), 1, 0, "Completed", {"cleanPodPolicy": "All"}, ttl=False),
}
