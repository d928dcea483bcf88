"""Define the rules between fields, in CEL for the API server and in Python for `ddpjob`.

A test checks both forms against the same jobs and fails when they disagree.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from ddp_operator.api.claim import AccessMode
from ddp_operator.api.gang import GangType
from ddp_operator.api.network import NetworkProfile
from ddp_operator.api.placement import HOSTNAME_LABEL
from ddp_operator.api.spec import RESERVED_POD_FIELDS, DDPJobSpec

MAX_NAME_LENGTH = 58
"""Longest job name, in characters: a DNS label (63) without the `-9998` that ends a pod name."""
MAX_LABEL_LENGTH = 63
"""Longest label value, in characters."""
MAX_PODS = 9999
"""Largest number of pods of a job: their host names have four digits."""
MAX_RESTARTS_IN_WINDOW = 30
"""Largest maxRestarts of a job with restartWindowSeconds: the status holds 32 failure times."""
_NAME = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
_DNS_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_LABEL_WORD = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_LABEL_VALUE = f"^{_LABEL_WORD}$"
_LABEL_KEY = f"^({_DNS_LABEL}([.]{_DNS_LABEL})*/)?{_LABEL_WORD}$"
_WITHOUT_RDMA = (NetworkProfile.ETHERNET.value, NetworkProfile.GCP_TCPX.value)
"""Network profiles with which NCCL uses no RDMA device."""

_Text = Callable[[DDPJobSpec], str | None]


@dataclass(frozen=True)
class Rule:
    """One rule between fields of the spec."""

    cel: str
    """CEL expression over `self`, the spec. It is true when the rule holds."""
    message: str
    """Error message for the author of a job that breaks the rule."""
    holds: Callable[[DDPJobSpec], bool]
    """Python function that returns whether the spec obeys the rule."""


NAME_RULE_CEL = (
    f"self.metadata.name.size() <= {MAX_NAME_LENGTH}"
    " && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')"
)
NAME_RULE_MESSAGE = (
    f"metadata.name: must be a DNS label of at most {MAX_NAME_LENGTH} characters that begins with a"
    " letter, because it names the job's pods and Service"
)

MANAGED_BY_RULE_CEL = (
    "has(self.managedBy) == has(oldSelf.managedBy)"
    " && (!has(self.managedBy) || self.managedBy == oldSelf.managedBy)"
)
"""CEL expression over `self` and `oldSelf`, the new and the old spec. No Python form exists,
because `ddpjob` sees one spec only."""
MANAGED_BY_RULE_MESSAGE = (
    "spec.managedBy: must not be changed, because another controller may have begun to act on the"
    " job; create a new job instead"
)

_CLAIM, _OLD_CLAIM = "self.checkpoint.claimTemplate", "oldSelf.checkpoint.claimTemplate"
CLAIM_RULE_CEL = (
    f"!has(self.checkpoint) || !has({_CLAIM}) || !has(oldSelf.checkpoint) || !has({_OLD_CLAIM})"
    f" || (has({_CLAIM}.storageClassName) == has({_OLD_CLAIM}.storageClassName)"
    f" && (!has({_CLAIM}.storageClassName)"
    f" || {_CLAIM}.storageClassName == {_OLD_CLAIM}.storageClassName)"
    f" && {_CLAIM}.accessModes == {_OLD_CLAIM}.accessModes)"
)
"""CEL expression over `self` and `oldSelf`, without a Python form as for `MANAGED_BY_RULE_CEL`."""
CLAIM_RULE_MESSAGE = (
    "spec.checkpoint.claimTemplate: storageClassName and accessModes must not be changed, because"
    " Kubernetes cannot change them in a claim; create a new job instead"
)


def _reserved(field: str) -> Rule:
    """Return a rule that forbids a field in the spec of the podTemplate."""

    def holds(spec: DDPJobSpec) -> bool:
        overlay = spec.pod_template.spec if spec.pod_template is not None else None
        return field not in (overlay or {})

    path = f"self.podTemplate.spec.{field}"
    return Rule(
        f"!has(self.podTemplate) || !has(self.podTemplate.spec) || !has({path})",
        f"spec.podTemplate.spec.{field}: must not be set, because the operator sets it",
        holds,
    )


def _label_rule(field: str, place: str, form: str, must: str, value: _Text) -> Rule:
    """Return a rule that a field has the format of a label key or a label value.

    Args:
        field: Name of the field, in the spec.
        place: Parent field in the spec; the rule applies only if it is set.
        form: Regular expression of the whole text.
        must: Requirement, in words.
        value: Returns the text, or None.
    """
    return Rule(
        f"!has(self.{place}) || self.{field}.matches('{form}')",
        f"spec.{field}: {must}",
        lambda s: value(s) is None or re.fullmatch(form, value(s) or "") is not None,
    )


PLACEMENT_RULES: tuple[Rule, ...] = (
    _label_rule(
        "topology.key",
        "topology",
        _LABEL_KEY,
        "must be the key of a label, for example topology.kubernetes.io/zone",
        lambda s: s.topology.key if s.topology is not None else None,
    ),
    _label_rule(
        "gpuProduct",
        "gpuProduct",
        _LABEL_VALUE,
        "must be the value of a label, with - for each space, for example NVIDIA-H100-80GB-HBM3",
        lambda s: s.gpu_product,
    ),
    Rule(
        "!has(self.gpuProduct) || (has(self.gpusPerNode) && self.gpusPerNode >= 1)",
        "spec.gpuProduct: requires spec.gpusPerNode of at least 1",
        lambda s: s.gpu_product is None or s.gpus_per_node >= 1,
    ),
    Rule(
        "!has(self.exclusiveNodes) || !self.exclusiveNodes || !has(self.topology)"
        f" || self.topology.key != '{HOSTNAME_LABEL}'",
        f"spec.topology.key: must not be {HOSTNAME_LABEL} with spec.exclusiveNodes, because one"
        " packs all pods onto one Kubernetes node and the other allows one pod on each",
        lambda s: (
            not (s.exclusive_nodes and s.topology is not None and s.topology.key == HOSTNAME_LABEL)
        ),
    ),
    Rule(
        "!has(self.network) || !has(self.network.rdma) || !has(self.network.profile)"
        f" || !(self.network.profile in {list(_WITHOUT_RDMA)})",
        f"spec.network.rdma: must not be set with the profile {' or '.join(_WITHOUT_RDMA)},"
        " because NCCL uses no RDMA device with it",
        lambda s: (
            s.network is None or s.network.rdma is None or s.network.profile not in _WITHOUT_RDMA
        ),
    ),
)


def _own_group(kind: str, key: str) -> Rule:
    """Return a rule that forbids a job with a gang to name another group for its pods."""

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


_WITH_QUEUES = (GangType.VOLCANO, GangType.KUEUE)
GANG_RULES: tuple[Rule, ...] = (
    Rule(
        "!has(self.gang) || !has(self.gang.queue) || self.gang.type in ['Volcano', 'Kueue']",
        "spec.gang.queue: may be set only with type Volcano or Kueue, because other types have"
        " no queues",
        lambda s: s.gang is None or s.gang.queue is None or s.gang.type in _WITH_QUEUES,
    ),
    Rule(
        "!has(self.gang) || !has(self.gang.queue) || self.gang.type != 'Kueue'"
        " || self.gang.queue.size() <= 63",
        "spec.gang.queue: must have at most 63 characters with type Kueue, because it is a label",
        lambda s: (
            s.gang is None
            or s.gang.type is not GangType.KUEUE
            or len(s.gang.queue or "") <= MAX_LABEL_LENGTH
        ),
    ),
    _own_group("annotations", "scheduling.k8s.io/group-name"),
    _own_group("annotations", "kueue.x-k8s.io/pod-group-name"),
    _own_group("labels", "kueue.x-k8s.io/pod-group-name"),
    _own_group("labels", "kueue.x-k8s.io/queue-name"),
    _own_group("labels", "scheduling.x-k8s.io/pod-group"),
)


def _claim_serves_all_pods(spec: DDPJobSpec) -> bool:
    """Return whether all pods of the job can mount the claim of its template."""
    template = spec.checkpoint.claim_template if spec.checkpoint is not None else None
    if template is None or AccessMode.READ_WRITE_MANY in template.access_modes:
        return True
    one_node = spec.topology is not None and spec.topology.key == HOSTNAME_LABEL
    return one_node or spec.nodes + spec.spares == 1


INIT_RULES: tuple[Rule, ...] = (
    Rule(
        "!has(self.init) || self.init.all(s, has(s.task) != has(s.command))",
        "spec.init: each step must set either task or command",
        lambda s: all((i.task is None) != (i.command is None) for i in s.init or []),
    ),
    Rule(
        "!has(self.init) || self.init.all(s, !has(s.args) || has(s.command))",
        "spec.init: args may be set only with command; a task takes config",
        lambda s: all(i.args is None or i.command is not None for i in s.init or []),
    ),
    Rule(
        "!has(self.init) || self.init.all(s,"
        " !has(s.env) || s.env.all(e, !e.name.startsWith('DDP_')))",
        "spec.init: names in env must not begin with DDP_, because ddp-trainer reserves this"
        " prefix",
        lambda s: all(not e.name.startswith("DDP_") for i in s.init or [] for e in i.env or []),
    ),
    Rule(
        "!has(self.init) || self.init.all(s, self.init.exists_one(o, o.name == s.name))",
        "spec.init: each step must have another name",
        lambda s: len({i.name for i in s.init or []}) == len(s.init or []),
    ),
)

CLAIM_RULES: tuple[Rule, ...] = (
    Rule(
        "!has(self.checkpoint)"
        " || has(self.checkpoint.claimName) != has(self.checkpoint.claimTemplate)",
        "spec.checkpoint: one of claimName and claimTemplate must be set",
        lambda s: (
            s.checkpoint is None
            or (s.checkpoint.claim_name is None) != (s.checkpoint.claim_template is None)
        ),
    ),
    Rule(
        "!has(self.checkpoint) || !has(self.checkpoint.claimTemplate)"
        " || 'ReadWriteMany' in self.checkpoint.claimTemplate.accessModes"
        f" || (has(self.topology) && self.topology.key == '{HOSTNAME_LABEL}')"
        " || (has(self.nodes) ? self.nodes : 1) + (has(self.spares) ? self.spares : 0) == 1",
        "spec.checkpoint.claimTemplate.accessModes: must contain ReadWriteMany, because all pods of"
        f" the job mount the claim; one pod, or topology.key {HOSTNAME_LABEL}, needs only"
        " ReadWriteOnce",
        _claim_serves_all_pods,
    ),
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
    Rule(
        "!has(self.elastic) || self.elastic.minNodes <= (has(self.nodes) ? self.nodes : 1)",
        "spec.elastic.minNodes: must be at most spec.nodes",
        lambda s: s.elastic is None or s.elastic.min_nodes <= s.nodes,
    ),
    Rule(
        "!has(self.spares) || self.spares == 0 || (has(self.nodes) ? self.nodes : 1)"
        " + self.spares <= 9999",
        "spec.spares: nodes and spares must be at most 9999 together",
        lambda s: s.nodes + s.spares <= MAX_PODS,
    ),
    Rule(
        "!has(self.sparePriorityClassName) || (has(self.spares) && self.spares > 0)"
        " || has(self.elastic)",
        "spec.sparePriorityClassName: may be set only with spares or elastic",
        lambda s: s.spare_priority_class_name is None or s.spares > 0 or s.elastic is not None,
    ),
    *(_reserved(field) for field in RESERVED_POD_FIELDS),
    *INIT_RULES,
    *CLAIM_RULES,
    *PLACEMENT_RULES,
    *GANG_RULES,
)


def check_rules(name: str, spec: DDPJobSpec) -> str | None:
    """Return the message of the first broken rule, or None when all rules hold."""
    if len(name) > MAX_NAME_LENGTH or not _NAME.fullmatch(name):
        return f"{NAME_RULE_MESSAGE}, got {name!r}"
    return next((rule.message for rule in SPEC_RULES if not rule.holds(spec)), None)
