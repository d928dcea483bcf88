"""Build the rules of the chart's ValidatingAdmissionPolicy about the operator's own writes.

Only objects that the operator builds pass. Constants come from sample objects, and a job's choices
from the podTemplate policy. A field of a sample object without a rule raises an error.
"""

import json
from typing import Any

import yaml

from ddp_operator.api.pod_policy import (
    CONTAINER_FIELDS,
    CONTEXTS,
    FOREIGN_ANNOTATION,
    POD_FIELDS,
    SYSTEM_PRIORITY_PREFIX,
    PodTemplatePolicy,
)
from ddp_operator.builders.defaults import Defaults
from ddp_operator.builders.pod import build_pod
from ddp_wire import contract
from tools.cel import FREE, keys, literal, quoted, same, same_value
from tools.child_rules import network_policy_rule, service_rule
from tools.claim_rules import claim_rules
from tools.gang_rules import GANG_ANNOTATIONS, gang_fields
from tools.host_network_rules import host_network_fields, host_port, worker_ports
from tools.init_rules import OF_WORKER, of_each_kind
from tools.policy_samples import full_job, sample_job, validation_rule

JSON = dict[str, Any]

_HEAD = """\
# Generated from tools/operator_policy.py and the builders of the operator by `make generate`.
# Rules of the ValidatingAdmissionPolicy on the operator's own writes: for pods by value of
# podTemplate, and for the other objects. The chart fills in the names in __UNDERSCORES__.
"""
_OF_KUBERNETES = host_network_fields() | {
    "serviceAccountName": "object.spec.serviceAccountName == 'default'",
    "serviceAccount": "object.spec.serviceAccount == 'default'",
    "priority": "true",
    "preemptionPolicy": "true",
    "overhead": "true",
    "schedulingGates": "true",
}
"""Pod spec fields that the API server and its admission plugins set, with their rules."""
_JOBS_CHOICE = (
    "affinity",
    "imagePullSecrets",
    "nodeSelector",
    "priorityClassName",
    "tolerations",
    "topologySpreadConstraints",
)
"""Pod spec fields that a job may set without a podTemplate."""
_JOBS_CONTAINER_CHOICE = (
    "env",
    "image",
    "imagePullPolicy",
    "name",
    "ports",
    "resources",
    "securityContext",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "volumeMounts",
)
_IDS = ("fsGroup", "runAsGroup", "runAsUser")


def build_operator_rules() -> str:
    """Return the chart's file with the rules about the operator's writes."""
    claims = claim_rules()
    document = {
        "pods": {
            policy.value: _pod_rules(policy)
            for policy in (PodTemplatePolicy.SCHEDULING, PodTemplatePolicy.OFF)
        },
        "services": [service_rule(), _annotations_rule("Services")],
        "networkpolicies": [network_policy_rule(), _annotations_rule("NetworkPolicies")],
        "claims": {
            "created": [claims["created"], _annotations_rule("claims")],
            "changed": [claims["changed"]],
        },
    }
    return _HEAD + yaml.safe_dump(document, sort_keys=False, width=100_000)


def _pod_rules(policy: PodTemplatePolicy) -> list[JSON]:
    fields = _pod_fields(policy)
    containers = "(object.spec.containers + object.spec.?initContainers.orValue([]))"
    own = _container_fields(policy)
    reason = f"because podTemplate is {policy.value}"
    other_field = f"object.spec.filter(k, !(k in {quoted(sorted(fields))}))[0]"
    other_own = f"!(k in {quoted(sorted(own))}) && {_not_a_probe()}"
    other_container_field = (
        f"{containers}.filter(c, c.exists(k, {other_own})).map(c, c.filter(k, {other_own})[0])[0]"
    )
    return [
        validation_rule(
            keys("object.spec", fields),
            f"may not create pods with this field, {reason}",
            other_field,
        ),
        *(
            validation_rule(
                of_each_kind(field, f"has(object.spec.{field}) && {rule}")
                if field in _required()
                else f"!has(object.spec.{field}) || {rule}",
                f"may not create pods with this value of spec.{field}, {reason}",
            )
            for field, rule in sorted(fields.items())
            if rule != "true"
        ),
        validation_rule(
            f"!{containers}.exists(c, c.exists(k, {other_own}))",
            f"may not create pods with this field of a container, {reason}",
            other_container_field,
        ),
        validation_rule(
            f"{containers}.all(c, !has(c.ports) || c.ports.all(p, {host_port('p')}))",
            f"may not create pods with ports of the Kubernetes node, {reason}",
        ),
        validation_rule(
            f"{containers}.all(c, has(c.securityContext) && {_security_context()})",
            f"may not create pods with this security context of a container, {reason}",
        ),
        _annotations_rule("pods"),
    ]


