"""Runs of a job: what goes wrong in each, and what is to become of it.

The same flows are played in memory (tests/unit) and on a real API server (tests/api).
"""

import json
from dataclasses import dataclass, field
from typing import Any

from ddp_operator.cluster.base import Manifest
from ddp_wire.contract import Failure
from tests.operator.support import NOW, job_manifest
from tests.scenarios.pods import Script

NAME = "digits"
"""Name of the job of every flow."""


@dataclass(frozen=True)
class Flow:
    """A run and what is to become of it."""

    script: Script
    attempt: int
    restarts: int
    reason: str
    spec: dict[str, Any] = field(default_factory=dict)
    ttl: bool = True
    infrastructure: int = 0

    @property
    def end(self) -> tuple[str, int, int, int]:
        """Reason, attempt and restarts by cause at the end."""
        return self.reason, self.attempt, self.restarts, self.infrastructure

    def job(self) -> Manifest:
        """The job as a user applies it."""
        spec = {"nodes": 2, **({"ttlSecondsAfterFinished": 5} if self.ttl else {}), **self.spec}
        return job_manifest(NAME, **spec)

    def over(self, job: Manifest | None, *, lives: bool) -> bool:
        """Whether the run is at its end, given the job and whether any of its pods lives."""
        if self.ttl or job is None:
            return job is None
        return "completionTime" in job.get("status", {}) and not lives


def end_of(status: Manifest) -> tuple[str, int, int, int]:
    """What a status says of a run, to be compared with `Flow.end`."""
    reasons = {c["type"]: c["reason"] for c in status["conditions"]}
    counts = status["attempt"], status["restarts"], status["infrastructureRestarts"]
    return reasons["Succeeded"], *counts


def timeless(document: Any) -> Any:
    """The document without times, which depend on when the controller died."""
    if isinstance(document, dict):
        kept = {k: v for k, v in document.items() if not k.lower().endswith("time")}
        return {k: timeless(v) for k, v in kept.items()}
    if isinstance(document, list):
        return sorted((timeless(item) for item in document), key=json.dumps)
    return document


def fall(attempt: int = 1, **more: Any) -> Failure:
    """How a rank falls."""
    given = {
        "attempt": attempt,
        "at": NOW.timestamp(),
        "rank": 1,
        "exit_code": 1,
        "message": "E: x",
    }
    return Failure(**(given | more))


_SAVES: dict[str, Any] = {"checkpoint": {"claimName": "shared"}, "maxRestarts": 9}

FLOWS = {
    "undisturbed": Flow(Script(), 1, 0, "Completed"),
    "a rank falls": Flow(Script(falls={(1, 1): fall()}), 2, 1, "Completed"),
    "two ranks fall one after the other": Flow(
        Script(falls={(1, 1): fall(), (2, 0): fall(2)}), 3, 2, "Completed"
    ),
    "a pod dies": Flow(Script(dies=frozenset({(1, 1)})), 2, 0, "Completed", infrastructure=1),
    "node 0's pod dies": Flow(
        Script(dies=frozenset({(1, 0)})), 2, 0, "Completed", infrastructure=1
    ),
    "ranks fall too often": Flow(
        Script(falls={(1, 1): fall(), (2, 1): fall(2)}),
        2,
        1,
        "Failed",
        {"maxRestarts": 1},
        ttl=False,
    ),
    "bad input": Flow(Script(falls={(1, 1): fall(exit_code=2)}), 1, 0, "Failed", ttl=False),
    "pods die too often": Flow(
        Script(dies=frozenset({(1, 1), (2, 0)})),
        2,
        0,
        "Failed",
        {"maxRestarts": 0, "maxInfrastructureRestarts": 1},
        ttl=False,
        infrastructure=1,
    ),
    "a pod is made anew because its attempt stalled": Flow(
        Script(falls={(1, 1): fall()}), 2, 1, "Completed", _SAVES
    ),
    "all pods are made anew because two attempts stalled": Flow(
        Script(falls={(1, 1): fall(), (2, 0): fall(2)}), 3, 2, "Completed", _SAVES
    ),
    "three attempts stall": Flow(
        Script(falls={(n, 1): fall(n) for n in (1, 2, 3)}), 3, 2, "Failed", _SAVES, ttl=False
    ),
    "a saved step between stalled attempts": Flow(
        Script(falls={(n, 1): fall(n) for n in (1, 2, 3, 4)}, saves={3: 10}),
        5,
        4,
        "Completed",
        _SAVES,
    ),
    "suspended and resumed": Flow(
        Script(edits={2: {"suspend": True}, 6: {"suspend": False}}), 2, 0, "Completed"
    ),
    "scaled down while it trains": Flow(Script(edits={2: {"nodes": 1}}), 2, 0, "Completed"),
    "cleaned up": Flow(Script(), 1, 0, "Completed", {"cleanPodPolicy": "All"}, ttl=False),
}
