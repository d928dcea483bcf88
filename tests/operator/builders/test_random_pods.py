"""Random specs and overlays give an error of one sentence or a pod without privileges."""

import os
import random
from collections.abc import Iterator, Mapping
from typing import Any

from ddp_operator.api.job import DDPJob, InvalidJobError, parse_job
from ddp_operator.api.pod_policy import PodTemplatePolicy, forbidden_field
from ddp_operator.builders.loop_config import config_error
from ddp_operator.builders.pod import build_pod, with_secrets
from ddp_operator.reconcile.host_ports import why_no_host_network
from tests.operator.schema_tools import part
from tests.operator.support import DEFAULTS, job_manifest

SEED = int(os.environ.get("DDP_SEED") or "0")
COUNT = 1000
JUNK = [None, True, -1, 0, 1.5, "", "worker", "$(A)", "\x1b", "x" * 70, [], {}, [None], {"": 1}]
WORDS = ["a", "data", "/data", "m:build", "rdma/hca", "9", "a b", "ä"]
SHARED = ("hostNetwork", "hostPID", "hostIPC", "serviceAccountName", "serviceAccount", "nodeName")
CONTEXTS: dict[str, list[Any]] = {
    "privileged": [True, False],
    "allowPrivilegeEscalation": [True, False],
    "runAsUser": [0, 1, 1000, True],
    "runAsNonRoot": [True, False],
    "procMount": ["Unmasked"],
    "capabilities": [{"add": ["SYS_ADMIN"]}, {"drop": ["ALL"]}, {"drop": ["KILL"]}, {}, []],
    "seccompProfile": [{"type": "Unconfined"}, {"type": "RuntimeDefault"}],
}
FIELDS: dict[str, list[Any]] = {
    **{name: [True, "admin"] for name in SHARED},
    "securityContext": [{"runAsUser": 0}, {"sysctls": []}],
    "volumes": [[{"name": "v", "hostPath": {"path": "/"}}], [{"name": "v", "emptyDir": {}}]],
    "tolerations": [[{"operator": "Exists"}], [{}]],
    "terminationGracePeriodSeconds": [None, 5],
    "nodeSelector": [{"a": "b"}],
    "schedulerName": ["mine"],
    "automountServiceAccountToken": [True],
}
PARTS: dict[str, list[Any]] = {
    "image": ["example/other:1"],
    "command": [["sh"]],
    "env": [[{"name": "A", "value": "b"}], None, "b"],
    "volumeMounts": [[{"name": "v", "mountPath": "/tmp"}], [{"name": "v", "mountPath": {}}]],
    "ports": [[{"hostPort": 1}], [{"containerPort": 1}], [7]],
    "restartPolicy": ["Always"],
}


class Draw:
    """Random values, most of them valid."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 (not for secrets)

    def some(self, choices: Mapping[str, list[Any]], most: int) -> dict[str, Any]:
        names = self.random.sample(sorted(choices), self.random.randint(0, most))
        return {name: self.or_junk(self.random.choice(choices[name])) for name in names}

    def or_junk(self, value: Any) -> Any:
        return self.random.choice(JUNK) if self.random.random() < 0.05 else value

    def containers(self) -> list[Any]:
        names = ["worker", "sidecar", "fetch", ["worker"]]
        return [
            self.or_junk(
                {"name": self.random.choice(names)}
                | self.some(PARTS, 2)
                | (
                    {"securityContext": self.some(CONTEXTS, 3)}
                    if self.random.random() < 0.6
                    else {}
                )
            )
            for _ in range(self.random.randint(0, 3))
        ]

    def overlay(self) -> dict[str, Any]:
        kinds = [kind for kind in ("containers", "initContainers") if self.random.random() < 0.6]
        return self.some(FIELDS, 1) | {kind: self.or_junk(self.containers()) for kind in kinds}

    def value(self, schema: Mapping[str, Any]) -> Any:
        """Return a value for a node of the CRD's schema."""
        if self.random.random() < 0.01:
            return self.random.choice(JUNK)
        if "enum" in schema:
            return self.random.choice(schema["enum"])
        if schema.get("x-kubernetes-int-or-string"):
            return self.random.choice([1, "500m", "2Gi", "-1"])
        match schema["type"]:
            case "object":
                known = schema.get("properties", {})
                needed = set(schema.get("required", ()))
                used = [n for n in known if n in needed or self.random.random() < 0.2]
                return {name: self.value(known[name]) for name in used}
            case "array":
                return [self.value(schema["items"]) for _ in range(self.random.randint(0, 2))]
            case "integer":
                least = schema.get("minimum", 0)
                return self.random.choice([least, least + 1, schema.get("maximum", 9)])
            case "boolean":
                return self.random.random() < 0.5
            case _:
                return self.random.choice(WORDS)


def parsed(spec: Any) -> DDPJob | None:
    """Return the job, or None if it is refused with one sentence."""
    sentence = ""
    try:
        return parse_job(job_manifest() | {"spec": spec})
    except InvalidJobError as error:
        sentence = str(error)
    assert sentence.startswith("spec")
    assert "\n" not in sentence
    return None


def powers(pod: Mapping[str, Any]) -> Iterator[str]:
    """Yield the privileges of a pod beyond the Pod Security level Restricted."""
    spec = pod["spec"]
    yield from (name for name in SHARED if spec.get(name))
    if spec["automountServiceAccountToken"] or not spec["securityContext"].get("runAsNonRoot"):
        yield "token or root"
    yield from ("hostPath" for volume in spec["volumes"] if "hostPath" in volume)
    for one in [*spec["containers"], *(spec.get("initContainers") or [])]:
        context = one["securityContext"]
        added = set((context.get("capabilities") or {}).get("add") or ()) - {"IPC_LOCK"}
        if context.get("privileged") or added or context["allowPrivilegeEscalation"]:
            yield f"{one['name']}: {context}"
        if context.get("runAsUser") == 0 or context.get("runAsNonRoot") is False:
            yield f"{one['name']} is root"
        yield from ("hostPort" for port in one.get("ports") or () if "hostPort" in port)


def built(job: DDPJob) -> bool:
    """Build the pod of a job unless the default policy forbids it, and check its privileges."""
    config_error(job)
    forbidden = forbidden_field(job.spec, PodTemplatePolicy.SCHEDULING)
    if forbidden or why_no_host_network(job.spec, None):
        build_pod(job, 0, 1, DEFAULTS)  # The policy `full` builds it, and raises nothing, either.
        return False
    pod = with_secrets(build_pod(job, 0, 1, DEFAULTS), "a", "b")
    assert list(powers(pod)) == []
    return True


def test_random_spec_is_refused_with_a_sentence_or_gives_an_unprivileged_pod() -> None:
    draw, schema = Draw(SEED), part("spec")
    allowed = 0
    for _ in range(COUNT):
        spec = draw.value(schema)
        if isinstance(spec, dict) and draw.random.random() < 0.9:
            kept = {k: v for k, v in spec.items() if k not in {"command", "args", "config"}}
            spec = kept | {"task": "flowers:build"}
        job = parsed(spec)
        allowed += job is not None and built(job)
    # Each field of the spec adds ways to be refused.
    assert COUNT / 20 < allowed < COUNT


def test_random_overlay_gives_no_privileged_pod() -> None:
    draw = Draw(SEED)
    allowed = 0
    for _ in range(COUNT):
        template = {"spec": draw.overlay()}
        job = parsed({"task": "flowers:build", "podTemplate": template})
        allowed += job is not None and built(job)
    assert COUNT / 10 < allowed < COUNT * 9 / 10
