"""Define the podTemplate policies, which limit the pod fields that a job may set.

Each rule has one form in CEL, for the chart's ValidatingAdmissionPolicy, and one in Python, for the
operator. A test sends the same jobs to both and fails when they disagree.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ddp_operator.api.spec import DDPJobSpec


class PodTemplatePolicy(StrEnum):
    """Policy that limits the pod fields that a job may set in its podTemplate."""

    FULL = "full"
    """A job may set every field, which grants as much power as the right to create pods."""
    SCHEDULING = "scheduling"
    """A job may set metadata, placement, and containers without privileges."""
    OFF = "off"
    """A job may not have a podTemplate."""


POD_FIELDS = (
    "affinity",
    "containers",
    "initContainers",
    "nodeSelector",
    "priorityClassName",
    "runtimeClassName",
    "schedulerName",
    "terminationGracePeriodSeconds",
    "tolerations",
    "topologySpreadConstraints",
)
CONTAINER_FIELDS = (
    "args",
    "command",
    "env",
    "envFrom",
    "image",
    "imagePullPolicy",
    "name",
    "ports",
    "resources",
    "restartPolicy",
    "securityContext",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "volumeMounts",
    "workingDir",
)
ANNOTATIONS = (
    "cluster-autoscaler.kubernetes.io/safe-to-evict",
    "karpenter.sh/do-not-disrupt",
    "kubectl.kubernetes.io/default-container",
    "kueue.x-k8s.io/*",
    "prometheus.io/*",
    "scheduling.k8s.io/group-name",
)
"""Annotations that a job may set by default, see `allows_annotation`. Other annotations may give a pod another network, address or runtime, or the files of another program."""  # noqa: E501
SYSTEM_PRIORITY_PREFIX = "system-"
"""Prefix that Kubernetes reserves for its own PriorityClasses."""
_SPEC = "spec.podTemplate.spec"
_CONTAINERS = ("containers", "initContainers")
_FORBIDDEN = "must not be set"

Contexts = Mapping[str, tuple[str, str, Callable[[Any], bool]]]


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_default_profile(value: Any) -> bool:
    return isinstance(value, Mapping) and dict(value) == {"type": "RuntimeDefault"}


def _drops_all(value: Any) -> bool:
    return isinstance(value, Mapping) and set(value) == {"drop"} and "ALL" in value["drop"]


CONTEXTS: Contexts = {
    "allowPrivilegeEscalation": ("must be false", "{} == false", lambda v: v is False),
    "appArmorProfile": (
        "must be {type: RuntimeDefault}",
        "{} == {{'type': 'RuntimeDefault'}}",
        _is_default_profile,
    ),
    "capabilities": (
        "must drop ALL and add none",
        "{0}.all(k, k == 'drop') && 'ALL' in {0}.drop",
        _drops_all,
    ),
    "privileged": ("must be false", "{} == false", lambda v: v is False),
    "readOnlyRootFilesystem": (
        "must be true or false",
        "type({}) == bool",
        lambda v: isinstance(v, bool),
    ),
    "runAsGroup": ("must be a number", "type({}) == int", _is_integer),
    "runAsNonRoot": ("must be true", "{} == true", lambda v: v is True),
    "runAsUser": (
        "must be at least 1",
        "type({0}) == int && {0} >= 1",
        lambda v: _is_integer(v) and v >= 1,
    ),
    "seccompProfile": (
        "must be {type: RuntimeDefault}",
        "{} == {{'type': 'RuntimeDefault'}}",
        _is_default_profile,
    ),
}
"""Permitted values in a security context: the requirement in words, in CEL and in Python."""


@dataclass(frozen=True)
class Overlay:
    """The parts of a job that a podTemplate policy limits."""

    given: bool
    """Whether the job has a podTemplate."""
    fields: Mapping[str, Any]
    """The partial pod spec in the podTemplate."""
    annotations: Iterable[str]
    allowed_annotations: Sequence[str]
    """Annotations that the operator's settings allow, see `allows_annotation`."""
    priorities: Mapping[str, str]
    """Names of the PriorityClasses that the job uses, by the spec field that names them."""
    containers: Sequence[Mapping[str, Any]]
    contexts: Sequence[Mapping[str, Any]]
    """Security contexts of the containers in the podTemplate."""


