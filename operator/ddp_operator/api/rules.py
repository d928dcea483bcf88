"""Rules that span fields. Each has a CEL form for the API server and a Python form for the rest.

A test runs both over one corpus and fails when they disagree.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from ddp_operator.api.spec import DDPJobSpec

NAME_LENGTH = 58
"""63, the longest DNS label, less the dash and four digits that pod names end with."""
WINDOW_RESTARTS = 30
"""The largest maxRestarts of a job with a window: the status holds 32 failures' times."""
_NAME = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")


@dataclass(frozen=True)
class Rule:
    """A rule on the spec."""

    cel: str
    """Over `self`, the spec; true when the rule holds."""
    message: str
    """The sentence for whoever broke it."""
    holds: Callable[[DDPJobSpec], bool]
    """The same in Python."""


NAME_RULE_CEL = (
    f"self.metadata.name.size() <= {NAME_LENGTH}"
    " && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')"
)
NAME_RULE_MESSAGE = (
    f"metadata.name: must be a DNS label of at most {NAME_LENGTH} characters that begins with a"
    " letter, because it names the job's pods and Service"
)

SPEC_RULES: tuple[Rule, ...] = (
    Rule(
        "!(has(self.task) && has(self.command))",
        "spec: task and command exclude each other, state one of them",
        lambda s: not (s.task is not None and s.command is not None),
    ),
    Rule(
        "has(self.task) || has(self.command)",
        "spec: one of task and command must be stated",
        lambda s: s.task is not None or s.command is not None,
    ),
    Rule(
        "!has(self.config) || has(self.task)",
        "spec.config: goes with task, a command takes args",
        lambda s: s.config is None or s.task is not None,
    ),
    Rule(
        "!has(self.args) || has(self.command)",
        "spec.args: goes with command, a task takes config",
        lambda s: s.args is None or s.command is not None,
    ),
    Rule(
        "!has(self.env) || self.env.all(e, !e.name.startsWith('DDP_'))",
        "spec.env: names that begin with DDP_ belong to ddp-trainer",
        lambda s: all(not e.name.startswith("DDP_") for e in s.env or []),
    ),
    Rule(
        "!has(self.volumes) || self.volumes.all(v, !v.name.startsWith('ddp-'))",
        "spec.volumes: names that begin with ddp- belong to ddp-trainer",
        lambda s: all(not v.name.startswith("ddp-") for v in s.volumes or []),
    ),
    Rule(
        "!has(self.volumeMounts) || self.volumeMounts.all(m,"
        " has(self.volumes) && self.volumes.exists(v, v.name == m.name))",
        "spec.volumeMounts: each must name one of spec.volumes",
        lambda s: {m.name for m in s.volume_mounts or []} <= {v.name for v in s.volumes or []},
    ),
    Rule(
        "!has(self.restartWindowSeconds) || !has(self.maxRestarts)"
        f" || self.maxRestarts <= {WINDOW_RESTARTS}",
        f"spec.restartWindowSeconds: needs spec.maxRestarts of at most {WINDOW_RESTARTS}",
        lambda s: s.restart_window_seconds is None or s.max_restarts <= WINDOW_RESTARTS,
    ),
)


def check_rules(name: str, spec: DDPJobSpec) -> str | None:
    """The sentence of the first broken rule, or None when all hold."""
    if len(name) > NAME_LENGTH or not _NAME.fullmatch(name):
        return f"{NAME_RULE_MESSAGE}, got {name!r}"
    return next((rule.message for rule in SPEC_RULES if not rule.holds(spec)), None)