def _required() -> set[str]:
    """Return the fields that have the same value in each built pod."""
    return set(build_pod(sample_job(), 0, 1, Defaults("i"))["spec"]) - set(_JOBS_CHOICE)


def _pod_fields(policy: PodTemplatePolicy) -> dict[str, str]:
    """Return the permitted fields of a pod spec, each with a rule for its value."""
    spec = build_pod(full_job(), 0, 1, Defaults("i"))["spec"]
    constant = {
        field: same(f"object.spec.{field}", spec[field])
        for field in (
            "automountServiceAccountToken",
            "dnsConfig",
            "enableServiceLinks",
            "restartPolicy",
            "terminationGracePeriodSeconds",
        )
    }
    fields = _OF_KUBERNETES | dict.fromkeys(_JOBS_CHOICE, "true") | constant
    fields |= {
        "containers": _worker(spec["containers"][0], policy),
        "hostname": _of_owner("object.spec.hostname"),
        "schedulerName": "object.spec.schedulerName in [__GANG_SCHEDULERS__]",
        **gang_fields(),
        "securityContext": _pod_security_context(spec["securityContext"]),
        "subdomain": "object.spec.subdomain == variables.owner.name",
        "volumes": _volumes(spec["volumes"]),
    }
    if policy is PodTemplatePolicy.SCHEDULING:
        free = set(POD_FIELDS) - {"containers"}
        fields |= dict.fromkeys(free, "true") | {"initContainers": OF_WORKER}
    fields["priorityClassName"] = (
        f"!object.spec.priorityClassName.startsWith('{SYSTEM_PRIORITY_PREFIX}')"
    )
    if missing := set(spec) - set(fields):
        raise LookupError(f"no rule states these fields of a built pod: {sorted(missing)}")
    return fields


def _of_owner(place: str) -> str:
    """Return a rule that a pod's name is its owner's name with the pod's index."""
    index = f"{place}.substring(size(variables.owner.name) + 1)"
    label = f"object.metadata.labels['{contract.LABEL_NODE_INDEX}']"
    return (
        f"{place}.startsWith(variables.owner.name + '-') && {index}.matches('^[0-9]{{1,4}}$')"
        f" && {label}.matches('^[0-9]{{1,4}}$') && int({index}) == int({label})"
    )


def _container_fields(policy: PodTemplatePolicy) -> set[str]:
    """Return the permitted fields of each container. The API server sets resizePolicy."""
    chosen = set(_JOBS_CONTAINER_CHOICE) | {"command", "resizePolicy"}
    return chosen | (set(CONTAINER_FIELDS) if policy is PodTemplatePolicy.SCHEDULING else set())


_PROBES = ("livenessProbe", "readinessProbe")


def _not_a_probe() -> str:
    return f"!(c.name == '{contract.WORKER_CONTAINER}' && k in {quoted(_PROBES)})"


def _worker(built: JSON, policy: PodTemplatePolicy) -> str:
    """Return the rule about the worker container and the fields that only the worker has."""
    known = {*_container_fields(policy), *_PROBES}
    if missing := set(built) - known:
        raise LookupError(f"no rule states these fields of the worker: {sorted(missing)}")
    fixed = [*_PROBES, "command"]
    rules = [f"c.name == '{contract.WORKER_CONTAINER}'", "!has(c.args)"]
    if policy is PodTemplatePolicy.OFF:
        fixed.append("terminationMessagePolicy")
        rules.append(worker_ports("c.ports", built["ports"]))
    rules += [f"has(c.{field}) && {same(f'c.{field}', built[field])}" for field in fixed]
    rule = f"object.spec.containers.exists(c, {' && '.join(rules)})"
    if policy is PodTemplatePolicy.OFF:
        root = "c.securityContext.?readOnlyRootFilesystem.orValue(false)"
        rule += f" && size(object.spec.containers) == 1 && object.spec.containers.all(c, {root})"
    return rule