VARIABLES = {
    "spec": "object.spec.?podTemplate.?spec.orValue({})",
    "annotations": "object.spec.?podTemplate.?metadata.?annotations.orValue({})",
    "containers": "variables.spec.?containers.orValue([])"
    " + variables.spec.?initContainers.orValue([])",
    "contexts": "variables.containers.filter(c, 'securityContext' in c).map(c, c.securityContext)",
}
"""CEL variables that the rules use. Each may use those before it."""


@dataclass(frozen=True)
class PodRule:
    """One rule that limits the pods of a job."""

    requirement: str
    """Requirement on the field, in words."""
    cel: str
    """CEL expression that is true when the job obeys the rule."""
    cel_field: str
    """CEL expression that returns the name of the field that breaks the rule."""
    broken: Callable[[Overlay], str | None]
    """Return the name of the field that breaks the rule, or None when the job obeys it."""

    def rest(self, policy: PodTemplatePolicy) -> str:
        """Return the part of the error message that follows the name of the field."""
        whose = f"the podTemplate policy of this installation is {policy.value}"
        return f": {self.requirement}, because {whose}"


def _first_other(maps: Iterable[Iterable[str]], allowed: Sequence[str]) -> str | None:
    return next((key for keys in maps for key in sorted(keys) if key not in allowed), None)


def _keys_rule(source: str, field: str, allowed: Sequence[str]) -> PodRule:
    """Return a rule that permits only the given keys in the maps of a CEL variable."""
    other = "!(f in [" + ", ".join(f"'{key}'" for key in allowed) + "])"
    broken_map = f"{source}.filter(m, m.exists(f, {other}))[0]"

    def broken(overlay: Overlay) -> str | None:
        maps = overlay.containers if source == "variables.containers" else overlay.contexts
        found = _first_other([overlay.fields] if field == _SPEC else maps, allowed)
        return None if found is None else f"{field}.{found}"

    return PodRule(
        _FORBIDDEN,
        f"!{source}.exists(m, m.exists(f, {other}))",
        f"'{field}.' + string({broken_map}.filter(f, {other})[0])",
        broken,
    )


def _context_rule(key: str, requirement: str, cel: str, holds: Callable[[Any], bool]) -> PodRule:
    """Return a rule that permits only certain values for one field of the security contexts."""
    field = f"{_SPEC}.containers.securityContext.{key}"

    def broken(overlay: Overlay) -> str | None:
        found = any(key in context and not holds(context[key]) for context in overlay.contexts)
        return field if found else None

    held = f"variables.contexts.all(s, !('{key}' in s) || ({cel.format(f's.{key}')}))"
    return PodRule(requirement, held, f"'{field}'", broken)


def _host_port(overlay: Overlay) -> str | None:
    found = any("hostPort" in port for c in overlay.containers for port in c.get("ports", []))
    return f"{_SPEC}.containers.ports.hostPort" if found else None


def allows_annotation(allowed: Sequence[str], key: str) -> bool:
    """Return whether a job may set an annotation.

    A name without `.` and `/` has meaning only for the user. CRI-O and Kata obey some names without
    `/`.

    Args:
        allowed: Names of annotations, or prefixes of names, each followed by `*`.
        key: Name of the annotation.
    """
    private = "/" not in key and "." not in key
    return private or any(
        key.startswith(name[:-1]) if name.endswith("*") else key == name for name in allowed
    )


def _annotation(overlay: Overlay) -> str | None:
    allowed = overlay.allowed_annotations
    found = next(
        (k for k in sorted(overlay.annotations) if not allows_annotation(allowed, k)), None
    )
    return None if found is None else f"spec.podTemplate.metadata.annotations[{found}]"


FOREIGN_ANNOTATION = (
    "(k.contains('/') || k.contains('.')) && !(k in __ANNOTATION_NAMES__)"
    " && !__ANNOTATION_PREFIXES__.exists(p, k.startsWith(p))"
)
"""CEL expression that is true for an annotation `k` that a job may not set. The chart fills in the allowed names and prefixes."""  # noqa: E501
_PRIORITY = f".orValue('').startsWith('{SYSTEM_PRIORITY_PREFIX}')"

