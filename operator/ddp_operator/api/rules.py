"""Define the rules between fields, in CEL for the API server and in Python for `ddpjob`.

A test checks both forms against the same jobs and fails when they disagree.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from ddp_operator.api.gang import GangType
from ddp_operator.api.spec import RESERVED_POD_FIELDS, DDPJobSpec

MAX_NAME_LENGTH = 58
"""Longest job name, in characters: a DNS label (63) without the `-9998` that ends a pod name."""
MAX_RESTARTS_IN_WINDOW = 30
"""Largest maxRestarts of a job with restartWindowSeconds: the status holds 32 failure times."""
_NAME = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")


@dataclass(frozen=True)
class Rule:
    """One rule on the spec."""

    cel: str
    """CEL expression over `self`, the spec. It is true when the rule holds."""
    message: str
    """Error message for the author of a job that breaks the rule."""
    holds: Callable[[DDPJobSpec], bool]
    """The same check in Python."""


NAME_RULE_CEL = (
    f"self.metadata.name.size() <= {MAX_NAME_LENGTH}"
    " && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')"
)
NAME_RULE_MESSAGE = (
    f"metadata.name: must be a DNS label of at most {MAX_NAME_LENGTH} characters that begins with a"
    " letter, because it names the job's pods and Service"
)


def _reserved(field: str) -> Rule:
    """Return the rule that the overlay on the pods does not set a field."""

    def holds(spec: DDPJobSpec) -> bool:
        overlay = spec.pod_template.spec if spec.pod_template is not None else None
        return field not in (overlay or {})

    path = f"self.podTemplate.spec.{field}"
    return Rule(
        f"!has(self.podTemplate) || !has(self.podTemplate.spec) || !has({path})",
        f"spec.podTemplate.spec.{field}: must not be set, because the operator sets it",
        holds,
    )


def _own_group(kind: str, key: str) -> Rule:
    """Return the rule that a job with a gang does not name another group for its pods."""

    def holds(spec: DDPJobSpec) -> bool:
        template = spec.pod_template
        metadata = template.metadata if template is not None else None
        given = getattr(metadata, kind, None) or {}
        return spec.gang is None or spec.gang.type is GangType.NONE or key not in given

    place = f"self.podTemplate.metadata.{kind}"
    return Rule(
        "!has(self.gang) || self.gang.type == 'None' || !has(self.podTemplate)"
        f" || !has(self.podTemplate.metadata) || !has({place}) || !('{key}' in {place})",
        f"spec.podTemplate.metadata.{kind}[{key}]: must not be set with spec.gang, which sets the"
        " group of the pods",
        holds,
    )


GANG_RULES: tuple[Rule, ...] = (
    Rule(
        "!has(self.gang) || !has(self.gang.queue) || self.gang.type == 'Volcano'",
        "spec.gang.queue: may be set only with type Volcano, because the others have no queues",
        lambda s: s.gang is None or s.gang.queue is None or s.gang.type is GangType.VOLCANO,
    ),
    _own_group("annotations", "scheduling.k8s.io/group-name"),
    _own_group("annotations", "kueue.x-k8s.io/pod-group-name"),
    _own_group("labels", "kueue.x-k8s.io/pod-group-name"),
    _own_group("labels", "kueue.x-k8s.io/queue-name"),
    _own_group("labels", "scheduling.x-k8s.io/pod-group"),
)

SPEC_RULES: tuple[Rule, ...] = (
    Rule(
        "!(has(self.task) && has(self.command))",
        "spec: task and command must not both be set",
        lambda s: not (s.task is not None and s.command is not None),
    ),
    Rule(
        "has(self.task) || has(self.command)",
        "spec: one of task and command must be set",
        lambda s: s.task is not None or s.command is not None,
    ),
    Rule(
        "!has(self.config) || has(self.task)",
        "spec.config: may be set only with task; a command takes args",
        lambda s: s.config is None or s.task is not None,
    ),
    Rule(
        "!has(self.args) || has(self.command)",
        "spec.args: may be set only with command; a task takes config",
        lambda s: s.args is None or s.command is not None,
    ),
    Rule(
        "!has(self.env) || self.env.all(e, !e.name.startsWith('DDP_'))",
        "spec.env: names must not begin with DDP_, because ddp-trainer reserves this prefix",
        lambda s: all(not e.name.startswith("DDP_") for e in s.env or []),
    ),
    Rule(
        "!has(self.volumes) || self.volumes.all(v, !v.name.startsWith('ddp-'))",
        "spec.volumes: names must not begin with ddp-, because ddp-trainer reserves this prefix",
        lambda s: all(not v.name.startswith("ddp-") for v in s.volumes or []),
    ),
    Rule(
        "!has(self.volumeMounts) || self.volumeMounts.all(m,"
        " has(self.volumes) && self.volumes.exists(v, v.name == m.name))",
        "spec.volumeMounts: each name must be the name of one of spec.volumes",
        lambda s: {m.name for m in s.volume_mounts or []} <= {v.name for v in s.volumes or []},
    ),
    Rule(
        "!has(self.restartWindowSeconds) || !has(self.maxRestarts)"
        f" || self.maxRestarts <= {MAX_RESTARTS_IN_WINDOW}",
        f"spec.restartWindowSeconds: requires spec.maxRestarts of at most {MAX_RESTARTS_IN_WINDOW}",
        lambda s: s.restart_window_seconds is None or s.max_restarts <= MAX_RESTARTS_IN_WINDOW,
    ),
    *(_reserved(field) for field in RESERVED_POD_FIELDS),
    *GANG_RULES,
)


def check_rules(name: str, spec: DDPJobSpec) -> str | None:
    """Return the message of the first broken rule, or None when all rules hold."""
    if len(name) > MAX_NAME_LENGTH or not _NAME.fullmatch(name):
        return f"{NAME_RULE_MESSAGE}, got {name!r}"
    return next((rule.message for rule in SPEC_RULES if not rule.holds(spec)), None)