def _security_context() -> str:
    """Return the rule about the security context of a container `c`.

    The podTemplate policy has the same table. Only the worker of a job with RDMA has a capability.
    """
    place = "c.securityContext"
    built = build_pod(full_job(), 0, 1, Defaults("i"))["spec"]["containers"][0]
    added = built["securityContext"]["capabilities"]["add"]
    forms = {key: cel.format(f"{place}.{key}") for key, (_, cel, _) in CONTEXTS.items()}
    capabilities = f"{place}.capabilities"
    forms["capabilities"] = (
        f"has({capabilities}.drop) && 'ALL' in {capabilities}.drop"
        f" && {capabilities}.all(k, k == 'drop' || (k == 'add'"
        f" && c.name == '{contract.WORKER_CONTAINER}' && {capabilities}.add == {quoted(added)}))"
    )
    required = ("allowPrivilegeEscalation", "capabilities")
    rules = [
        f"{place}.all(k, k in {quoted(sorted(forms))} || (__ASSIGNED__ && k == 'seLinuxOptions'))",
        *(f"has({place}.{key})" for key in required),
        *(f"(!has({place}.{key}) || ({form}))" for key, form in forms.items()),
        _only_level(place),
    ]
    return " && ".join(rules)


def _only_level(place: str) -> str:
    """Return the rule about SELinux: only a level, which OpenShift assigns, is permitted."""
    return f"{place}.?seLinuxOptions.orValue({{}}).all(k, k == 'level')"


def _pod_security_context(built: JSON) -> str:
    """Return the rule about the pod's security context, with the ids in the chart's values."""
    place = "object.spec.securityContext"
    constant = {key: value for key, value in built.items() if key not in _IDS}
    of_cluster = ("seLinuxOptions", "supplementalGroups")
    ids = (
        f"{quoted(_IDS)}.all(k, __ASSIGNED__ ? (!(k in {place}) || {place}[k] > 0)"
        f" : (k in {place} && {place}[k] == __USER__))"
    )
    keys = (
        f"{place}.all(k, k in {quoted(sorted([*constant, *_IDS]))}"
        f" || (__ASSIGNED__ && k in {quoted(of_cluster)}))"
    )
    values = [
        f"has({place}.{key}) && {same_value(place, key, value)}" for key, value in constant.items()
    ]
    return " && ".join([keys, ids, *values, _only_level(place)])


def _volumes(built: list[JSON]) -> str:
    """Return the rule about volumes: the builder's own, and the sources that a spec may name."""
    pod_info, tmp, shm, claim = (_source(volume) for volume in built)
    pod_info["downwardAPI"]["defaultMode"] = FREE
    pod_info["downwardAPI"]["items"][0]["fieldRef"]["apiVersion"] = FREE
    shm["emptyDir"]["sizeLimit"] = claim["persistentVolumeClaim"]["claimName"] = FREE
    given = ["configMap", "emptyDir", "name", "persistentVolumeClaim", "secret"]
    cases = [f"(!v.name.startsWith('ddp-') && {keys('v', given)})"]
    cases += [f"({_same_volume(volume)})" for volume in (pod_info, tmp, shm, claim)]
    return f"object.spec.volumes.all(v, {' || '.join(cases)})"


def _source(volume: JSON) -> JSON:
    copied: JSON = json.loads(json.dumps(volume))
    return copied


def _same_volume(volume: JSON) -> str:
    [kind] = set(volume) - {"name"}
    place = f"v.{kind}"
    rules = [f"v.name == '{volume['name']}'", keys("v", volume), f"has({place})"]
    inner = volume[kind]
    rules.append(keys(place, inner))
    for key, value in inner.items():
        if key == "items":
            path, reference = value[0]["path"], value[0]["fieldRef"]["fieldPath"]
            field = reference.replace("'", "\\'")
            rules.append(
                f"{place}.items.all(i, {keys('i', value[0])} && i.path == '{path}'"
                f" && i.fieldRef.fieldPath == '{field}')"
            )
        elif value is not FREE:
            rules.append(f"has({place}.{key}) && {place}.{key} == {literal(value)}")
    return " && ".join(rules)


def _foreign_annotation() -> str:
    """Return a condition: annotation `k` belongs neither to the builder nor to the chart's list."""
    own = build_pod(sample_job(), 0, 1, Defaults("i"))["metadata"]["annotations"]
    known = sorted([*own, *GANG_ANNOTATIONS, "kubernetes.io/limit-ranger"])
    return (
        f"!(k in {quoted(known)}) && {FOREIGN_ANNOTATION}"
        " && !(__ASSIGNED__ && (k == 'openshift.io/scc' || k.startsWith('security.openshift.io/')))"
    )


def _annotations_rule(kind: str) -> JSON:
    """Return the rule about the annotations of a new object."""
    foreign = _foreign_annotation()
    return validation_rule(
        "request.operation != 'CREATE'"
        f" || !object.metadata.?annotations.orValue({{}}).exists(k, {foreign})",
        f"may not create {kind} with an annotation that podTemplateAnnotations does not list",
        f"object.metadata.annotations.filter(k, {foreign})[0]",
    )