_SYSTEM_PRIORITY = PodRule(
    f"must not begin with {SYSTEM_PRIORITY_PREFIX}",
    f"!object.spec.?priorityClassName{_PRIORITY} && !variables.spec.?priorityClassName{_PRIORITY}",
    f"object.spec.?priorityClassName{_PRIORITY}"
    f" ? 'spec.priorityClassName' : '{_SPEC}.priorityClassName'",
    lambda overlay: next(
        (
            field
            for field, name in overlay.priorities.items()
            if name.startswith(SYSTEM_PRIORITY_PREFIX)
        ),
        None,
    ),
)

RULES: Mapping[PodTemplatePolicy, tuple[PodRule, ...]] = {
    PodTemplatePolicy.FULL: (),
    PodTemplatePolicy.SCHEDULING: (
        _keys_rule("[variables.spec]", _SPEC, POD_FIELDS),
        _keys_rule("variables.containers", f"{_SPEC}.containers", CONTAINER_FIELDS),
        _keys_rule("variables.contexts", f"{_SPEC}.containers.securityContext", tuple(CONTEXTS)),
        *(_context_rule(key, *rule) for key, rule in CONTEXTS.items()),
        PodRule(
            _FORBIDDEN,
            "variables.containers.all(c, !('ports' in c) || c.ports.all(p, !('hostPort' in p)))",
            f"'{_SPEC}.containers.ports.hostPort'",
            _host_port,
        ),
        PodRule(
            "must be one of podTemplateAnnotations of the chart",
            f"!variables.annotations.exists(k, {FOREIGN_ANNOTATION})",
            "'spec.podTemplate.metadata.annotations['"
            f" + string(variables.annotations.filter(k, {FOREIGN_ANNOTATION})[0]) + ']'",
            _annotation,
        ),
        _SYSTEM_PRIORITY,
    ),
    PodTemplatePolicy.OFF: (
        PodRule(
            _FORBIDDEN,
            "!has(object.spec.podTemplate)",
            "'spec.podTemplate'",
            lambda overlay: "spec.podTemplate" if overlay.given else None,
        ),
        _SYSTEM_PRIORITY,
    ),
}
"""Rules of each policy, in the order in which they are checked."""


def forbidden_field(
    spec: DDPJobSpec, policy: PodTemplatePolicy, annotations: Sequence[str] = ANNOTATIONS
) -> str | None:
    """Return an error message about the first field that a policy forbids, or None.

    Args:
        spec: Spec of the job.
        policy: The podTemplate policy of the installation.
        annotations: Annotations that the installation allows, see `allows_annotation`.
    """
    if policy is PodTemplatePolicy.FULL:
        return None
    try:
        overlay = _overlay_of(spec, annotations)
    except TypeError as error:
        return f"{_SPEC}.{error}"
    for rule in RULES[policy]:
        field = rule.broken(overlay)
        if field is not None:
            return field + rule.rest(policy)
    return None


def _overlay_of(spec: DDPJobSpec, annotations: Sequence[str]) -> Overlay:
    """Return the parts of a job that a podTemplate policy limits.

    Raises:
        TypeError: A field of the podTemplate does not have the type of the same field in a pod
            spec.
    """
    template = spec.pod_template
    fields = (template.spec if template is not None else None) or {}
    metadata = template.metadata if template is not None else None
    containers = [one for kind in _CONTAINERS for one in _maps(fields, kind)]
    for one in containers:
        _maps(one, "ports")
    contexts = [one["securityContext"] for one in containers if "securityContext" in one]
    if not all(isinstance(one, Mapping) for one in contexts):
        raise TypeError("containers.securityContext: must be an object")
    priority = fields.get("priorityClassName", "")
    if not isinstance(priority, str):
        raise TypeError("priorityClassName: must be a string")
    return Overlay(
        given=template is not None,
        fields=fields,
        annotations=(metadata.annotations if metadata is not None else None) or (),
        allowed_annotations=annotations,
        priorities={
            "spec.priorityClassName": spec.priority_class_name or "",
            f"{_SPEC}.priorityClassName": priority,
        },
        containers=containers,
        contexts=contexts,
    )


def _maps(given: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """Return the list of objects at a key, or an empty list if the key is missing.

    Raises:
        TypeError: The value is not a list of objects.
    """
    value = given.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise TypeError(f"{key}: must be a list of objects")
    return value
